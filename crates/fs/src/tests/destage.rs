//! What the background destages, and what it leaves in the journal.

use super::{MIB, TestVolume};
use crate::FallocateMode;
use syncline_device::Device;

#[test]
fn a_page_that_is_logged_again_and_again_is_not_destaged_each_time() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let cold = volume.create("cold");
    volume.write(&cold, 0, &[1; 4096]);
    volume.sync(&cold);
    let hot = volume.create("hot");
    let load = || volume.fs.core.store.load();
    let (mut syncs, mut destaged) = (0, 0);
    // A checkpoint is due at half of the ring.
    while load().ring_bytes * 20 < load().ring_bytes_max * 9 {
        volume.write(&hot, 0, &[syncs as u8; 4096]);
        volume.sync(&hot);
        syncs += 1;
        let before = volume.device.counters().writes;
        volume.fs.maintain(volume.clock.advance(1), 1).unwrap();
        destaged += volume.device.counters().writes - before;
    }
    assert!(syncs > 200, "{syncs} syncs");
    assert_eq!(cold.state.read().data.logged_pages(), 0, "its image would keep the ring from being freed");
    assert!(load().image_bytes * 8 <= load().ring_bytes_max, "{} bytes", load().image_bytes);
    assert!(destaged < 10, "{destaged} writes of the background beside {syncs} syncs");
}

/// A database grows by a page, and its first page is written with it. Its blocks are known, so the kernel may keep the
/// attributes; with a hole in the file they are not.
#[test]
fn blocks_of_a_file_without_holes_are_known_while_it_is_written() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let file = volume.create("database");
    let page = |number: u64| volume.write(&file, number * 4096, &[7; 4096]);
    let blocks = || {
        let attr = volume.fs.attributes.attr(&file);
        (attr.blocks / 8, attr.blocks_settled)
    };
    for size in 1..20 {
        page(size - 1);
        page(0);
        assert_eq!(blocks(), (size, true), "dirty");
        volume.sync(&file);
        assert_eq!(blocks(), (size, true), "logged");
        if size % 3 == 0 {
            volume.fs.writeback.destage_everything().unwrap();
            assert_eq!(blocks(), (size, true), "written out");
        }
    }
    let hole = |file: &_| {
        let (mode, adjust) = (FallocateMode::PunchHole, &mut |_: &mut _| {});
        volume.fs.shape.file_allocate(file, mode, 9 * 4096, 4096, adjust).unwrap();
    };
    volume.fs.writeback.destage_everything().unwrap();
    hole(&file);
    page(0);
    assert!(!blocks().1, "a page in the middle is none any more");
    page(9);
    volume.sync(&file);
    volume.fs.writeback.destage_everything().unwrap();
    volume.truncate(&file, 10 * 4096 + 1);
    volume.truncate(&file, 19 * 4096);
    page(0);
    assert!(!blocks().1, "what was cut off is a hole");
    (10..19).for_each(page);
    let (ahead, mode) = (volume.create("ahead"), FallocateMode::Allocate { keep_size: true });
    volume.fs.shape.file_allocate(&ahead, mode, 9 * 4096, 4096, &mut |_| {}).unwrap();
    volume.write(&ahead, 0, &[7; 5 * 4096]);
    assert!(!volume.fs.attributes.attr(&ahead).blocks_settled, "a block behind the end comes on top");
    page(30);
    page(0);
    assert!(!blocks().1, "whether page 0 takes one more block is not known");
    volume.sync(&file);
    volume.fs.writeback.destage_everything().unwrap();
    assert_eq!(blocks(), (20, true));
}

#[test]
fn many_small_images_are_destaged_before_their_reserve_fills_the_ring() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let load = || volume.fs.core.store.load();
    let reserve = || load().images * 4096;
    let share = load().ring_bytes_max / 4;
    let mut files = 0;
    while reserve() <= share + MIB / 8 {
        let file = volume.create(&format!("small-{files}"));
        volume.write(&file, 0, &[7; 60]);
        files += 1;
        if files % 64 == 0 {
            // Takes others along.
            volume.sync(&file);
        }
    }
    assert!(load().image_bytes * 8 <= load().ring_bytes_max, "{} bytes hold them", load().image_bytes);
    for _ in 0..8 {
        volume.fs.maintain(volume.clock.advance(1), 16).unwrap();
    }
    assert!(reserve() <= share, "{} images", load().images);
}
