//! Opens the device of a volume by its name. This is the one place that knows which names there are:
//!
//! | name | device |
//! |---|---|
//! | `nbd://host[:port]/export`, `nbd+unix:///export?socket=/path` | an export of an NBD server ([`syncline_nbd`]) |
//! | `rbd:pool/image` | an image of Ceph ([`syncline_rbd`]) |
//! | anything else | the path of an image file or block device ([`FileDevice`]) |
//!
//! A file whose name begins like an address is named `./nbd:...`. Names are paths, as command lines and programs hold
//! them; they are compared by their text, since a path takes two slashes for one.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline_device::{Device, FileDevice, OpenError, OpenOptions};
use syncline_nbd::NbdDevice;
use syncline_rbd::RbdDevice;

/// The name of a volume's device, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Nbd(syncline_nbd::Address),
    Rbd(syncline_rbd::Address),
}

/// A device that was opened by its name.
#[derive(Clone)]
pub struct Opened {
    device: Arc<dyn Device>,
    file: Option<Arc<FileDevice>>,
    image: Option<Arc<RbdDevice>>,
}

/// Whether a name is an address, and no path.
pub fn is_address(name: impl AsRef<OsStr>) -> bool {
    let name = name.as_ref().to_str();
    name.is_some_and(|name| syncline_nbd::Address::is_one(name) || syncline_rbd::Address::is_one(name))
}

/// Opens a device by its name.
pub fn open(name: impl AsRef<Path>, options: &OpenOptions) -> Result<Opened, OpenError> {
    Source::parse(name)?.open(options)
}

/// Where a volume is mounted, by the name of its device, as far as this mount namespace tells.
pub fn is_mounted(name: impl AsRef<Path>) -> Option<PathBuf> {
    match Source::parse(name).ok()? {
        Source::File(path) => syncline_device::is_mounted(&path),
        address => syncline_device::is_mounted_as(address.name().as_os_str()),
    }
}

impl Source {
    /// # Errors
    /// The name is an address, and a wrong one.
    pub fn parse(name: impl AsRef<Path>) -> Result<Source, OpenError> {
        let name = name.as_ref();
        match name.to_str() {
            Some(url) if syncline_nbd::Address::is_one(url) => {
                Ok(Source::Nbd(syncline_nbd::Address::parse(url)?))
            }
            Some(url) if syncline_rbd::Address::is_one(url) => {
                Ok(Source::Rbd(syncline_rbd::Address::parse(url)?))
            }
            _ => Ok(Source::File(name.to_owned())),
        }
    }

    /// Whether it is an address, and no path.
    pub fn is_address(&self) -> bool {
        !matches!(self, Source::File(_))
    }

    /// The path as it was given; an address in its one canonical form.
    pub fn name(&self) -> PathBuf {
        match self {
            Source::File(path) => path.clone(),
            Source::Nbd(address) => address.to_string().into(),
            Source::Rbd(address) => address.to_string().into(),
        }
    }

    pub fn open(&self, options: &OpenOptions) -> Result<Opened, OpenError> {
        match self {
            Source::File(path) => Ok(Opened::file_device(FileDevice::open(path, options)?)),
            Source::Nbd(_) if options.take_over => Err(OpenError::NothingToTakeOver { path: self.name() }),
            Source::Nbd(address) => Ok(Opened::other(NbdDevice::open(address, options)?)),
            Source::Rbd(address) => {
                let image = Arc::new(RbdDevice::open(address, options)?);
                Ok(Opened { device: image.clone(), file: None, image: Some(image) })
            }
        }
    }
}

impl Opened {
    /// Of an image file or block device that is open.
    pub fn file_device(file: FileDevice) -> Opened {
        let file = Arc::new(file);
        Opened { device: file.clone(), file: Some(file), image: None }
    }

    fn other(device: impl Device) -> Opened {
        Opened { device: Arc::new(device), file: None, image: None }
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub fn into_device(self) -> Arc<dyn Device> {
        self.device
    }

    /// Lets others have the device, for a process that ends without dropping it: the kernel knows nothing of a lock
    /// that is a cluster's. Nothing may be written any more. Locks of the kernel end with the process.
    pub fn release(&self) {
        if let Some(image) = &self.image {
            image.release();
        }
    }

    /// The image file or block device, if it is one.
    pub fn file(&self) -> Option<&FileDevice> {
        self.file.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        for address in ["nbd://h/x", "nbd+unix:///?socket=/s", "rbd:pool/image"] {
            let source = Source::parse(address).expect(address);
            assert!(source.is_address() && is_address(address), "{address}");
            assert_eq!(source.name().as_os_str(), address);
        }
        for path in ["disk.img", "./rbd:pool/image", "/dev/nbd0", "nbd:x", "rbd", ""] {
            assert_eq!(Source::parse(path), Ok(Source::File(path.into())));
            assert!(!is_address(path));
        }
        for wrong in ["nbd://", "nbds://h/", "nbd+vsock://1/", "rbd:image"] {
            assert!(Source::parse(wrong).is_err() && is_address(wrong), "{wrong}");
        }
    }

    #[test]
    fn only_an_image_of_ceph_can_be_taken_over() {
        let image = tempfile::NamedTempFile::new().expect("a file");
        let options = OpenOptions::default().take_over(true);
        for name in [image.path(), Path::new("nbd://127.0.0.1:1/")] {
            let refused = open(name, &options).map(drop);
            assert_eq!(refused, Err(OpenError::NothingToTakeOver { path: name.to_owned() }));
        }
    }

    #[test]
    fn a_file_is_opened_as_a_file() {
        let image = tempfile::NamedTempFile::new().expect("a file");
        image.as_file().set_len(1 << 20).expect("its size");
        let opened = open(image.path(), &OpenOptions::default()).expect("the image");
        assert_eq!((opened.device().blocks(), opened.file().is_some()), (256, true));
        assert!(open("nbd+unix:///?socket=/nonexistent/socket", &OpenOptions::default()).is_err());
    }
}
