//! Sets of flags as the kernel passes them: newtypes over an integer, with unknown bits kept.

/// Defines a set of flags: `bits! { /// doc  pub struct Name: u32 { /// doc  A = 1 << 0; } }`.
macro_rules! bits {
    ($(#[$meta:meta])* pub struct $name:ident: $int:ty { $($(#[$flag_meta:meta])* $flag:ident = $value:expr;)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash, Default,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$flag_meta])* pub const $flag: $name = $name($value);)*

            /// The empty set.
            pub const fn empty() -> $name {
                $name(0)
            }

            /// The bits as the kernel has them; unknown ones are among them.
            pub const fn bits(self) -> $int {
                self.0
            }

            /// Whether all flags of `other` are set.
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any flag of `other` is set.
            pub const fn intersects(self, other: $name) -> bool {
                self.0 & other.0 != 0
            }

            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            pub const fn union(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }

            pub const fn intersection(self, other: $name) -> $name {
                $name(self.0 & other.0)
            }

            /// The flags of `self` that are not in `other`.
            pub const fn difference(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = $name;
            fn bitor(self, other: $name) -> $name {
                self.union(other)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: $name) {
                self.0 |= other.0;
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut rest = self.0;
                let mut list = f.debug_set();
                $(
                    if rest & $value == $value {
                        list.entry(&format_args!("{}", stringify!($flag)));
                        rest &= !$value;
                    }
                )*
                if rest != 0 {
                    list.entry(&format_args!("{rest:#x}"));
                }
                list.finish()
            }
        }
    };
}

pub(crate) use bits;

#[cfg(test)]
mod tests {
    bits! {
        /// For the test.
        pub struct Letters: u32 {
            A = 1 << 0;
            B = 1 << 1;
        }
    }

    #[test]
    fn sets_are_united_and_parted() {
        let both = Letters::A | Letters::B;
        assert!(both.contains(Letters::A) && both.intersects(Letters::B));
        assert_eq!(both.difference(Letters::A), Letters::B);
        assert_eq!(both.intersection(Letters(4)), Letters::empty());
        assert!(Letters::empty().is_empty());
    }

    #[test]
    fn unknown_bits_are_kept_and_shown() {
        let odd = Letters(0x101);
        assert_eq!(odd.bits(), 0x101);
        assert_eq!(format!("{odd:?}"), "{A, 0x100}");
    }
}
