//! From a path to the number of its inode, by the directories of the last checkpoint.
//!
//! Names are compared one by one instead of looked up by their hash, so that an entry in the wrong place is found as
//! well.

use super::tree::{Step, Walk};
use super::{Inspection, printing};
use crate::error::Failure;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use syncline_format::item::DirentItem;
use syncline_format::{Key, Kind, ObjectNo};

const ROOT: ObjectNo = ObjectNo(1);

/// The inode that the path leads to.
pub(super) fn find(inspection: &Inspection<'_>, path: &Path) -> Result<ObjectNo, Failure> {
    let mut above = vec![ROOT];
    for component in path.components() {
        match component {
            Component::Normal(name) => {
                let directory = *above.last().expect("the root directory stays");
                above.push(entry(inspection, directory, name.as_bytes(), path)?);
            }
            Component::ParentDir if above.len() > 1 => drop(above.pop()),
            _ => {}
        }
    }
    Ok(*above.last().expect("the root directory stays"))
}

fn entry(
    inspection: &Inspection<'_>,
    directory: ObjectNo,
    name: &[u8],
    path: &Path,
) -> Result<ObjectNo, Failure> {
    let image = &inspection.arguments.path;
    let superblock = inspection.superblocks.require(image)?;
    let mut found = None;
    let mut walk = Walk::new(
        inspection.device(),
        superblock,
        Key::new(directory, Kind::Dirent, 0),
        Key::new(directory, Kind::Dirent, u64::MAX),
    );
    let mut visit = |step: Step<'_>| {
        if let Step::Item { value, .. } = step
            && let Ok(dirent) = DirentItem::decode(value)
            && dirent.name[..] == *name
        {
            found = Some(dirent.inode);
        }
        Ok(())
    };
    walk.main_tree(&mut visit).map_err(printing)?;
    found.ok_or_else(|| Failure::NoSuchFile {
        what: format!("{}:{}", image.display(), Path::new("/").join(path).display()),
        why: if walk.damaged { "no such name in what is readable" } else { "no such file or directory" },
    })
}
