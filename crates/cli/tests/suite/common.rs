//! Running the program the way people and other tools do.

use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use syncline::Volume;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_syncline");

/// What a run of the program gave.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    fn new(output: Output) -> Run {
        Run {
            code: output.status.code().expect("the program ends by itself"),
            out: String::from_utf8(output.stdout).expect("output is UTF-8"),
            err: String::from_utf8(output.stderr).expect("messages are UTF-8"),
        }
    }

    /// The run succeeded and complained about nothing.
    #[track_caller]
    pub fn ok(self) -> Run {
        assert_eq!(self.code, 0, "failed: {}{}", self.out, self.err);
        self
    }

    /// The run failed with this code and one sentence that names the path and holds the given words.
    #[track_caller]
    pub fn fails(self, code: i32, path: &Path, words: &str) -> Run {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        let lines: Vec<_> = self.err.lines().collect();
        assert_eq!(lines.len(), 1, "one sentence, not: {}", self.err);
        assert!(lines[0].contains(&path.display().to_string()), "the path is missing: {}", lines[0]);
        assert!(lines[0].contains(words), "\"{words}\" is missing: {}", lines[0]);
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {}", self.out))
    }
}

/// Runs `syncline` with arguments.
pub fn syncline<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Run {
    called("syncline", arguments)
}

/// Runs the program under another name.
pub fn called<S: AsRef<std::ffi::OsStr>>(name: &str, arguments: &[S]) -> Run {
    Run::new(Command::new(PROGRAM).arg0(name).args(arguments).output().expect("the program starts"))
}

/// A directory of its own for a test, with an image's path in it.
pub struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        Bench { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A new volume of 16 MiB.
    pub fn volume(&self) -> PathBuf {
        let image = self.path("volume.img");
        syncline(&["mkfs", "--quiet", "--size", "16M", image.to_str().expect("UTF-8")]).ok();
        image
    }

    /// A volume with a few files, a directory, a symbolic link and an attribute, closed properly.
    pub fn populated(&self) -> PathBuf {
        let image = self.volume();
        let volume = open(&image);
        volume.create_dir("/dir").expect("mkdir");
        for index in 0..20_usize {
            let path = format!("/dir/file{index}");
            let mut file = volume.create_file(&path).expect("create");
            file.write_all(&pattern(index)).expect("write");
            file.sync_all().expect("sync");
        }
        volume.symlink("file3", "/dir/link").expect("symlink");
        volume.close().expect("close");
        image
    }
}

/// Content of the populated volume's file `index`.
pub fn pattern(index: usize) -> Vec<u8> {
    (0..index * 5000 + 10).map(|at| (at * 7 + index) as u8).collect()
}

/// Whether the populated volume's files are all there and whole.
#[track_caller]
pub fn assert_populated(image: &Path) {
    let volume = open(image);
    for index in 0..20 {
        let path = format!("/dir/file{index}");
        let content = volume.read(&path).expect("read");
        assert!(content == pattern(index), "{path} has other content");
    }
    volume.close().expect("close");
}

/// Opens a volume in this process.
pub fn open(image: &Path) -> Volume {
    Volume::open(image).expect("open the volume")
}

/// Overwrites bytes of a file in place.
pub fn poke(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = File::options().write(true).open(path).expect("open to damage");
    file.write_all_at(bytes, offset).expect("damage");
}

/// Flips one bit of a file.
pub fn flip(path: &Path, offset: u64) {
    let mut content = fs::read(path).expect("read");
    content[offset as usize] ^= 1;
    poke(path, offset, &content[offset as usize..][..1]);
}

/// Says why a test cannot do its work here. Not captured by the harness, so that it can be counted.
pub fn skip(test: &str, why: &str) {
    writeln!(std::io::stderr(), "skipped: {test}: {why}").expect("standard error is open");
}

/// Whether volumes can be mounted here; says so if not.
pub fn can_mount(test: &str) -> bool {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        skip(test, "/dev/fuse cannot be opened; load the fuse module or run where it is allowed");
        return false;
    }
    true
}

/// Makes a block look as if a later version of the format had written it, checksum and all.
pub fn age(path: &Path, block: u64) {
    let content = fs::read(path).expect("read");
    let mut bytes = content[block as usize * 4096..][..4096].to_vec();
    bytes[16..18].copy_from_slice(&3_u16.to_le_bytes());
    let sum = syncline_format::checksum(&bytes[16..]);
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    poke(path, block * 4096, &bytes);
}
