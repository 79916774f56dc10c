//! Errors: `-errno` for the caller, and a sentence that stays with the thread.

use libc::c_int;
use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::c_char;
use std::io;
use std::panic::AssertUnwindSafe;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    sentence: Cow<'static, str>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(errno: c_int, sentence: impl Into<Cow<'static, str>>) -> Failure {
        Failure { errno, sentence: sentence.into() }
    }

    pub(crate) fn invalid(sentence: impl Into<Cow<'static, str>>) -> Failure {
        Failure::new(libc::EINVAL, sentence)
    }

    /// A pointer that leads nowhere.
    pub(crate) fn fault(what: &str) -> Failure {
        Failure::new(libc::EFAULT, format!("{what} is NULL"))
    }

    pub(crate) fn panicked() -> Failure {
        Failure::new(
            libc::EIO,
            "the library has met a bug of its own and has stopped the volume; what was synced is safe: close the \
             volume and open it again",
        )
    }

    /// The same, of this path.
    pub(crate) fn of_path(self, path: &std::path::Path) -> Failure {
        Failure { errno: self.errno, sentence: format!("{}: {}", path.display(), self.sentence).into() }
    }

    /// What a callback or a caller gets.
    pub(crate) fn code(&self) -> c_int {
        -self.errno
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let errno = syncline::errno(&error);
        let said = error.to_string();
        // The number is what the call returns.
        let sentence = said.split(" (os error").next().unwrap_or(&said).to_owned();
        Failure::new(errno, sentence)
    }
}

/// What a function returns.
pub(crate) trait Code {
    fn of_error(code: c_int) -> Self;
}

impl Code for c_int {
    fn of_error(code: c_int) -> c_int {
        code
    }
}

impl Code for i64 {
    fn of_error(code: c_int) -> i64 {
        code.into()
    }
}

impl Code for isize {
    fn of_error(code: c_int) -> isize {
        code as isize
    }
}

/// Runs one function of the library: its errors become numbers, and so does a panic.
pub(crate) fn call<C: Code>(function: &'static str, act: impl FnOnce() -> Result<C>) -> C {
    let failure = match std::panic::catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(code)) => return code,
        Ok(Err(failure)) => failure,
        // What belongs to a volume has stopped it further in.
        Err(_) => Failure::panicked(),
    };
    remember(function, &failure);
    C::of_error(failure.code())
}

/// Longest sentence with its NUL; what is longer is cut.
const SENTENCE_BYTES_MAX: usize = 1024;

thread_local! {
    /// In a place of its own, so that a caller who keeps the pointer too long reads another sentence, and no other's
    /// memory. Ends in NUL, and needs no destructor.
    static LAST: Cell<[u8; SENTENCE_BYTES_MAX]> = const { Cell::new([0; SENTENCE_BYTES_MAX]) };
}

#[cold]
fn remember(function: &str, failure: &Failure) {
    let mut sentence = [0; SENTENCE_BYTES_MAX];
    let said = format!("{function}: {}", failure.sentence);
    let last = sentence.len() - 1;
    let cut = said.floor_char_boundary(last);
    sentence[..cut].copy_from_slice(&said.as_bytes()[..cut]);
    LAST.set(sentence);
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_last_error() -> *const c_char {
    LAST.with(|last| last.as_ptr().cast_const().cast())
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
