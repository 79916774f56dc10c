//! The demo on a mount: the daemon is a child process, and killing it cuts the power.

use super::files::{self, Place};
use super::ledger::{Acknowledged, Ledger, UntilCut};
use super::{Cost, ROUND, Stage, database};
use crate::error::Failure;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use syncline_fuse::{Mount, MountOptions};

/// How long a mount may take to become live: recovery of a full journal takes seconds.
const LIVE_WITHIN: Duration = Duration::from_secs(60);

/// Whether mounting can be tried at all.
pub(super) fn is_possible() -> bool {
    File::options().read(true).write(true).open("/dev/fuse").is_ok()
}

/// The process that serves the mount.
struct Daemon {
    process: Child,
    mount_point: PathBuf,
}

impl Daemon {
    /// Starts a daemon in the foreground of a child process and waits until the mount is live.
    fn start(stage: &Stage, volatile: bool) -> Result<Daemon, Failure> {
        let program = std::env::current_exe().map_err(Failure::io("cannot find this program"))?;
        let device_of = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
        let below = device_of(&stage.directory);
        let mut command = Command::new(program);
        // What the daemon has to say about recovery is the demo's to say.
        command.env("SYNCLINE_LOG", "warn");
        if volatile {
            command.arg("--volatile");
        }
        command
            .arg("--serve")
            .arg(&stage.image)
            .arg(&stage.mount_point)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut process = command.spawn().map_err(Failure::io("cannot start the mount"))?;
        let deadline = Instant::now() + LIVE_WITHIN;
        while device_of(&stage.mount_point) == below || device_of(&stage.mount_point).is_none() {
            let ended = process.try_wait().map_err(Failure::io("cannot wait for the mount"))?;
            if ended.is_some() || Instant::now() > deadline {
                return Err(Failure::Demo("the mount did not become live".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Daemon { process, mount_point: stage.mount_point.clone() })
    }

    /// Cuts the power. The dead mount is taken away.
    fn kill(mut self) -> Result<(), Failure> {
        self.process.kill().map_err(Failure::io("cannot kill the mount"))?;
        self.process.wait().map_err(Failure::io("cannot wait for the mount"))?;
        Ok(())
    }

    /// Takes the dead mount out of the tree.
    fn clear(mount_point: &Path) -> Result<(), Failure> {
        syncline_fuse::unmount(mount_point, true).map(drop).map_err(Failure::Mount)
    }

    /// Unmounts in an orderly way.
    fn stop(mut self) -> Result<(), Failure> {
        syncline_fuse::unmount(&self.mount_point, false).map_err(Failure::Mount)?;
        self.process.wait().map_err(Failure::io("cannot wait for the mount"))?;
        Ok(())
    }
}

/// Runs both workloads on a mount, kills its daemon in the middle, and records what was acknowledged. Without a journal
/// mode, synced rows of a file stand in for the database.
pub(super) fn work(stage: &Stage, journal_mode: Option<&str>, ledger: &mut Ledger) -> Result<Cost, Failure> {
    let daemon = Daemon::start(stage, true)?;
    let place = Directory(stage.mount_point.clone());
    let (first_row, first_file) = (ledger.rows, ledger.next_file());
    let shared = UntilCut::new(std::mem::take(ledger));
    let acknowledge = |acknowledged: Acknowledged| shared.add(acknowledged);
    let cost = std::thread::scope(|scope| {
        // Both end with the error that the cut brings; which one it is does not matter.
        scope.spawn(|| files::work(&place, first_file, &mut acknowledge.clone()));
        scope.spawn(|| match journal_mode {
            Some(mode) => database::work(&database_path(stage), mode, first_row, &mut acknowledge.clone()),
            None => files::append_rows(&place, first_row, &mut acknowledge.clone()),
        });
        std::thread::sleep(ROUND);
        let cost = statistics(&stage.mount_point);
        shared.cut();
        daemon.kill().map(|()| cost)
    });
    *ledger = shared.into_ledger();
    Daemon::clear(&stage.mount_point)?;
    cost?
}

/// Mounts again, compares, unmounts. Returns how long mounting took and what is wrong.
pub(super) fn verify(
    stage: &Stage,
    sqlite: bool,
    ledger: &mut Ledger,
    started: Instant,
) -> Result<(Duration, Vec<String>), Failure> {
    let daemon = Daemon::start(stage, false)?;
    let ready_after = started.elapsed();
    let place = Directory(stage.mount_point.clone());
    let mut wrong = files::verify(&place, ledger);
    wrong.extend(match sqlite {
        true => database::verify(&database_path(stage), ledger),
        false => files::verify_rows(&place, ledger),
    });
    daemon.stop()?;
    Ok((ready_after, wrong))
}

/// The child: serves the mount until it ends or is killed.
pub(super) fn serve(image: &Path, directory: &Path, volatile: bool) -> Result<ExitCode, Failure> {
    let mut options = MountOptions::default();
    options.volatile = volatile;
    Mount { source: image.to_owned(), directory: directory.to_owned(), options }.serve(|| {})?;
    Ok(ExitCode::SUCCESS)
}

fn statistics(mount_point: &Path) -> Result<Cost, Failure> {
    let text = syncline_fuse::statistics(mount_point)?;
    let figures = serde_json::from_str(&text).map_err(|error| Failure::Io {
        doing: "the mount sent statistics that cannot be read".to_owned(),
        source: error.into(),
    })?;
    Ok(Cost::from_statistics(&figures))
}

fn database_path(stage: &Stage) -> PathBuf {
    stage.mount_point.join("demo.db")
}

/// A mounted directory.
struct Directory(PathBuf);

impl Place for Directory {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.0.join(path))
    }

    fn put(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let mut file = File::create(self.0.join(path))?;
        file.write_all(content)?;
        file.sync_all()
    }

    fn append(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let mut file = File::options().append(true).create(true).open(self.0.join(path))?;
        file.write_all(content)?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))?;
        File::open(self.0.join(to))?.sync_all()
    }

    fn get(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.0.join(path))
    }
}
