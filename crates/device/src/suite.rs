//! What every [`Device`] has to do: the contract of this crate as tests, for whoever makes a device.
//!
//! [`run`] panics with a sentence where a device does something else. It overwrites the device.

use crate::{Block, Buffer, Device, DeviceError, Operation, ReadRequest};
use std::sync::Arc;
use syncline_format::{BLOCK_BYTES, BlockNo};

/// Blocks that a device under test has at least: 64 MiB.
pub const BLOCKS_MIN: u64 = 16384;

/// Threads that work at once.
const THREADS: u64 = 8;
/// Writes of each.
const ROUNDS: u64 = 200;

/// Runs the suite on a device of at least [`BLOCKS_MIN`] blocks. `open` opens it, once at a time.
pub fn run(open: &dyn Fn() -> Arc<dyn Device>) {
    let device = open();
    assert!(device.blocks() >= BLOCKS_MIN, "the suite needs {BLOCKS_MIN} blocks");
    buffers_lie_end_to_end(&*device);
    all_ways_of_reading_bring_the_same(&*device);
    memory_of_any_alignment_is_filled(&*device);
    what_is_beyond_the_end_is_refused(&*device);
    requests_of_any_length_are_carried_out(&*device);
    zeros_are_written(&*device);
    tickets_can_be_dropped(&*device);
    threads_are_independent(&device);
    flushes_of_many_threads_end(&device);
    a_discard_takes_only_what_it_was_told(&*device);
    drop(device);
    content_is_there_when_it_is_opened_again(open);
}

fn page(byte: u8) -> Arc<Buffer> {
    Arc::new(Buffer::from_bytes(&[byte; BLOCK_BYTES]))
}

/// A block that says which one it is, and of which round.
fn signed(block: u64, round: u64) -> Arc<Buffer> {
    let word = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round;
    Arc::new(Buffer::from_bytes(&word.to_le_bytes().repeat(BLOCK_BYTES / 8)))
}

fn read(device: &dyn Device, block: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; BLOCK_BYTES];
    device.read(BlockNo(block), &mut bytes).expect("a block is read");
    bytes
}

fn expect(device: &dyn Device, block: u64, content: &[u8]) {
    assert!(read(device, block) == content, "block {block} is not what was written");
}

fn buffers_lie_end_to_end(device: &dyn Device) {
    let double = Arc::new(Buffer::from_bytes(&[2; 2 * BLOCK_BYTES]));
    let before = device.counters();
    device.write(BlockNo(9), vec![page(9)]).expect("a write");
    device.write(BlockNo(14), vec![page(14)]).expect("a write");
    device.write(BlockNo(10), vec![page(1), double, page(3)]).expect("a write");
    let first_bytes = [9, 10, 11, 12, 13, 14].map(|block| read(device, block)[BLOCK_BYTES - 1]);
    assert_eq!(first_bytes, [9, 1, 2, 2, 3, 14]);
    device.flush().expect("a flush");
    let after = device.counters();
    assert_eq!(after.writes - before.writes, 3, "each write is counted once");
    assert_eq!(after.written_bytes - before.written_bytes, 6 * BLOCK_BYTES as u64);
    assert_eq!((after.reads - before.reads, after.flushes - before.flushes), (6, 1));
}

fn all_ways_of_reading_bring_the_same(device: &dyn Device) {
    device.write(BlockNo(100), (100..200).map(|block| signed(block, 1)).collect()).expect("a write");
    let is_right = |(block, read): (u64, Block)| assert!(read[..] == signed(block, 1)[..], "block {block}");
    for blocks in [1, 7, 64, 65, 100] {
        let reading = device.submit_read(BlockNo(100), blocks);
        device.wait(reading.ticket()).expect("a read");
        (100..).zip(reading.into_blocks().expect("a read")).for_each(is_right);
        let read = device.read_blocks(BlockNo(100), blocks).into_blocks().expect("a read");
        assert_eq!((100..).zip(read).inspect(|_| {}).map(is_right).count(), blocks);
    }
    let mut memory = vec![0; 50 * BLOCK_BYTES];
    let parts = memory.chunks_mut(BLOCK_BYTES).zip((100..).step_by(2));
    let mut requests: Vec<_> = parts.map(|(into, at)| ReadRequest { at: BlockNo(at), into }).collect();
    device.read_many(&mut requests).expect("a read of many");
    for (part, block) in memory.chunks(BLOCK_BYTES).zip((100..).step_by(2)) {
        assert!(part == &signed(block, 1)[..], "block {block} of many");
    }
    device.read_many(&mut []).expect("a read of nothing");
}

fn memory_of_any_alignment_is_filled(device: &dyn Device) {
    let mut memory = vec![0xee; 3 * BLOCK_BYTES + 16];
    for shift in [0, 1, 8, 15] {
        device.read(BlockNo(101), &mut memory[shift..][..3 * BLOCK_BYTES]).expect("a read");
        for (part, block) in memory[shift..][..3 * BLOCK_BYTES].chunks(BLOCK_BYTES).zip(101..) {
            assert!(part == &signed(block, 1)[..]);
        }
    }
}

fn what_is_beyond_the_end_is_refused(device: &dyn Device) {
    let blocks = device.blocks();
    let last = blocks - 1;
    device.write(BlockNo(last), vec![page(77)]).expect("the last block");
    let before = device.counters();
    for at in [last, blocks, blocks + 1, u64::MAX] {
        let refused = |operation| DeviceError::OutOfRange { operation, block: BlockNo(at), blocks };
        let mut memory = vec![0xee; 2 * BLOCK_BYTES];
        assert_eq!(device.read(BlockNo(at), &mut memory), Err(refused(Operation::Read)));
        assert!(memory.iter().all(|&byte| byte == 0xee), "a read that is refused brings nothing");
        let reading = device.submit_read(BlockNo(at), 2);
        assert_eq!(device.wait(reading.ticket()), Err(refused(Operation::Read)));
        assert_eq!(device.write(BlockNo(at), vec![page(1), page(2)]), Err(refused(Operation::Write)));
        let ticket = device.submit_write(BlockNo(at), vec![page(1), page(2)]);
        assert_eq!(device.wait(&ticket), Err(refused(Operation::Write)));
        assert_eq!(device.discard(BlockNo(at), u64::MAX), Err(refused(Operation::Discard)));
    }
    assert_eq!(device.counters(), before, "what is refused is not counted");
    expect(device, last, &page(77));
}

fn requests_of_any_length_are_carried_out(device: &dyn Device) {
    // More than what a request of a protocol or of a kernel takes.
    const LONG: u64 = 10_000;
    let content: Vec<_> = (0..LONG).map(|block| signed(block, 2)).collect();
    device.write(BlockNo(1000), content).expect("a long write");
    let mut memory = vec![0; LONG as usize * BLOCK_BYTES];
    device.read(BlockNo(1000), &mut memory).expect("a long read");
    for (part, block) in memory.chunks(BLOCK_BYTES).zip(0..) {
        assert!(part == &signed(block, 2)[..], "block {block} of a long read");
    }
    let whole = Arc::new(Buffer::from_bytes(&memory));
    device.write(BlockNo(2000), vec![page(5), whole, page(6)]).expect("a long buffer");
    expect(device, 2000, &page(5));
    expect(device, 2001, &signed(0, 2));
    expect(device, 2000 + LONG, &signed(LONG - 1, 2));
    expect(device, 2001 + LONG, &page(6));
}

fn zeros_are_written(device: &dyn Device) {
    device.write(BlockNo(500), (500..600).map(|block| signed(block, 3)).collect()).expect("a write");
    device.write(BlockNo(510), (0..50).map(|_| Arc::new(Buffer::zeroed(1))).collect()).expect("zeros");
    device.write(BlockNo(580), vec![Arc::new(Buffer::zeroed(20))]).expect("zeros");
    // Zeros, but for the very end.
    let mut almost = Buffer::zeroed(16);
    almost[16 * BLOCK_BYTES - 1] = 1;
    device.write(BlockNo(562), vec![Arc::new(almost)]).expect("a write");
    for block in 500..600 {
        match block {
            510..560 | 562..577 | 580..600 => expect(device, block, &[0; BLOCK_BYTES]),
            577 => assert_eq!(read(device, block)[BLOCK_BYTES - 1], 1),
            _ => expect(device, block, &signed(block, 3)),
        }
    }
}

fn tickets_can_be_dropped(device: &dyn Device) {
    for block in 0..64 {
        drop(device.submit_read(BlockNo(500), 64));
        drop(device.submit_write(BlockNo(700 + block), vec![signed(block, 4)]));
        drop(device.submit_flush());
    }
    let last = device.submit_write(BlockNo(764), vec![signed(64, 4)]);
    device.wait(&last).expect("a write");
    device.wait(&last).expect("a ticket is waited for as often as one likes");
    // A read that overlaps writes in flight may come before them, so these are ended first.
    device.flush().expect("a flush");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while (0..=64).any(|block| read(device, 700 + block) != signed(block, 4)[..]) {
        assert!(std::time::Instant::now() < deadline, "writes whose tickets were dropped are carried out");
        device.poll();
    }
}

fn threads_are_independent(device: &Arc<dyn Device>) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = device.clone();
            scope.spawn(move || {
                let mut state = thread + 1;
                let mut written = std::collections::HashMap::new();
                for round in 0..ROUNDS {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // Blocks of a thread interleave with those of others.
                    let run = (state >> 33) % 50;
                    let at = 3000 + (run * THREADS + thread) * 16;
                    let length = 1 + (state >> 50) % 16;
                    let content = (at..at + length).map(|block| signed(block, round)).collect();
                    let ticket = device.submit_write(BlockNo(at), content);
                    device.wait(&ticket).expect("a write");
                    written.extend((at..at + length).map(|block| (block, round)));
                    if round % 16 == 0 {
                        device.flush().expect("a flush");
                    }
                    let block = at + (state >> 40) % length;
                    expect(&*device, block, &signed(block, round));
                }
                written.iter().for_each(|(block, round)| expect(&*device, *block, &signed(*block, *round)));
            });
        }
    });
}

fn flushes_of_many_threads_end(device: &Arc<dyn Device>) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = device.clone();
            scope.spawn(move || {
                for round in 0..50 {
                    let ticket = device.submit_write(BlockNo(800 + thread), vec![signed(thread, round)]);
                    let early = device.submit_flush();
                    device.wait(&ticket).expect("a write");
                    device.flush().expect("a flush");
                    device.wait(&early).expect("a flush that was submitted");
                }
            });
        }
    });
}

fn a_discard_takes_only_what_it_was_told(device: &dyn Device) {
    let least = device.discard_blocks_min();
    assert_ne!(least, Some(0));
    device.write(BlockNo(8192), (0..4096).map(|block| signed(block, 5)).collect()).expect("a write");
    device.discard(BlockNo(8192 + 1024), 2048).expect("a discard");
    device.discard(BlockNo(8192 + 1), 1).expect("a short discard");
    for block in [0, 2, 1023, 3072, 4095] {
        expect(device, 8192 + block, &signed(block, 5));
    }
    // What was discarded can be read, as anything, and be written.
    read(device, 8192 + 2000);
    device.write(BlockNo(8192 + 2000), vec![page(8)]).expect("a write");
    expect(device, 8192 + 2000, &page(8));
}

fn content_is_there_when_it_is_opened_again(open: &dyn Fn() -> Arc<dyn Device>) {
    let device = open();
    device.write(BlockNo(3), vec![page(33)]).expect("a write");
    device.flush().expect("a flush");
    drop(device);
    let device = open();
    expect(&*device, 3, &page(33));
    expect(&*device, device.blocks() - 1, &page(77));
}
