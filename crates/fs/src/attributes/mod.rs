//! [`Attributes`]: owners, modes, times, sizes, flags, extended attributes and access control lists.

use crate::content::Content;
use crate::core::Core;
use crate::removal::Removal;
use crate::shape::Shape;
use crate::writeback::Writeback;
use std::sync::Arc;

pub(crate) mod attr;
pub(crate) mod flags;
pub(crate) mod stored_acl;
pub(crate) mod xattr;

pub use attr::{Attr, Entry, SetAttr, SetTime};
pub use flags::{ExtendedFlags, FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NO_ATIME, FLAG_NO_DUMP};
pub use xattr::SetXattr;

/// Reads and changes what inodes say.
pub struct Attributes {
    pub(crate) core: Arc<Core>,
    pub(crate) content: Arc<Content>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) shape: Arc<Shape>,
    pub(crate) removal: Arc<Removal>,
}

impl Attributes {
    pub(crate) fn new(removal: &Arc<Removal>) -> Attributes {
        Attributes {
            core: removal.core.clone(),
            content: removal.content.clone(),
            writeback: removal.writeback.clone(),
            shape: removal.shape.clone(),
            removal: removal.clone(),
        }
    }
}
