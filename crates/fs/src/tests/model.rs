use super::{MIB, Random, TestVolume, pattern};
use crate::Error;
use crate::FsOptions;
use crate::{FallocateMode, SeekWhat};

const FILES: usize = 4;
const SIZE_MAX: u64 = 700_000;

/// What one file should hold.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
}

impl Model {
    fn write(&mut self, offset: u64, data: &[u8]) {
        let (from, end) = (offset as usize, offset as usize + data.len());
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[from..end].copy_from_slice(data);
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let size = self.bytes.len();
        let (from, end) = ((offset as usize).min(size), ((offset + len) as usize).min(size));
        self.bytes[from..end].fill(0);
    }
}

fn step(volume: &mut TestVolume, models: &mut [Model], random: &mut Random, crashes: bool) {
    let n = random.below(FILES as u64) as usize;
    let inode = volume.find(&format!("f{n}"));
    let model = &mut models[n];
    let offset = match random.below(3) {
        0 => random.below(SIZE_MAX),
        1 => model.bytes.len() as u64,
        _ => random.below(20) * 4096,
    };
    match random.below(26) {
        0..=8 => {
            let len = if random.below(4) == 0 { random.below(150_000) } else { random.below(9000) };
            let data = pattern(random.next(), len as usize);
            if !data.is_empty() {
                volume.write(&inode, offset, &data);
                model.write(offset, &data);
            }
        }
        9 | 10 => {
            let size = random.below(SIZE_MAX);
            volume.truncate(&inode, size);
            model.bytes.resize(size as usize, 0);
        }
        11 => {
            let len = 1 + random.below(100_000);
            volume
                .fs
                .shape
                .file_allocate(&inode, FallocateMode::PunchHole, offset, len, &mut |_| {})
                .unwrap();
            model.zero(offset, len);
        }
        12 => {
            let len = 1 + random.below(100_000);
            let mode = FallocateMode::ZeroRange { keep_size: true };
            volume.fs.shape.file_allocate(&inode, mode, offset, len, &mut |_| {}).unwrap();
            model.zero(offset, len);
        }
        13 => {
            let len = 1 + random.below(100_000);
            let keep_size = random.below(2) == 0;
            let mode = FallocateMode::Allocate { keep_size };
            volume.fs.shape.file_allocate(&inode, mode, offset, len, &mut |_| {}).unwrap();
            let end = if keep_size { 0 } else { (offset + len) as usize };
            model.bytes.resize(model.bytes.len().max(end), 0);
        }
        14 => {
            let (from, len) = (random.below(30) * 4096, (1 + random.below(10)) * 4096);
            let collapse = FallocateMode::CollapseRange;
            match volume.fs.shape.file_allocate(&inode, collapse, from, len, &mut |_| {}) {
                Ok(()) => drop(model.bytes.drain(from as usize..(from + len) as usize)),
                Err(error) => {
                    assert!(matches!(error, Error::Invalid(_)), "{error}");
                    assert!(from + len >= model.bytes.len() as u64);
                }
            }
        }
        15..=18 => volume.sync(&inode),
        19 => drop(volume.fs.maintain(volume.clock.advance(random.below(3000)), 4).unwrap()),
        20 => volume.fs.core.store.checkpoint().unwrap(),
        21 => volume.drop_cache(&inode),
        22 => {
            for (n, model) in models.iter().enumerate() {
                check(volume, n, model);
            }
        }
        23 | 24 => settled_blocks_stay(volume, n),
        _ if crashes => {
            volume.sync(&inode);
            drop(inode);
            volume.crash();
            for (other, model) in models.iter_mut().enumerate() {
                if other == n {
                    check(volume, n, model);
                } else {
                    // Not synced: whatever it is, it must be readable.
                    model.bytes = volume.content(&volume.find(&format!("f{other}")));
                }
            }
        }
        _ => {
            drop(inode);
            volume.reopen();
        }
    }
}

/// What is said to stay until somebody changes the file stays when all of it is written out.
fn settled_blocks_stay(volume: &TestVolume, n: usize) {
    let inode = volume.find(&format!("f{n}"));
    let told = volume.fs.attributes.attr(&inode);
    volume.sync(&inode);
    volume.fs.writeback.destage_everything().unwrap();
    let then = volume.fs.attributes.attr(&inode);
    let pages = format!("of {} bytes", told.size);
    assert!(
        !told.blocks_settled || told.blocks == then.blocks,
        "{} and {}, {pages}",
        told.blocks,
        then.blocks
    );
    assert_eq!((then.blocks, then.blocks_settled), (inode.state.read().item.blocks * 8, true), "{pages}");
}

fn check(volume: &TestVolume, n: usize, model: &Model) {
    let inode = volume.find(&format!("f{n}"));
    let content = volume.content(&inode);
    assert_eq!(content.len(), model.bytes.len(), "size of file {n}");
    if let Some(at) = content.iter().zip(&model.bytes).position(|(a, b)| a != b) {
        panic!("file {n} differs at {at}: {} instead of {}", content[at], model.bytes[at]);
    }
    let mut position = 0;
    while let Ok(hole) = volume.fs.shape.file_seek(&inode, position, SeekWhat::Hole) {
        let data = volume.fs.shape.file_seek(&inode, hole, SeekWhat::Data).unwrap_or(content.len() as u64);
        assert!(content[hole as usize..data as usize].iter().all(|&byte| byte == 0), "hole at {hole}");
        position = data;
    }
}

fn run(seed: u64, steps: u32, crashes: bool, options: FsOptions, journal: u64) {
    let mut random = Random(seed * 2 + 1);
    let mut volume = TestVolume::with_options(32 * MIB, journal, options);
    for n in 0..FILES {
        let inode = volume.create(&format!("f{n}"));
        volume.sync(&inode);
    }
    let mut models: Vec<Model> = (0..FILES).map(|_| Model::default()).collect();
    for index in 0..steps {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            step(&mut volume, &mut models, &mut random, crashes);
        }));
        if outcome.is_err() {
            panic!("seed {seed}, step {index}");
        }
    }
    for (n, model) in models.iter().enumerate() {
        check(&volume, n, model);
    }
}

#[test]
fn files_hold_what_a_model_holds() {
    for seed in 1..12 {
        run(seed, 300, false, FsOptions::default(), 2 * MIB);
    }
}

#[test]
fn synced_files_hold_what_a_model_holds_after_crashes() {
    for seed in 100..112 {
        run(seed, 300, true, FsOptions::default(), 2 * MIB);
    }
}

#[test]
fn a_small_cache_and_a_small_journal_change_nothing() {
    for seed in 200..208 {
        let options = FsOptions { memory_bytes_max: 1 << 20, ..FsOptions::default() };
        run(seed, 300, true, options, MIB / 4);
    }
}
