//! Signals that ask a command to end, for commands that have something to clear away first.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

/// The first one that came; 0 for none.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// From now on SIGINT, SIGTERM and SIGHUP do not end the process: the first one is kept for [`received`]. The second
/// one ends it at once. One that the process was started to ignore (nohup) stays ignored. To be called while the
/// process has one thread.
pub fn watch() -> io::Result<()> {
    // SAFETY: the sets and the action are plain data that is initialised before it is used, and the pointers are valid.
    let (waited_for, failed) = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let mut action: libc::sigaction = std::mem::zeroed();
            let asked = libc::sigaction(signal, std::ptr::null(), &mut action);
            if asked == 0 && action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut set, signal);
            }
        }
        let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        (set, failed)
    };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    // Never joined: it ends with the process.
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        loop {
            let mut signal = 0;
            // SAFETY: the set is initialised, and `signal` is valid for writing.
            if unsafe { libc::sigwait(&waited_for, &mut signal) } != 0 {
                continue;
            }
            if RECEIVED.swap(signal, Ordering::Relaxed) != 0 {
                std::process::exit(128 + signal);
            }
        }
    })?;
    Ok(())
}

/// The signal that asks this process to end, if one has come since [`watch`].
pub fn received() -> Option<i32> {
    Some(RECEIVED.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
}
