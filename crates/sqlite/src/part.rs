//! [`Part`]: a snapshot or another head of a volume, as names of databases say it.
//!
//! `IMAGE#NAME` is a snapshot, `IMAGE#head/NAME` a head. Neither has a slash in its own name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Stands between the image and what is meant of it.
pub(crate) const MARK: u8 = b'#';
const HEAD: &str = "head/";

/// What is meant of a volume, where that is not the head with which it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Snapshot(String),
    Head(String),
}

impl std::fmt::Display for Part {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Snapshot(name) => write!(out, "snapshot \"{name}\""),
            Part::Head(name) => write!(out, "head \"{name}\""),
        }
    }
}

impl Part {
    /// What an image is called of which this is meant.
    pub(crate) fn of(&self, image: &Path) -> PathBuf {
        let mut name = image.as_os_str().to_owned();
        name.push(OsStr::from_bytes(&[MARK]));
        if let Part::Head(_) = self {
            name.push(HEAD);
        }
        let (Part::Snapshot(own) | Part::Head(own)) = self;
        name.push(own);
        name.into()
    }

    /// The image and the part that a name is made of, if it is made of an image that `is_image` knows.
    pub(crate) fn split(name: &Path, is_image: impl Fn(&Path) -> bool) -> Option<(PathBuf, Part)> {
        let bytes = name.as_os_str().as_bytes();
        let marks = bytes.iter().enumerate().filter(|(_, byte)| **byte == MARK);
        let parted = |at: usize| {
            let image = Path::new(OsStr::from_bytes(&bytes[..at]));
            let own = std::str::from_utf8(&bytes[at + 1..]).ok()?;
            let part = match own.strip_prefix(HEAD) {
                Some(head) => Part::Head(head.to_owned()),
                None => Part::Snapshot(own.to_owned()),
            };
            is_image(image).then(|| (image.to_owned(), part))
        };
        marks.map(|(at, _)| at).find_map(parted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_apart_as_it_was_made() {
        let image = Path::new("/a#b/data.img");
        for part in [Part::Snapshot("s#1".to_owned()), Part::Head("one".to_owned())] {
            assert_eq!(Part::split(&part.of(image), |name| name == image), Some((image.to_owned(), part)));
        }
        assert_eq!(Part::split(image, |_| false), None);
    }
}
