//! Paths that lead over other users' symbolic links.
//!
//! Who names a path means what it leads to when they look. A link that belongs to somebody else leads to something
//! else a moment later: root, who is asked to format or mount an image in a user's directory, would write wherever
//! that user likes. So links are followed that are root's or the caller's own, and no others.
//!
//! What a directory of somebody else holds can still be replaced by its owner. Nobody can have it lead to what they
//! could not name there themselves: a hard link to a file of others is the kernel's business
//! (`fs.protected_hardlinks`).

use crate::{OpenError, OpenStep};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Links of one path, as the kernel bounds them.
const LINKS_MAX: usize = 40;

/// Files of users that a user namespace does not know seem to be this one's (`/proc/sys/kernel/overflowuid`).
const OVERFLOW_UID: u32 = 65534;

/// The path with its symbolic links followed; as it is where there are none. What does not exist is left as it is,
/// for whoever opens it to tell; so are the links in /proc, which lead to open files.
///
/// Errors: `ForeignLink`.
pub fn follow_own_links(path: &Path) -> Result<PathBuf, OpenError> {
    let knows_all_users = knows_all_users();
    let own_uid = rustix::process::geteuid().as_raw();
    follow(path, |uid| uid == 0 || uid == own_uid || uid == OVERFLOW_UID && !knows_all_users)
}

fn follow(path: &Path, is_trusted: impl Fn(u32) -> bool) -> Result<PathBuf, OpenError> {
    let failed = |error: io::Error| OpenError::Io {
        step: OpenStep::Open,
        path: path.to_owned(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    };
    let mut left: VecDeque<OsString> = components(path);
    let mut followed = PathBuf::new();
    let mut links = 0;
    while let Some(next) = left.pop_front() {
        let here = followed.join(&next);
        let found = match std::fs::symlink_metadata(&here) {
            Ok(found) if found.is_symlink() && !here.starts_with("/proc") => found,
            // Whatever is wrong with it is told by the open.
            _ => {
                followed = here;
                continue;
            }
        };
        if !is_trusted(found.uid()) {
            return Err(OpenError::ForeignLink { path: path.to_owned(), link: here, owner: found.uid() });
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(failed(io::Error::from_raw_os_error(libc::ELOOP)));
        }
        let target = std::fs::read_link(&here).map_err(failed)?;
        for component in components(&target).into_iter().rev() {
            left.push_front(component);
        }
    }
    Ok(if links == 0 { path.to_owned() } else { followed })
}

/// `/` and `..` are components like others: joined to a path they do what they stand for.
fn components(path: &Path) -> VecDeque<OsString> {
    let is_step = |component: &Component<'_>| *component != Component::CurDir;
    path.components().filter(is_step).map(|component| component.as_os_str().to_owned()).collect()
}

/// Whether every user has a number here: so it is but in a user namespace that maps some only.
fn knows_all_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.is_empty() || map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn own_links_are_followed_anywhere_in_a_path_and_foreign_ones_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let at = |name: &str| base.join(name);
        std::fs::create_dir_all(at("real/inner")).unwrap();
        std::fs::write(at("real/inner/image"), "x").unwrap();
        symlink("real", at("directory")).unwrap();
        symlink("../image", at("real/inner/up")).unwrap();
        symlink(at("directory/inner/image"), at("far")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let own = std::fs::symlink_metadata(at("far")).unwrap().uid();
        for (path, leads_to) in [
            ("real/inner/image", "real/inner/image"),
            ("directory/inner/image", "real/inner/image"),
            ("far", "real/inner/image"),
            ("directory/inner/up", "real/inner/../image"),
            ("directory/missing", "real/missing"),
        ] {
            assert_eq!(follow(&at(path), |uid| uid == own).unwrap(), at(leads_to), "{path}");
            let foreign = follow(&at(path), |_| false);
            match path.starts_with("real") {
                true => assert_eq!(foreign.unwrap(), at(path)),
                false => {
                    assert!(matches!(foreign, Err(OpenError::ForeignLink { .. })), "{path}: {foreign:?}")
                }
            }
        }
        assert_eq!(follow(&at("loop"), |_| true).unwrap_err().errno(), libc::ELOOP);
        assert_eq!(
            follow(Path::new("image"), |_| false).unwrap(),
            Path::new("image"),
            "nothing is made absolute"
        );
    }
}
