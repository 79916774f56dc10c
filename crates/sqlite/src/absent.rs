//! [`Absent`]: journals and logs that are known not to lie in the volume.
//!
//! SQLite looks for a journal and for a log before every transaction, and this VFS for the journal once more when
//! SQLite makes one. Almost always there is none. Nobody but this VFS makes names in a volume that it has opened, so
//! what was not there is not there until the VFS makes a file. A volume that was lent has other users, so there
//! nothing is remembered.
//!
//! Locks: `known`, below everything; not held while the volume is looked at.

use parking_lot::Mutex;
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// Names remembered at once: two for each database in use.
const NAMES_MAX: usize = 16;

#[derive(Default)]
struct Known {
    names: Vec<OsString>,
    /// Times that a file was made.
    made: u64,
}

/// What was looked for and not found.
pub(crate) struct Absent {
    remembers: bool,
    known: Mutex<Known>,
}

impl Absent {
    /// For a volume in which only the VFS makes files (`remembers`), or one with other users.
    pub(crate) fn new(remembers: bool) -> Absent {
        Absent { remembers, known: Mutex::default() }
    }

    /// What `look` finds; `None` if nothing is there.
    pub(crate) fn look<T>(&self, path: &Path, look: impl FnOnce() -> io::Result<T>) -> io::Result<Option<T>> {
        let made = {
            let known = self.known.lock();
            if known.names.iter().any(|name| name == path.as_os_str()) {
                return Ok(None);
            }
            known.made
        };
        match look() {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.remember(path, made);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Remembers that there was nothing, unless a file has been made since.
    fn remember(&self, path: &Path, made: u64) {
        let mut known = self.known.lock();
        if !self.remembers || known.made != made {
            return;
        }
        if known.names.len() == NAMES_MAX {
            known.names.clear();
        }
        known.names.push(path.as_os_str().to_owned());
    }

    /// A file may have been made, under whatever names lead to it. To be called when it is there.
    pub(crate) fn note_made(&self) {
        let mut known = self.known.lock();
        known.made += 1;
        known.names.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    #[test]
    fn what_was_not_there_is_not_looked_for_again_until_a_file_is_made() {
        let absent = Absent::new(true);
        let path = Path::new("/db-journal");
        assert_eq!(absent.look(path, nothing).expect("look"), None);
        assert_eq!(absent.look(path, || panic!("it is known") as io::Result<()>).expect("look"), None);
        assert_eq!(absent.look(Path::new("/db-wal"), || Ok(1)).expect("look"), Some(1));
        absent.note_made();
        assert_eq!(absent.look(path, || Ok(2)).expect("look"), Some(2));
    }

    #[test]
    fn a_file_that_is_made_while_it_is_looked_for_is_found_the_next_time() {
        let absent = Absent::new(true);
        let path = Path::new("/db-journal");
        let look = || {
            absent.note_made();
            nothing()
        };
        assert_eq!(absent.look(path, look).expect("look"), None);
        assert_eq!(absent.look(path, || Ok(1)).expect("look"), Some(1));
    }

    #[test]
    fn nothing_is_remembered_of_a_volume_with_other_users_or_of_errors_or_without_bound() {
        let path = Path::new("/db-journal");
        let lent = Absent::new(false);
        assert_eq!(lent.look(path, nothing).expect("look"), None);
        assert_eq!(lent.look(path, || Ok(1)).expect("look"), Some(1));
        let absent = Absent::new(true);
        absent.look(path, || Err::<(), _>(io::ErrorKind::PermissionDenied.into())).expect_err("an error");
        assert_eq!(absent.look(path, || Ok(1)).expect("look"), Some(1));
        for number in 0..10 * NAMES_MAX {
            absent.look(Path::new(&format!("/{number}")), nothing).expect("look");
        }
        assert!(absent.known.lock().names.len() <= NAMES_MAX);
    }
}
