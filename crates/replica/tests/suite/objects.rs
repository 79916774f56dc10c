//! Units and the other objects: what goes in comes out, and whatever bytes there are, nothing panics.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::replica::{
    Claim, End, Flags, Footer, Index, Manifest, Pack, Recent, RunKind, UnitHeader,
};
use syncline_format::{BLOCK_BYTES, checksum};
use syncline_replica::merge::Content;
use syncline_replica::unit::{Outline, encode, open_frame};

const BLOCKS: u64 = 5000;

fn header() -> UnitHeader {
    UnitHeader {
        flags: Flags::CONSISTENT,
        uuid: [3; 16],
        claim: 2,
        number: 9,
        predecessor: 77,
        epoch: 5,
        generation: 6,
        lsn: 7,
        cuts: 8,
        time: 10,
        blocks: BLOCKS,
    }
}

/// Of the seed 0 zeros, of 1 a discard, of small ones what compresses, of others what does not.
fn content(seed: u64) -> Content {
    let mut x = seed;
    let word = |x: &mut u64| {
        *x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if seed < 100 { seed } else { *x >> 7 }
    };
    match seed {
        0 => Content::Zeros,
        1 => Content::Discarded,
        _ => {
            let bytes: Vec<u8> = (0..BLOCK_BYTES / 8).flat_map(|_| word(&mut x).to_le_bytes()).collect();
            Content::Written(Arc::new(Buffer::from_bytes(&bytes)), 0)
        }
    }
}

fn blocks() -> impl Strategy<Value = BTreeMap<u64, u64>> {
    let seed = prop_oneof![Just(0u64), Just(1), 2u64..100, 1000u64..2000];
    let runs = prop::collection::vec((0..BLOCKS - 40, 1u64..40, seed), 0..8);
    runs.prop_map(|runs| {
        let each = runs.into_iter().flat_map(|(at, count, seed)| (at..at + count).map(move |at| (at, seed)));
        each.collect()
    })
}

fn unit_of(seeds: &BTreeMap<u64, u64>) -> Vec<u8> {
    let contents = seeds.iter().map(|(at, seed)| (*at, content(*seed))).collect();
    encode(&header(), &contents).bytes
}

/// Every block that a unit holds: its bytes, or `None` for a discard.
fn read(bytes: &[u8]) -> BTreeMap<u64, Option<Vec<u8>>> {
    let outline = Outline::of(bytes).expect("a unit as it was made");
    assert_eq!(outline.header, header());
    let index = &outline.index;
    let mut data = Vec::new();
    for frame in &index.frames {
        let stored = &bytes[frame.offset as usize..][..frame.stored as usize];
        data.extend(open_frame("it", frame, stored).expect("a frame as it was made"));
    }
    let mut blocks = BTreeMap::new();
    for run in &index.runs {
        let kind = match run.kind {
            RunKind::Data => continue,
            RunKind::Zeros => Some(vec![0; BLOCK_BYTES]),
            RunKind::Discarded => None,
        };
        blocks.extend((run.first.0..run.end()).map(|block| (block, kind.clone())));
    }
    for (first, run) in index.data_runs() {
        for (at, block) in (run.first.0..run.end()).enumerate() {
            let bytes = data[(first + at) * BLOCK_BYTES..][..BLOCK_BYTES].to_vec();
            assert_eq!(checksum(&bytes), index.sums[first + at]);
            blocks.insert(block, Some(bytes));
        }
    }
    blocks
}

/// Puts the checksums right that a change has made wrong, so that what lies behind them is looked at.
fn seal(bytes: &mut [u8]) {
    let (length, end) = (bytes.len(), 128);
    if length < 192 {
        return;
    }
    let sum = checksum(&bytes[16..end]).to_le_bytes();
    bytes[8..16].copy_from_slice(&sum);
    let footer = length - 64;
    let offset = u64::from_le_bytes(bytes[footer + 16..footer + 24].try_into().unwrap());
    if (128..footer as u64).contains(&offset) {
        let sum = checksum(&bytes[offset as usize..footer]).to_le_bytes();
        bytes[footer + 32..footer + 40].copy_from_slice(&sum);
    }
    let sum = checksum(&bytes[..128]).to_le_bytes();
    bytes[footer + 40..footer + 48].copy_from_slice(&sum);
    let sum = checksum(&bytes[footer + 16..]).to_le_bytes();
    bytes[footer + 8..footer + 16].copy_from_slice(&sum);
}

/// Looks at all of it, as a restore does.
fn look(bytes: &[u8]) -> bool {
    let Ok(outline) = Outline::of(bytes) else { return false };
    let index = &outline.index;
    let mut end = 0;
    for run in &index.runs {
        assert!(run.first.0 >= end && run.end() <= outline.header.blocks);
        end = run.end();
    }
    let data: usize = index.data_runs().map(|(_, run)| run.blocks as usize).sum();
    assert_eq!((data, data.div_ceil(16)), (index.sums.len(), index.frames.len()));
    let opens = |frame| {
        let frame: &syncline_format::replica::Frame = frame;
        let stored = &bytes[frame.offset as usize..][..frame.stored as usize];
        open_frame("it", frame, stored).is_ok_and(|content| content.len() == frame.content as usize)
    };
    index.frames.iter().all(opens)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_unit_gives_back_what_it_was_made_of(seeds in blocks()) {
        let got = read(&unit_of(&seeds));
        let want: BTreeMap<u64, Option<Vec<u8>>> = seeds
            .iter()
            .map(|(at, seed)| {
                let zeros = (*seed == 0).then(|| vec![0; BLOCK_BYTES]);
                (*at, content(*seed).bytes().map(<[u8]>::to_vec).or(zeros))
            })
            .collect();
        prop_assert_eq!(got, want);
    }

    #[test]
    fn a_changed_bit_anywhere_in_a_unit_is_noticed(seeds in blocks(), at: prop::sample::Index, bit in 0u8..8) {
        let mut bytes = unit_of(&seeds);
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        // Two bytes of the footer are reserved.
        let reserved = bytes.len() - 58..bytes.len() - 56;
        prop_assert!(!look(&bytes) || reserved.contains(&at), "byte {}", at);
    }

    #[test]
    fn hostile_units_panic_nowhere(
        seeds in blocks(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<[u8; 4]>(), any::<bool>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = unit_of(&seeds);
        // Half of the changes go where the structure is: header, index and footer.
        let index = u64::from_le_bytes(bytes[bytes.len() - 48..bytes.len() - 40].try_into().unwrap()) as usize;
        for (at, with, anywhere) in changes {
            let at = if anywhere { at.index(bytes.len()) } else { index + at.index(bytes.len() - index) };
            let end = (at + 4).min(bytes.len());
            bytes[at..end].copy_from_slice(&with[..end - at]);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        look(&bytes);
        seal(&mut bytes);
        look(&bytes);
    }

    #[test]
    fn random_bytes_panic_nowhere(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        let _ = (UnitHeader::decode(&bytes), Claim::decode(&bytes), Manifest::decode(&bytes));
        if let Ok(footer) = Footer::decode(&bytes, bytes.len() as u64) {
            let _ = Index::decode(&bytes, &footer, BLOCKS);
        }
        prop_assert!(!look(&bytes));
    }

    #[test]
    fn claims_and_manifests_come_back_and_changed_ones_do_not(
        claim in 1u64..70, units in prop::collection::vec(0u64..1 << 40, 0..70),
        host in "\\PC{0,80}", at: prop::sample::Index, bit in 0u8..8,
    ) {
        let written = Claim {
            uuid: [1; 16], claim, nonce: 2, time: 3, continued: claim - 1, process: 4, host: host.clone(),
        };
        let mut bytes = written.encode();
        let read = Claim::decode(&bytes).unwrap();
        prop_assert!(host.starts_with(&read.host) && read.host.len() + 4 > host.len().min(64));
        prop_assert_eq!(Claim { host, ..read }, written);
        let place = at.index(bytes.len());
        bytes[place] ^= 1u8 << bit;
        prop_assert!(Claim::decode(&bytes).is_err() || (6..8).contains(&place));

        let packs = units.iter().take(9).enumerate().map(|(at, unit)| Pack {
            number: 3,
            id: *unit,
            level: 1 + at as u8,
            base: at == 0,
            first: (1, unit / 2),
            last: (1 + at as u64, *unit),
            predecessor: 4,
            tail: 5,
            identity: 6,
            time: 7,
            lsn: 8,
            bytes: 9,
            first_block: at as u64,
            end_block: 4096,
        });
        let (packs, recent) = (packs.collect(), units.iter().map(|unit| Recent { number: *unit, time: 7 }));
        let recent = recent.take(5).collect();
        let end = |units| End { units, identity: units ^ 9, manifest: units / 3 };
        let ends: Vec<End> = units.into_iter().map(end).collect();
        let claim = ends.len() as u64 + 1;
        let written = Manifest {
            nonce: 2,
            time: 3,
            first: 2,
            known: 1,
            from: (claim, 17),
            packs,
            recent,
            ..Manifest::unpacked([1; 16], 5, claim, 4096, ends)
        };
        let mut bytes = written.encode();
        prop_assert_eq!(&Manifest::decode(&bytes).unwrap(), &written);
        let place = at.index(bytes.len());
        bytes[place] ^= 1u8 << bit;
        prop_assert!(Manifest::decode(&bytes).is_err() || (6..8).contains(&place));
    }
}
