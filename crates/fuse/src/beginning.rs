//! [`Beginning`]: until a volume is open, whoever asked for its mount may still change their mind.
//!
//! Opening a volume that is shipped claims its replica, which fences another machine, and may wait for the store before
//! that. A command that was ended meanwhile must not claim behind its end. So while it opens its daemon looks whether
//! the command is there that waits for it, and whether it was asked to end itself; and ends then.

use crate::confinement::confine;
use parking_lot::Mutex;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Time between two looks, in nanoseconds.
const LOOK_NS: libc::c_long = 20_000_000;

/// The end of a pipe that the command reads from until the volume is mounted, and no end of it is open.
static COMMAND: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Tells which pipe the command reads from.
pub(crate) fn begun_by(pipe: &impl AsFd) {
    *COMMAND.lock() = pipe.as_fd().try_clone_to_owned().ok();
}

/// The command does not wait any more.
fn is_abandoned() -> bool {
    COMMAND.lock().as_ref().is_some_and(|pipe| {
        let mut looked = libc::pollfd { fd: pipe.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one descriptor, which is open, is looked at.
        unsafe { libc::poll(&raw mut looked, 1, 0) > 0 && looked.revents & libc::POLLERR != 0 }
    })
}

/// The looks, until this is dropped.
pub(crate) struct Beginning(Arc<AtomicBool>);

impl Beginning {
    /// `signals` are those that end a daemon, and blocked.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn watch(signals: libc::sigset_t) -> std::io::Result<Beginning> {
        end_if(is_abandoned());
        let is_over = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&is_over);
        let look = move || {
            // The process gives up the same when it has its device, behind the beginning of this thread.
            confine();
            let pause = libc::timespec { tv_sec: 0, tv_nsec: LOOK_NS };
            while !its.load(Ordering::Acquire) {
                // SAFETY: the set is initialised, and the pause is valid.
                let signal = unsafe { libc::sigtimedwait(&signals, std::ptr::null_mut(), &pause) };
                if signal > 0 && its.load(Ordering::Acquire) {
                    // It came too late for this, and is for whoever waits for signals from now on.
                    // SAFETY: a signal for this process.
                    unsafe { libc::kill(libc::getpid(), signal) };
                    return;
                }
                end_if(signal > 0 || is_abandoned() && !its.load(Ordering::Acquire));
            }
        };
        std::thread::Builder::new().name("syncline-begin".to_owned()).spawn(look)?;
        Ok(Beginning(is_over))
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        *COMMAND.lock() = None;
    }
}

/// Nothing is mounted, and nothing of the volume has to be closed: what a claim needs is durable before it is made.
fn end_if(is_to_end: bool) {
    if is_to_end {
        // SAFETY: ends the process, and runs nothing of it.
        unsafe { libc::_exit(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_waits_no_more_is_noticed() {
        let (command, pipe) = std::io::pipe().unwrap();
        assert!(!is_abandoned());
        begun_by(&pipe);
        assert!(!is_abandoned());
        drop(command);
        assert!(is_abandoned());
        *COMMAND.lock() = None;
        assert!(!is_abandoned());
    }
}
