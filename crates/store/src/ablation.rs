//! Mechanisms that give way to the published older algorithm, so that a benchmark can show what each is worth.
//!
//! The switches exist with the cargo feature `ablation` only. No program that is shipped has the feature: there each
//! question below is the constant `false`, and the code behind it is not compiled in. Nothing of the contract is
//! weakened by any switch. Each one has one place where it is decided; the last three are the filesystem's.

/// Mechanisms to do without.
#[cfg(feature = "ablation")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ablation {
    /// A force waits for the checkpoint that is being written.
    pub blocked_logging: bool,
    /// The data of a batch is complete before the batch is entered into the tree and logged.
    pub waiting_for_data: bool,
    /// Every batch is a record of its own, written before the next one is.
    pub ordered_records: bool,
    /// Every force writes what was committed up to its LSN and flushes by itself.
    pub no_group_commit: bool,
    /// A record carries only what had to be forced.
    pub no_piggyback: bool,
    /// Data goes to extents, never into the journal.
    pub no_images: bool,
    /// A rename and a link force the journal.
    pub forced_names: bool,
    /// A sync of a file ends with a checkpoint: what a tree without a journal has to do.
    pub checkpoint_per_sync: bool,
}

/// No switches: what is shipped.
#[cfg(not(feature = "ablation"))]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ablation;

macro_rules! questions {
    ($($name:ident),*) => {
        impl Ablation {
            $(
                pub(crate) const fn $name(self) -> bool {
                    #[cfg(feature = "ablation")]
                    return self.$name;
                    #[cfg(not(feature = "ablation"))]
                    false
                }
            )*
        }
    };
}

questions!(blocked_logging, waiting_for_data, ordered_records, no_group_commit, no_piggyback);
