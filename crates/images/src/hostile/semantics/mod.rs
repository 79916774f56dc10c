//! Target of hostile meaning: a golden image is taken apart, what it says is changed, and it is put together again with
//! every checksum right. So nothing stops the change at the door, and it is the engine that has to.
//!
//! The format's table of ranges ([`syncline_format::range`]) tells where the edges are: a field that is added there
//! is aimed at here without more ado.

mod aim;
mod forest;
mod frame;
mod log;
pub mod model;
mod mutate;
mod tree;

use super::image;
use super::input::Input;
use super::patch::{BASES, FORESTS};
use crate::packed::SparseImage;
use model::Model;
use std::sync::OnceLock;
pub use tree::TreeChange;

/// Changes of one image, at most.
const CHANGES_MAX: u8 = 8;
/// Bytes of items in a leaf, as inputs choose it: a few leaves, or many.
const LEAF_BYTES: [usize; 4] = [14_000, 14_000, 3000, 600];

fn models() -> &'static [Model] {
    static LOADED: OnceLock<Vec<Model>> = OnceLock::new();
    LOADED.get_or_init(|| BASES.iter().map(|name| Model::of(super::patch::base(name))).collect())
}

/// Those of version 2.
fn forests() -> &'static [Model] {
    static LOADED: OnceLock<Vec<Model>> = OnceLock::new();
    LOADED.get_or_init(|| FORESTS.iter().map(|name| Model::of(super::patch::base(name))).collect())
}

/// The image that an input describes: base, leaves, number of changes, changes.
pub fn build(input: &mut Input<'_>) -> SparseImage {
    let models = models();
    let mut model = models[usize::from(input.byte()) % models.len()].clone();
    model.leaf_bytes = LEAF_BYTES[usize::from(input.byte()) % LEAF_BYTES.len()];
    for _ in 0..input.byte() % CHANGES_MAX + 1 {
        let (choice, route) = (usize::from(input.byte()), input.byte());
        model.into_log = route & 3 == 0;
        match route & 0x1c {
            0 | 4 => frame::CHANGES[choice % frame::CHANGES.len()](&mut model, input),
            _ => mutate::CHANGES[choice % mutate::CHANGES.len()](&mut model, input),
        }
    }
    model.seal()
}

/// Builds the image and uses it in every way.
pub fn semantics(input: &[u8]) {
    image::try_out(&build(&mut Input::new(input)));
}

/// The same of a volume with trees.
fn build_forest(input: &mut Input<'_>) -> SparseImage {
    let models = forests();
    let mut model = models[usize::from(input.byte()) % models.len()].clone();
    model.leaf_bytes = LEAF_BYTES[usize::from(input.byte()) % LEAF_BYTES.len()];
    for _ in 0..input.byte() % CHANGES_MAX + 1 {
        let (choice, route) = (usize::from(input.byte()), input.byte());
        model.into_log = route & 3 == 0;
        match route & 0x1c {
            0 => frame::CHANGES[choice % frame::CHANGES.len()](&mut model, input),
            4 | 8 => mutate::CHANGES[choice % mutate::CHANGES.len()](&mut model, input),
            _ => forest::CHANGES[choice % forest::CHANGES.len()](&mut model, input),
        }
    }
    model.seal()
}

/// Builds a volume of version 2 whose trees say what they must not of each other, and uses it in every way.
pub fn forest(input: &[u8]) {
    image::try_out(&build_forest(&mut Input::new(input)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::look;

    #[test]
    fn a_base_that_is_taken_apart_and_put_together_is_as_sound_as_before() {
        let all = models().iter().zip(BASES).chain(forests().iter().zip(FORESTS));
        for (model, name) in all {
            // What its recipe announces is no more than what is found on it as it is.
            let before = look(super::super::patch::base(name)).expect("checks");
            let announced = |code| before.findings.iter().any(|finding| finding.code == code);
            for leaf_bytes in LEAF_BYTES {
                let mut model = model.clone();
                model.leaf_bytes = leaf_bytes;
                let report = look(&model.seal()).expect("checks");
                let errors: Vec<_> = report
                    .findings
                    .iter()
                    .filter(|f| f.severity > syncline_check::Severity::Warning && !announced(f.code))
                    .collect();
                assert!(errors.is_empty(), "{name}: {errors:#?}");
            }
        }
    }

    #[test]
    fn sound_bases_in_leaves_of_any_size_are_used_well() {
        for (model, name) in models().iter().zip(BASES).chain(forests().iter().zip(FORESTS)) {
            for leaf_bytes in LEAF_BYTES {
                println!("{name} {leaf_bytes}");
                let mut model = model.clone();
                model.leaf_bytes = leaf_bytes;
                image::try_out(&model.seal());
            }
        }
    }

    #[test]
    fn the_same_input_makes_the_same_image() {
        for number in 0..20 {
            let bytes = super::super::seeded::input(7, number);
            let (one, other) = (build(&mut Input::new(&bytes)), build(&mut Input::new(&bytes)));
            assert!(one == other, "input {number}");
            let twice = || build_forest(&mut Input::new(&bytes));
            assert!(twice() == twice(), "input {number} of trees");
        }
    }
}
