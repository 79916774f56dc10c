//! On whose behalf an operation runs.

/// The caller of an operation: owner of what it creates, and what the rules for set-id bits depend on.
///
/// The engine checks no permissions by it: the kernel does that for a mount, and an embedding program is one user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Context {
    /// Effective user; 0 counts as privileged.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits to leave out of new files, unless their directory has a default ACL.
    pub umask: u32,
    /// Process, for diagnostics only.
    pub pid: u32,
}

impl Context {
    /// The superuser with an empty umask.
    pub fn root() -> Context {
        Context::default()
    }

    /// Whether privileges that root has apply.
    pub(crate) fn is_privileged(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is a member of the group.
    pub(crate) fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
