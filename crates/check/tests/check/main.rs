//! Every code of the check has a test that creates its damage, with images written by [`image`].

mod advice;
mod bitmaps;
mod example;
mod forest;
mod forest_log;
mod forest_lost;
mod grove;
mod hostile;
mod image;
mod journal;
mod lost;
mod names;
mod objects;
mod repair;
mod superblocks;
mod trees;

use syncline_check::Code;

#[test]
fn a_sound_volume_has_no_findings() {
    let device = image::Image::populated().build();
    let report = image::expect(&device, &[]);
    assert_eq!(report.exit_code(), 0);
    assert_eq!(report.totals.directories, 2);
    assert_eq!(report.totals.data_blocks_verified, 23);
}

#[test]
fn every_code_has_a_test_that_names_it() {
    let sources = [
        include_str!("bitmaps.rs"),
        include_str!("forest.rs"),
        include_str!("forest_lost.rs"),
        include_str!("journal.rs"),
        include_str!("lost.rs"),
        include_str!("names.rs"),
        include_str!("objects.rs"),
        include_str!("superblocks.rs"),
        include_str!("trees.rs"),
    ]
    .concat();
    let missing: Vec<_> =
        Code::ALL.iter().filter(|code| !sources.contains(&format!("Code::{code:?}"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
