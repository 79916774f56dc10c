//! [`Unfinished`]: an image that is being made, under a name that says so.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use syncline_device::is_held;

/// Where an image is made, so that nobody takes half of one for a volume.
pub struct Unfinished {
    path: PathBuf,
    /// Nobody else makes it right now.
    is_mine: bool,
}

impl Unfinished {
    /// For an image of this name. What is left of one whose maker was killed is removed.
    pub fn of(path: &Path) -> Unfinished {
        let mut name = path.as_os_str().to_owned();
        name.push(".restoring");
        let path = PathBuf::from(name);
        // Who makes one right now has it locked, and is told apart by that.
        let unfinished = Unfinished { is_mine: !is_held(&path), path };
        if unfinished.is_mine {
            let _ = std::fs::remove_file(&unfinished.path);
        }
        unfinished
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, durably.
    ///
    /// # Errors
    /// Something has that name, or the folder cannot be written.
    pub fn finish(mut self, path: &Path) -> io::Result<()> {
        // Neither replaces anything. Who has the image open knows it by its new name after the first.
        match renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(&self.path, path)?,
            renamed => {
                renamed?;
                self.is_mine = false;
            }
        }
        drop(self);
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // What cannot be removed says by its name what it is.
        if self.is_mine {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
