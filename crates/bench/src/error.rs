//! Why a benchmark could not be run.

use std::io;
use std::path::{Path, PathBuf};

/// Each is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("cannot print: {0}")]
    Print(io::Error),
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("there is no system {0}; take engine, syncline, syncline-dev, ext4, xfs, btrfs or dir:PATH")]
    UnknownSystem(String),
    #[error("there is no mechanism {0} to do without; \"syncline bench --list\" shows them")]
    UnknownMechanism(String),
    #[error("none of the workloads {0} shows a mechanism; leave --workloads out to run those that do")]
    ShowsNoMechanism(String),
    #[error("{} has no line {line}; put it where the tables belong", .path.display())]
    NoMark { path: PathBuf, line: &'static str },
    #[error("there is no workload {0}; \"syncline bench --list\" shows them")]
    UnknownWorkload(String),
    #[error(
        "{0} needs root for mkfs, mount and a loop device; run as root, or give --systems engine,dir:PATH"
    )]
    NeedsRoot(String),
    #[error("{} is no directory; create it, or give another one", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} holds results already; give --resume to go on with them, or another file", .0.display())]
    ResultsExist(PathBuf),
    #[error("{} holds no results of this benchmark ({reason}); give another file", .path.display())]
    BadResults { path: PathBuf, reason: String },
    #[error("{} was measured with other settings ({setting}); repeat them, or give another file", .path.display())]
    OtherSettings { path: PathBuf, setting: String },
    #[error("not measured, because they failed (why stands above): {0}; --resume tries them again")]
    Failed(String),
    #[error("this process may not run on CPU {0}, or there is none; give --cpu one of those it may use")]
    NoCpu(usize),
    #[error("--resume needs the file to go on with; give --json FILE")]
    ResumeWithoutFile,
}

impl BenchError {
    /// For `map_err`: an error of one file.
    pub(crate) fn of(path: &Path) -> impl FnOnce(io::Error) -> BenchError {
        let path = path.to_owned();
        move |source| BenchError::File { path, source }
    }

    /// Whether the command line was wrong, in contrast to something that failed.
    pub fn is_usage(&self) -> bool {
        use BenchError::{NoCpu, NoDirectory, ResumeWithoutFile, ShowsNoMechanism};
        use BenchError::{UnknownMechanism, UnknownSystem, UnknownWorkload};
        matches!(
            self,
            UnknownSystem(_)
                | UnknownMechanism(_)
                | UnknownWorkload(_)
                | ShowsNoMechanism(_)
                | NoDirectory(_)
                | ResumeWithoutFile
                | NoCpu(_)
        )
    }
}
