//! Mechanisms of the filesystem that a benchmark can do without; the store's are in its crate. Without the cargo
//! feature `ablation` each question is the constant `false`.

use crate::FsOptions;

macro_rules! questions {
    ($($name:ident),*) => {
        impl FsOptions {
            $(
                pub(crate) const fn $name(&self) -> bool {
                    #[cfg(feature = "ablation")]
                    return self.ablation.$name;
                    #[cfg(not(feature = "ablation"))]
                    false
                }
            )*
        }
    };
}

questions!(no_images, forced_names, checkpoint_per_sync);
