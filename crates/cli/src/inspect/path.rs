//! From a path to the number of its inode and back, by the directories of the last checkpoint.
//!
//! Names are compared one by one instead of looked up by their hash, so that an entry in the wrong place is found as
//! well.

use super::tree::{Step, Walk};
use super::{Inspection, printing};
use crate::error::Failure;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use syncline_format::item::DirentItem;
use syncline_format::{Key, Kind, ObjectNo, TreeId};

const ROOT: ObjectNo = ObjectNo(1);
/// Directories above an inode: what is deeper, or in a circle on a damaged volume, has no path here.
const DEPTH_MAX: usize = 1024;
/// Names of one inode that are told.
const NAMES_MAX: usize = 16;

/// The names of all inodes. Of one without a name nothing is told: it is an orphan, or its directory is damaged.
#[derive(Debug, Default)]
pub(super) struct Paths(HashMap<ObjectNo, Vec<(ObjectNo, Vec<u8>)>>);

impl Paths {
    /// Reads all directories of the last checkpoint.
    pub(super) fn read(inspection: &Inspection<'_>) -> Result<Paths, Failure> {
        let superblock = inspection.superblocks.require(&inspection.arguments.path)?;
        let mut paths = Paths::default();
        let mut walk = Walk::new(inspection.device(), superblock, Key::MIN, Key::MAX);
        let mut visit = |step: Step<'_>| {
            if let Step::Item { key, value, .. } = step {
                paths.add(key, value);
            }
            Ok(())
        };
        walk.main_tree(&mut visit).map_err(printing)?;
        Ok(paths)
    }

    /// Takes an item of the main tree, if it is a name. One that the journal puts in place of another comes first.
    pub(super) fn add(&mut self, key: Key, value: &[u8]) {
        if key.kind != Kind::Dirent {
            return;
        }
        let Ok(dirent) = DirentItem::decode(value) else { return };
        let names = self.0.entry(dirent.inode).or_default();
        let name = (key.object, dirent.name.to_vec());
        if !names.contains(&name) {
            names.insert(0, name);
            names.truncate(NAMES_MAX);
        }
    }

    /// A path to an inode.
    pub(super) fn path(&self, object: ObjectNo) -> Option<String> {
        if object == ROOT {
            return Some("/".to_owned());
        }
        self.0.get(&object)?.iter().find_map(|name| self.path_of(name))
    }

    /// All paths to an inode, up to [`NAMES_MAX`].
    pub(super) fn paths(&self, object: ObjectNo) -> Vec<String> {
        match object {
            ROOT => vec!["/".to_owned()],
            _ => self.0.get(&object).into_iter().flatten().filter_map(|name| self.path_of(name)).collect(),
        }
    }

    fn path_of(&self, name: &(ObjectNo, Vec<u8>)) -> Option<String> {
        let mut names = vec![name];
        while let Some((directory, _)) = names.last().filter(|(directory, _)| *directory != ROOT) {
            names.push(self.0.get(directory)?.first()?);
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        let names = names.iter().rev().map(|(_, name)| format!("/{}", String::from_utf8_lossy(name)));
        Some(names.collect())
    }

    /// A path to what an item of a tree belongs to.
    pub(super) fn path_in(&self, tree: TreeId, object: ObjectNo) -> Option<String> {
        (tree == TreeId::MAIN).then(|| self.path(object)).flatten()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[(u64, u64, &str)]) -> Paths {
        let mut paths = Paths::default();
        for (inode, directory, name) in names {
            let names = paths.0.entry(ObjectNo(*inode)).or_default();
            names.push((ObjectNo(*directory), name.as_bytes().to_vec()));
        }
        paths
    }

    #[test]
    fn an_inode_has_the_paths_that_lead_to_the_root_and_no_others() {
        let paths = named(&[
            (2, 1, "dir"),
            (3, 2, "file"),
            (3, 1, "link"),
            (4, 9, "in a lost directory"),
            (5, 6, "circle"),
            (6, 5, "circle"),
        ]);
        assert_eq!(paths.paths(ObjectNo(3)), ["/dir/file", "/link"]);
        assert_eq!(paths.path(ObjectNo(1)).as_deref(), Some("/"));
        for lost in [4, 5, 7] {
            assert_eq!(paths.path(ObjectNo(lost)), None, "{lost}");
            assert!(paths.paths(ObjectNo(lost)).is_empty(), "{lost}");
        }
        assert_eq!(paths.path_in(TreeId::ROOT, ObjectNo(3)), None, "not an inode");
    }
}
