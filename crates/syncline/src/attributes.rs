//! Attributes and extended attributes of what a path leads to.

use crate::metadata::Metadata;
use crate::path::again_if_stale;
use crate::volume::Volume;
use crate::{Error, SetAttr, SetXattr};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

impl Volume {
    /// Attributes of what a path leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        Ok(Metadata::new(self.existing(path.as_ref(), true)?))
    }

    /// Attributes of what a path names, be it a symbolic link.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        Ok(Metadata::new(self.existing(path.as_ref(), false)?))
    }

    /// Sets the permission bits of what a path leads to.
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        self.set_attributes(path, &SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    /// Changes attributes of what a path leads to.
    pub fn set_attributes(&self, path: impl AsRef<Path>, set: &SetAttr) -> io::Result<()> {
        self.change(path.as_ref(), true, set)
    }

    /// Changes attributes of what a path names, also of a symbolic link itself.
    pub fn set_symlink_attributes(&self, path: impl AsRef<Path>, set: &SetAttr) -> io::Result<()> {
        self.change(path.as_ref(), false, set)
    }

    fn change(&self, path: &Path, follow: bool, set: &SetAttr) -> io::Result<()> {
        let shared = self.shared();
        Ok(again_if_stale(|| {
            let attr = self.existing(path, follow)?;
            shared.fs()?.attributes().setattr(&shared.context, attr.inode, set, None).map(drop)
        })?)
    }

    /// An extended attribute's value; `None` if there is none of that name.
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<Option<Vec<u8>>> {
        let value = again_if_stale(|| {
            let attr = self.existing(path.as_ref(), true)?;
            self.shared().fs()?.attributes().xattr(
                &self.shared().context,
                attr.inode,
                name.as_ref().as_bytes(),
            )
        });
        match value {
            Ok(value) => Ok(Some(value)),
            Err(Error::NoAttribute) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets an extended attribute. The name starts with `user.`, `trusted.` or `security.`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> io::Result<()> {
        self.set_xattr_with(path, name, value, SetXattr::Any)
    }

    /// Sets an extended attribute only if there is none of that name, or only if there is one. Errors:
    /// `AlreadyExists`, or ENODATA.
    pub fn set_xattr_with(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
        how: SetXattr,
    ) -> io::Result<()> {
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref());
        Ok(again_if_stale(|| {
            let attr = self.existing(path.as_ref(), true)?;
            self.shared().fs()?.attributes().set_xattr(&self.shared().context, attr.inode, name, value, how)
        })?)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(again_if_stale(|| {
            let attr = self.existing(path.as_ref(), true)?;
            self.shared().fs()?.attributes().remove_xattr(
                &self.shared().context,
                attr.inode,
                name.as_ref().as_bytes(),
            )
        })?)
    }

    /// Names of all extended attributes.
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let names = again_if_stale(|| {
            let attr = self.existing(path.as_ref(), true)?;
            self.shared().fs()?.attributes().list_xattrs(&self.shared().context, attr.inode)
        })?;
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
    }
}
