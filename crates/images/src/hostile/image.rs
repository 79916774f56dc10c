//! Target of whole volumes: an image with changes is checked, opened read-only and writable, walked, changed, closed,
//! checked again and repaired.
//!
//! Besides not panicking, the check and the engine must agree: what the check calls sound can be used, and is sound
//! afterwards; what repair has repaired, too.

use super::exercise::{self, Used};
use super::input::Input;
use super::patch;
use super::steps::Steps;
use crate::packed::SparseImage;
use crate::session;
use std::sync::Arc;
use syncline_check::{CheckOptions, Code, Report, Severity, check};
use syncline_device::MemoryDevice;

pub fn image(input: &[u8]) {
    let mut input = Input::new(input);
    try_out(&patch::build(&mut input));
}

/// The same of a volume of version 2.
pub fn trees(input: &[u8]) {
    let mut input = Input::new(input);
    try_out(&patch::build_forest(&mut input));
}

/// Checks an image, uses it read-only and writable, and repairs a copy of it.
pub fn try_out(image: &SparseImage) {
    let sound = look(&image.device(), false).is_some_and(|report| report.is_sound());
    let read_only = use_image(image, true);
    let writable = use_image(image, false);
    if sound {
        assert_eq!(read_only, Used::Well, "the check calls this volume sound: reading");
        assert_eq!(writable, Used::Well, "the check calls this volume sound: writing");
    }
    check_and_repair(image);
}

fn look(device: &Arc<MemoryDevice>, repair: bool) -> Option<Report> {
    check(&Steps::new(device.clone()), CheckOptions::default().repair(repair).data(true).all(true)).ok()
}

fn use_image(image: &SparseImage, read_only: bool) -> Used {
    let device = image.device();
    let used = match session::open(Steps::over(device.clone()), read_only, 3) {
        Ok(fs) => exercise::exercise(&fs, read_only),
        Err(error) => return exercise::judge(&error),
    };
    if used == Used::Well && !read_only {
        let after = look(&device, false).expect("a volume that was just closed can be checked");
        // One that begins at the end of a counter's range is a little beyond it then.
        let mut errors = after.left.keys().filter(|code| code.severity() >= Severity::Error);
        assert!(
            errors.all(|&code| code == Code::SuperblockExhausted)
                || !look(&image.device(), false).is_some_and(|before| before.is_sound()),
            "the engine has damaged a sound volume: {:#?}",
            after.findings
        );
    }
    used
}

/// Repairs a copy; what is repaired can be used.
pub fn check_and_repair(image: &SparseImage) {
    let device = image.device();
    let Some(report) = look(&device, true) else { return };
    if !report.repaired || !report.is_sound() {
        return;
    }
    let repaired = SparseImage::of(&device);
    assert_eq!(use_image(&repaired, false), Used::Well, "repaired: {:#?}", report.findings);
}
