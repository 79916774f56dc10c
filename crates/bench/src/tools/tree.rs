//! Work on a tree of files that nobody syncs file by file: unpacking, copying, searching and removing it, as a
//! distribution's own programs do it. What is unpacked, copied or removed is on the device when the clock stops
//! (syncfs(2)).
//!
//! The tree is made once beside the device's file. An operation is a file.

use super::{place, run};
use crate::measure::Outcome;
use crate::workload::Context;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Files of a directory; the directories lie two deep.
const FILES_OF_A_DIRECTORY: u64 = 16;
/// Sizes of source files: most are small, one in 32 is large. Their mean is 13.4 KiB.
const BYTES: [u64; 32] = {
    let kib = [
        1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 6, 7, 8, 8, 9, 10, 11, 12, 14, 16, 19, 22, 28, 38,
        52, 120,
    ];
    let mut bytes = [0; 32];
    let mut index = 0;
    while index < 32 {
        // No whole pages.
        bytes[index] = kib[index] * 1024 - 37;
        index += 1;
    }
    bytes
};
const ARCHIVE: &str = "tree.tar";
const PACKAGE: &str = "syncline-bench-tree";

pub(crate) fn untar(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    measured(context, "tar", |_| Ok(()), |at| unpack(context, at))
}

pub(crate) fn copy(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    measured(context, "cp", |at| unpack(context, at), copy_tree)
}

pub(crate) fn find(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let find = |at: &Path| run(Command::new("find").arg(at.join("tree")).args(["-size", "+1k"])).map(drop);
    measured(context, "find", |at| unpacked_and_cold(context, at), find)
}

pub(crate) fn grep_cold(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    measured(context, "grep", |at| unpacked_and_cold(context, at), |at| grep(&at.join("tree")))
}

/// Behind a copy, whose pages a kernel's file system still caches.
pub(crate) fn grep_warm(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let prepare = |at: &Path| unpack(context, at).and_then(|()| copy_tree(at));
    measured(context, "grep", prepare, |at| grep(&at.join("copy")))
}

pub(crate) fn remove(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let remove = |at: &Path| {
        run(Command::new("rm").arg("-rf").arg(at.join("tree")))?;
        sync_all_of(at)
    };
    measured(context, "rm", |at| unpack(context, at), remove)
}

/// A package that holds the tree, unpacked into a root of its own.
pub(crate) fn dpkg(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let prepare = |at: &Path| {
        for directory in ["info", "updates", "triggers"] {
            fs::create_dir_all(at.join("root/var/lib/dpkg").join(directory))?;
        }
        fs::write(at.join("root/var/lib/dpkg/status"), "")?;
        package(context).map(drop)
    };
    let unpack = |at: &Path| {
        let mut dpkg = Command::new("dpkg");
        dpkg.args(["--force-not-root", "--log=/dev/null", "--no-triggers"]);
        dpkg.arg(format!("--root={}", at.join("root").display())).arg("--unpack").arg(package(context)?);
        run(&mut dpkg).map(drop)
    };
    measured(context, "dpkg-deb", prepare, unpack)
}

/// Times `work` in the directory under test, behind what prepares it. `program`: without which it is skipped.
fn measured(
    context: &Context<'_>,
    program: &str,
    prepare: impl Fn(&Path) -> io::Result<()>,
    work: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<Outcome> {
    let at = match place(context, program, "of that name") {
        Ok(directory) => directory,
        Err(why) => return Ok(Outcome::skipped(why)),
    };
    archive(context)?;
    match prepare(at) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Ok(Outcome::skipped("the kernel's caches are dropped by root only"));
        }
        prepared => prepared?,
    }
    context.meter.begin()?;
    let start = Instant::now();
    work(at)?;
    let elapsed = start.elapsed();
    context.meter.end()?;
    Ok(Outcome { operations: context.arguments.tree_files, elapsed, ..Outcome::default() })
}

fn unpack(context: &Context<'_>, at: &Path) -> io::Result<()> {
    run(Command::new("tar").arg("-xf").arg(archive(context)?).arg("-C").arg(at))?;
    sync_all_of(at)
}

fn copy_tree(at: &Path) -> io::Result<()> {
    run(Command::new("cp").arg("-a").arg(at.join("tree")).arg(at.join("copy")))?;
    sync_all_of(at)
}

fn unpacked_and_cold(context: &Context<'_>, at: &Path) -> io::Result<()> {
    unpack(context, at)?;
    context.backend.drop_caches()
}

/// For what no file holds; grep says so by its exit code.
fn grep(tree: &Path) -> io::Result<()> {
    let status = Command::new("grep").args(["-r", "-q", "-F", "no file holds this"]).arg(tree).status()?;
    match status.code() {
        Some(1) => Ok(()),
        _ => Err(io::Error::other(format!("grep ended with {status}"))),
    }
}

fn sync_all_of(directory: &Path) -> io::Result<()> {
    let directory = File::open(directory)?;
    // SAFETY: the descriptor is open.
    match unsafe { libc::syncfs(directory.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The archive of a tree of so many files, made where there is none yet.
fn archive(context: &Context<'_>) -> io::Result<PathBuf> {
    let files = context.arguments.tree_files;
    let at = beside(context, files)?;
    let archive = at.join(ARCHIVE);
    if !archive.exists() {
        let tree = at.join("root/tree");
        make_tree(&tree, files)?;
        let unfinished = at.join("unfinished.tar");
        run(Command::new("tar").arg("-cf").arg(&unfinished).arg("-C").arg(at.join("root")).arg("tree"))?;
        fs::rename(&unfinished, &archive)?;
    }
    Ok(archive)
}

/// The package of the same tree.
fn package(context: &Context<'_>) -> io::Result<PathBuf> {
    let at = beside(context, context.arguments.tree_files)?;
    let package = at.join("tree.deb");
    if !package.exists() {
        let root = at.join("root");
        fs::create_dir_all(root.join("DEBIAN"))?;
        let control = format!(
            "Package: {PACKAGE}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\n\
             Description: a tree of files to be unpacked\n"
        );
        fs::write(root.join("DEBIAN/control"), control)?;
        let unfinished = at.join("unfinished.deb");
        // Not compressed: what is measured is the file system.
        run(Command::new("dpkg-deb").args(["-Znone", "--build"]).arg(&root).arg(&unfinished))?;
        fs::rename(&unfinished, &package)?;
    }
    Ok(package)
}

fn beside(context: &Context<'_>, files: u64) -> io::Result<PathBuf> {
    let at = context.arguments.work.join(format!("tree-{files}"));
    fs::create_dir_all(&at)?;
    at.canonicalize()
}

fn make_tree(tree: &Path, files: u64) -> io::Result<()> {
    let mut text = Vec::new();
    for number in 0..files {
        let directory = number / FILES_OF_A_DIRECTORY;
        let directory = tree.join(format!("{:02}/{directory:04}", directory % 31));
        if number % FILES_OF_A_DIRECTORY == 0 {
            fs::create_dir_all(&directory)?;
        }
        text.clear();
        let bytes = BYTES[(number * 13 % 32) as usize] as usize;
        while text.len() < bytes {
            writeln!(
                text,
                "file {number}, line {}: {:016x}",
                text.len(),
                (number + 1).wrapping_mul(0x9E37_79B9)
            )?;
        }
        text.truncate(bytes);
        fs::write(directory.join(format!("{number}.txt")), &text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_as_many_files_as_were_asked_for_of_sizes_of_their_own() {
        let at = tempfile::tempdir().unwrap();
        make_tree(at.path(), 100).unwrap();
        let listed =
            run(Command::new("find").arg(at.path()).args(["-type", "f", "-printf", "%s\n"])).unwrap();
        let sizes: Vec<u64> =
            String::from_utf8(listed.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(sizes.len(), 100);
        let mean = BYTES.iter().sum::<u64>() / 32;
        assert!((13_000..14_500).contains(&mean), "{mean}");
        assert!(sizes.iter().all(|bytes| BYTES.contains(bytes)));
    }
}
