//! What the background destages, and what it leaves in the journal.

use super::{MIB, TestVolume};
use syncline_device::Device;

#[test]
fn a_page_that_is_logged_again_and_again_is_not_destaged_each_time() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let cold = volume.create("cold");
    volume.write(&cold, 0, &[1; 4096]);
    volume.sync(&cold);
    let hot = volume.create("hot");
    let load = || volume.fs.store.load();
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
