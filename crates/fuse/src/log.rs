//! Where the daemon says what happened to it: a file, the system log, or standard error.
//!
//! A fatal signal is reported from its handler, where only `write` may be called. So the destination is one descriptor
//! that was opened beforehand, and a line goes out by one system call.

use crate::MountError;
use crate::log_line::{KeysAndValues, Value};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use tracing_subscriber::EnvFilter;

/// Facility "daemon", severity "notice", as syslog writes them.
const SYSLOG_PREFIX: &str = "<29>";
const SYSLOG_SOCKET: &str = "/dev/log";
/// Where there is no system log, as in the initial ramdisk and many containers. It takes the same lines, from root.
const KERNEL_LOG: &str = "/dev/kmsg";
/// The kernel's log refuses longer lines, its prefix counted.
const LOG_LINE_BYTES_MAX: usize = 900;
/// Environment variable with a filter, like `debug` or `warn,syncline_fuse=trace`.
const FILTER_VARIABLE: &str = "SYNCLINE_LOG";
const LEVEL_DEFAULT: &str = "info";

static DESTINATION: AtomicI32 = AtomicI32::new(libc::STDERR_FILENO);
static TO_SYSLOG: AtomicBool = AtomicBool::new(false);
/// Set by the first report of a death, so that an abort after a panic is not told twice.
static DYING: AtomicBool = AtomicBool::new(false);

/// Where a daemon's log goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Destination<'a> {
    StandardError,
    File(&'a Path),
    /// The system log, or else the kernel's, or else nowhere.
    System,
}

/// Directs the log, and reports panics and fatal signals to it. For the whole process.
pub(crate) fn install(destination: Destination<'_>) -> Result<(), MountError> {
    match destination {
        Destination::StandardError => {}
        Destination::File(path) => {
            let file = open_file(path);
            let file = file.map_err(|source| MountError::System { what: "opening the log file", source })?;
            direct_to(file.into_raw_fd(), false);
        }
        Destination::System => {
            let socket = UnixDatagram::unbound().and_then(|socket| {
                socket.connect(SYSLOG_SOCKET)?;
                Ok(socket)
            });
            if let Ok(socket) = socket {
                direct_to(socket.into_raw_fd(), true);
            } else if let Ok(kernel) = std::fs::File::options().write(true).open(KERNEL_LOG) {
                direct_to(kernel.into_raw_fd(), true);
            }
        }
    }
    let asked = std::env::var_os(FILTER_VARIABLE).map(|filter| filter.to_string_lossy().into_owned());
    let (filter, wrong) = filter(asked.as_deref());
    let events = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .event_format(KeysAndValues { with_time: !TO_SYSLOG.load(Ordering::Relaxed) })
        .with_writer(|| LogWriter);
    // A subscriber that the program has installed before stays.
    let _ = tracing::subscriber::set_global_default(events.finish());
    if let Some(error) = wrong {
        tracing::warn!(error, "{FILTER_VARIABLE} is not understood, the level is {LEVEL_DEFAULT}");
    }
    report_panics();
    report_fatal_signals()
}

/// The filter that was asked for, else the usual one; and what is wrong with the one that was asked for.
fn filter(asked: Option<&str>) -> (EnvFilter, Option<String>) {
    let usual = || EnvFilter::new(LEVEL_DEFAULT);
    match asked.filter(|filter| !filter.is_empty()).map(EnvFilter::try_new) {
        None => (usual(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (usual(), Some(error.to_string())),
    }
}

/// A regular file, made if need be, or a character device like /dev/null. A FIFO or a terminal that nobody reads from
/// would hold the daemon up with all its users, and another user's link would have it write into any file.
fn open_file(path: &Path) -> io::Result<File> {
    let path = syncline_device::follow_own_links(path).map_err(io::Error::other)?;
    let check = |found: &Metadata| match found.file_type() {
        kind if kind.is_file() || kind.is_char_device() => Ok(()),
        _ => Err(io::Error::other("it is neither a regular file nor a character device")),
    };
    match std::fs::metadata(&path) {
        Ok(found) => check(&found)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Nothing but what leads to open files is left of links, unless somebody has put one there since.
    let follows = if path.starts_with("/proc") { 0 } else { libc::O_NOFOLLOW };
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | follows;
    let file = File::options().append(true).create(true).custom_flags(flags).open(&path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// The descriptor is never closed: a signal handler may use it at any time.
fn direct_to(fd: i32, syslog: bool) {
    DESTINATION.store(fd, Ordering::Relaxed);
    TO_SYSLOG.store(syslog, Ordering::Relaxed);
}

struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if TO_SYSLOG.load(Ordering::Relaxed) {
            let text = String::from_utf8_lossy(line);
            for line in text.trim_end().lines() {
                let line = &line[..line.floor_char_boundary(LOG_LINE_BYTES_MAX)];
                let message = format!("{SYSLOG_PREFIX}syncline[{}]: {line}", std::process::id());
                write_out(message.as_bytes());
            }
        } else {
            write_out(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One system call; safe in a signal handler. A log that cannot be written is no reason to stop.
fn write_out(bytes: &[u8]) {
    // SAFETY: the pointer and length describe `bytes`; the descriptor stays open for the process's life.
    let _ = unsafe { libc::write(DESTINATION.load(Ordering::Relaxed), bytes.as_ptr().cast(), bytes.len()) };
}

/// A panic in any thread ends the daemon: callers get an error at once, and the next mount recovers. A mount that
/// hangs because one of its threads is gone would be worse.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        DYING.store(true, Ordering::Relaxed);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let trace = std::backtrace::Backtrace::force_capture();
        // The trace is lines of its own.
        let text = format!(
            "level=error message=\"internal error, stopping the daemon\" thread={} panic={}\n{trace}\n",
            Value(&name),
            Value(&panic.to_string())
        );
        let _ = io::Write::write(&mut LogWriter, text.as_bytes());
        std::process::abort();
    }));
}

fn report_fatal_signals() -> Result<(), MountError> {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGSYS] {
        // SAFETY: a zeroed sigaction is valid; the handler only calls async-signal-safe functions.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fatal_signal as *const () as usize;
            // Once: raised again by the handler, the signal kills.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_ONSTACK;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        if result != 0 {
            return Err(MountError::last_os("installing a signal handler"));
        }
    }
    Ok(())
}

extern "C" fn on_fatal_signal(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if !DYING.swap(true, Ordering::Relaxed) {
        // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
        let address = unsafe { if info.is_null() { 0 } else { (*info).si_addr() as usize } };
        let mut name = [0_u8; 16];
        // SAFETY: PR_GET_NAME writes at most 16 bytes, NUL included, to the buffer.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        let mut line = Line::default();
        if TO_SYSLOG.load(Ordering::Relaxed) {
            line.push(SYSLOG_PREFIX.as_bytes());
            line.push(b"syncline: ");
        }
        line.push(b"level=error message=\"fatal signal, stopping the daemon; the next mount recovers what was synced\"");
        line.push(b" signal=");
        line.push_number(signal as usize, 10);
        line.push(b" address=0x");
        line.push_number(address, 16);
        line.push(b" thread=\"");
        line.push(name.split(|byte| *byte == 0).next().unwrap_or_default());
        line.push(b"\"\n");
        write_out(&line.bytes[..line.len]);
    }
    // SAFETY: raise is async-signal-safe; the default action is in force again (SA_RESETHAND).
    unsafe { libc::raise(signal) };
}

/// Text put together without allocating.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Line {
    fn default() -> Line {
        Line { bytes: [0; 256], len: 0 }
    }
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        let len = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + len].copy_from_slice(&text[..len]);
        self.len += len;
    }

    fn push_number(&mut self, number: usize, base: usize) {
        let mut digits = [0; 20];
        let mut rest = number;
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b"0123456789abcdef"[rest % base];
            rest /= base;
            if rest == 0 || at == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }
}

/// Redirects the standard streams to /dev/null: a daemon has no terminal.
pub(crate) fn leave_terminal() -> Result<(), MountError> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|source| MountError::System { what: "opening /dev/null", source })?;
    for stream in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: both are open descriptors; dup2 replaces the stream atomically.
        if unsafe { libc::dup2(null.as_raw_fd(), stream) } < 0 {
            return Err(MountError::last_os("redirecting the standard streams"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_levels_of_modules_and_a_wrong_one_is_told() {
        for (asked, taken) in [
            (None, "info"),
            (Some(""), "info"),
            (Some("debug"), "debug"),
            (Some("warn,syncline_fuse=trace"), "syncline_fuse=trace,warn"),
        ] {
            let (filter, wrong) = filter(asked);
            assert_eq!((filter.to_string().as_str(), wrong), (taken, None), "{asked:?}");
        }
        let (filter, wrong) = filter(Some("syncline_fuse=loud"));
        assert_eq!(filter.to_string(), "info");
        assert!(wrong.is_some());
    }

    #[test]
    fn numbers_are_written_in_both_bases_and_long_text_is_cut() {
        let mut line = Line::default();
        line.push_number(0, 10);
        line.push(b" ");
        line.push_number(0xdead_beef, 16);
        assert_eq!(&line.bytes[..line.len], b"0 deadbeef");
        line.push(&[b'x'; 400]);
        assert_eq!(line.len, 256);
    }
}
