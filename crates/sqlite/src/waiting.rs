//! [`Waiting`]: a database that SQLite has opened and whose volume another process has.
//!
//! SQLite tells nobody how long a connection waits before it is open, and asks for no lock before the first
//! statement. So a database whose volume is in use is opened all the same, after the time of the URI's `timeout`, and
//! its volume is opened when SQLite wants a lock. From then on it is like any other lock that cannot be had: the
//! connection's busy handler decides how long to wait (by `sqlite3_busy_timeout`, or the program's own), and
//! `SQLITE_BUSY` is the end of it. SQLite gives the VFS access to the handler for this purpose
//! (`SQLITE_FCNTL_BUSYHANDLER`).
//!
//! Before its first lock SQLite looks at the header, without depending on what it finds: until then the database is
//! an empty one.

use crate::abi;
use crate::database::Connection;
use crate::error::{Result, VfsError};
use crate::handle;
use crate::volumes;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What SQLite may read without a lock.
const HEADER_BYTES: u64 = 100;
/// Pause between two tries while a database is being opened.
const PAUSE: Duration = Duration::from_millis(10);

/// How long to wait for a volume that is in use.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Patience {
    /// While the database is being opened.
    pub(crate) timeout: Duration,
    /// And then until the first lock, as long as the busy handler says. Not for connections that ask for no locks.
    pub(crate) until_locked: bool,
}

impl Patience {
    /// The end of the time to open; `None` if that is beyond all clocks.
    pub(crate) fn begins(&self) -> Option<Instant> {
        Instant::now().checked_add(self.timeout)
    }
}

/// A connection's busy handler.
#[derive(Clone, Copy)]
pub(crate) struct BusyHandler {
    /// Of two: the function, and its argument. Part of SQLite's pager, which outlives the file.
    pair: *const *mut c_void,
}

// SAFETY: SQLite uses a file, and what belongs to it, from one thread at a time.
unsafe impl Send for BusyHandler {}

impl BusyHandler {
    /// # Safety
    /// `argument` is that of `SQLITE_FCNTL_BUSYHANDLER`, and the handler is used within calls on the same file only.
    pub(crate) unsafe fn new(argument: *mut c_void) -> BusyHandler {
        BusyHandler { pair: argument.cast::<*mut c_void>().cast_const() }
    }

    /// Waits as the handler does; whether to try again.
    fn says_go_on(self) -> bool {
        // SAFETY: the promise of `new`; SQLite documents a function of this type, or null where there is none.
        unsafe {
            let function = std::mem::transmute::<
                *mut c_void,
                Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
            >(*self.pair);
            function.is_some_and(|function| function(*self.pair.add(1)) != 0)
        }
    }
}

/// A database that is not open yet.
pub(crate) struct Waiting {
    // Constant.
    name: Vec<u8>,
    flags: i32,
    until: Option<Instant>,

    pub(crate) busy: Option<BusyHandler>,
}

impl Waiting {
    pub(crate) fn new(name: &[u8], flags: i32, until: Option<Instant>) -> Waiting {
        Waiting { name: name.to_vec(), flags, until, busy: None }
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        self.flags & abi::OPEN_READWRITE != 0
    }

    /// Errors: among others, the volume is still in use.
    pub(crate) fn try_open(&mut self) -> Result<Connection> {
        handle::try_open_database(&self.name, self.flags)
    }

    /// Waits a moment, if there is time left to open it.
    pub(crate) fn pauses(&self) -> bool {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let goes_on = left.is_none_or(|left| !left.is_zero());
        if goes_on {
            std::thread::sleep(left.map_or(PAUSE, |left| left.min(PAUSE)));
        }
        goes_on
    }

    /// Opens it, as soon as the volume is free and for as long as the busy handler has patience; `None` when that is
    /// over.
    pub(crate) fn wait(&mut self) -> Result<Option<Connection>> {
        loop {
            match self.try_open() {
                Err(in_use @ VfsError::InUse { .. }) => {
                    if !self.busy.is_some_and(BusyHandler::says_go_on) {
                        // SQLite itself will say no more than that the database is locked.
                        crate::tell(&in_use);
                        return Ok(None);
                    }
                }
                opened => return opened.map(Some),
            }
        }
    }

    /// What SQLite reads before it asks for a lock: nothing is there yet.
    pub(crate) fn read(&self, offset: u64, into: &[u8]) -> Result<usize> {
        match offset.saturating_add(into.len() as u64) <= HEADER_BYTES {
            true => Ok(0),
            false => Err(self.in_use()),
        }
    }

    /// Why nothing else can be done.
    pub(crate) fn in_use(&self) -> VfsError {
        let image = volumes::split(&self.name).map_or_else(PathBuf::new, |(image, _)| image);
        VfsError::InUse { image }
    }
}
