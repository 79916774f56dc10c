//! Why the demo could not go on, or what it found.

use std::io;
use std::path::PathBuf;
use syncline_check::CheckError;
use syncline_cli::ProgramError;
use syncline_device::OpenError;
use syncline_fuse::MountError;

/// Each is one sentence.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{}: {source}", .path.display())]
    Check { path: PathBuf, source: CheckError },
    #[error("{}: no volume could be made: {source}", .path.display())]
    Format { path: PathBuf, source: syncline::Error },
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
    #[error("cannot print: {0}")]
    Print(io::Error),
    #[error("{0}")]
    Demo(String),
}

impl Failure {
    /// For `map_err`: wraps an I/O error with what was being done.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
        let doing = doing.into();
        move |source| Failure::Io { doing, source }
    }
}

impl From<Failure> for ProgramError {
    fn from(failure: Failure) -> ProgramError {
        match &failure {
            Failure::Print(source) => ProgramError::unprinted(&failure, source),
            _ => ProgramError::failed(&failure),
        }
    }
}
