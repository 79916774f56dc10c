//! The example looks at an image as it says.

use crate::image::Image;
use std::path::Path;
use std::process::Command;
use syncline_device::Device;
use syncline_format::{BLOCK_BYTES, BlockNo, ObjectNo};

/// Runs the example, which cargo builds with the tests; returns its exit code and what it prints.
fn look(image: &Path) -> (Option<i32>, String) {
    let own = std::env::current_exe().expect("a test knows its path");
    let example = own.ancestors().nth(2).expect("tests lie in deps").join("examples/look");
    let output = Command::new(&example).arg(image).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    (output.status.code(), String::from_utf8(output.stdout).expect("UTF-8"))
}

fn save(device: &dyn Device, to: &Path) {
    let mut bytes = vec![0; device.blocks() as usize * BLOCK_BYTES];
    device.read(BlockNo(0), &mut bytes).expect("read");
    std::fs::write(to, bytes).expect("write");
}

#[test]
fn the_example_tells_a_sound_volume_from_a_damaged_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    save(&Image::populated().build(), &image);
    let (code, said) = look(&image);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("sound: ") && said.ends_with(" inodes, 0 errors\n"), "{said}");
}

#[test]
fn the_example_names_what_is_damaged() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("image");
    let mut image = Image::populated();
    let file = image.add_file(ObjectNo::ROOT_DIR, "letter", 3);
    image.change_inode(file, |inode| inode.blocks = 9);
    save(&image.build(), &path);
    let (code, said) = look(&path);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("/letter ") && said.contains("damaged: "), "{said}");
}
