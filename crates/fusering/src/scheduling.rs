//! How the scheduler treats a thread: its class, its nice value, its slice.

use std::io;

const NICE_MAX: i32 = 19;

/// Of one thread.
#[derive(Debug, Clone, Copy)]
pub struct Scheduling(libc::sched_attr);

impl Scheduling {
    /// The calling thread's.
    ///
    /// Errors: those of sched_getattr(2); a sandbox may forbid it.
    pub fn of_this_thread() -> io::Result<Scheduling> {
        Scheduling::of(0)
    }

    /// That of the process' first thread: what its administrator has chosen.
    fn of_process() -> io::Result<Scheduling> {
        // A process' number is that of its first thread.
        Scheduling::of(std::process::id())
    }

    fn of(thread: u32) -> io::Result<Scheduling> {
        // SAFETY: all zeros are valid attributes.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of_val(&attributes);
        // SAFETY: the kernel writes at most `size` bytes.
        match unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) } {
            0 => Ok(Scheduling(attributes)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether it is of the usual class, SCHED_OTHER, and not of one that somebody has chosen.
    pub fn is_usual(&self) -> bool {
        self.0.sched_policy == libc::SCHED_OTHER as u32
    }

    /// Whether it is of class SCHED_IDLE.
    pub fn is_idle(&self) -> bool {
        self.0.sched_policy == libc::SCHED_IDLE as u32
    }

    /// The same in class SCHED_IDLE.
    #[must_use]
    pub fn idle(self) -> Scheduling {
        Scheduling(libc::sched_attr { sched_policy: libc::SCHED_IDLE as u32, ..self.0 })
    }

    /// The same in class SCHED_BATCH, and so much nicer: it wakes up behind others, and gets little where others want
    /// all, but something.
    #[must_use]
    pub fn behind(self, nicer: i32) -> Scheduling {
        let sched_nice = (self.0.sched_nice + nicer).min(NICE_MAX);
        Scheduling(libc::sched_attr { sched_policy: libc::SCHED_BATCH as u32, sched_nice, ..self.0 })
    }

    /// Its nice value.
    pub fn nice(&self) -> i32 {
        self.0.sched_nice
    }

    /// How long it wants to run at a time, in nanoseconds; 0 on kernels that do not tell.
    pub fn slice_ns(&self) -> u64 {
        self.0.sched_runtime
    }

    /// The same with another slice; 0 asks for what everybody has. Kernels before 6.12 ignore it.
    #[must_use]
    pub fn with_slice_ns(self, nanoseconds: u64) -> Scheduling {
        Scheduling(libc::sched_attr { sched_runtime: nanoseconds, ..self.0 })
    }

    /// Makes it the calling thread's.
    ///
    /// Errors: those of sched_setattr(2).
    pub fn apply(&self) -> io::Result<()> {
        // SAFETY: the structure says its own size; 0 is the calling thread.
        match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const self.0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Gives the calling thread the class of the process, if it is of SCHED_IDLE because the thread that started it was for
/// a while (threads that answer are). To be called first in a thread that somebody waits for.
pub fn leave_inherited_class() {
    let leave = || {
        let (own, process) = (Scheduling::of_this_thread()?, Scheduling::of_process()?);
        if own.is_idle() && !process.is_idle() {
            Scheduling(libc::sched_attr { sched_policy: process.0.sched_policy, ..own.0 }).apply()?;
        }
        io::Result::Ok(())
    };
    if let Err(error) = leave() {
        tracing::debug!(%error, "a thread keeps the class of the one that started it");
    }
}
