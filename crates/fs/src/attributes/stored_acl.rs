//! Access control lists as attributes: kept with the mode, inherited.

use crate::acl::{ACCESS_XATTR, ACL_BYTES_MAX, Acl, DEFAULT_XATTR, strip_setgid};
use crate::content::change::{Change, Locked, estimate};
use crate::content::inode::InodeState;
use crate::{Attributes, Context, Error, ObjectNo, Result};
use syncline_format::Key;
use syncline_store::Class;

impl Attributes {
    /// An inode's stored ACL.
    pub(crate) fn stored_acl(&self, number: ObjectNo, name: &[u8]) -> Result<Option<Acl>> {
        match self.stored_xattr(number, name)? {
            Some(value) => {
                let what = "a stored access control list is not valid";
                Acl::parse(&value).map_err(|_| Error::Inconsistent { object: number, what })
            }
            None => Ok(None),
        }
    }

    /// A directory's default ACL, kept in memory once read.
    pub(crate) fn default_acl(&self, number: ObjectNo, state: &mut InodeState) -> Result<Option<Acl>> {
        if state.default_acl.is_none() {
            state.default_acl = Some(self.stored_acl(number, DEFAULT_XATTR)?);
        }
        Ok(state.default_acl.clone().flatten())
    }

    /// Sets or (`None`) removes an ACL; an access ACL sets the mode's permission bits too.
    pub(crate) fn set_acl(
        &self,
        ctx: &Context,
        number: ObjectNo,
        name: &[u8],
        acl: Option<Acl>,
    ) -> Result<()> {
        let inode = self.content.live_inode(number)?;
        let value = acl.as_ref().map(Acl::encode);
        if value.as_ref().is_some_and(|value| value.len() > ACL_BYTES_MAX) {
            return Err(Error::NoSpace);
        }
        let permit = self.writeback.admit(Class::Normal, estimate(1, 2, 1, 300 + ACL_BYTES_MAX))?;
        let mut change = Change::new(&self.content, Locked::new(&[&inode]));
        let is_default = name == DEFAULT_XATTR;
        let now = self.core.clock.now();
        let item = change.item(number);
        if item.is_symlink() {
            return Err(Error::NotSupported);
        }
        crate::attributes::flags::forbid_change(item)?;
        if is_default && !item.is_directory() {
            return if acl.is_some() { Err(Error::AccessDenied) } else { Ok(()) };
        }
        item.changed = now;
        let stored = match &acl {
            Some(acl) if !is_default => {
                item.mode = item.mode & !0o777 | acl.mode_bits();
                strip_setgid(ctx, item);
                !acl.is_minimal()
            }
            Some(_) => true,
            None => false,
        };
        self.replace_xattr(&mut change, number, name, value.filter(|_| stored).as_deref())?;
        let mut locked = change.commit(&self.content, permit)?;
        let state = locked.state_mut(number);
        match is_default {
            true => state.default_acl = Some(acl),
            false => state.has_access_acl = Some(stored),
        }
        Ok(())
    }

    /// Makes a stored access ACL agree with the mode that `change` leaves (after a `chmod`).
    pub(crate) fn follow_mode(&self, change: &mut Change<'_>, number: ObjectNo) -> Result<()> {
        if change.state(number).lacks_xattr(ACCESS_XATTR) {
            return Ok(());
        }
        let mode = change.item(number).mode;
        let stored = self.stored_acl(number, ACCESS_XATTR)?;
        change.locked.state_mut(number).has_access_acl = Some(stored.is_some());
        if let Some(acl) = stored {
            let slot = self.xattr_slot(number, ACCESS_XATTR)?;
            let value =
                crate::attributes::xattr::small_xattr_value(ACCESS_XATTR, acl.with_mode(mode).encode());
            change.batch.put(Key::xattr(number, slot), &value);
        }
        Ok(())
    }
}
