//! What a mounted volume tells of itself, as the JSON of the statistics ioctl.
//!
//! The ioctl's buffer is of fixed size: everything here is bounded, and a test builds the longest text there can be.

use crate::account::Program;
use crate::ledger::Totals;
use crate::memory::AutoMemory;
use crate::messages::MessageCounts;
use crate::replica::Replica;
use crate::syncs::Syncs;
use fusering::{ActiveTransport, Classes};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use syncline_fs::Fs;

/// Longest description of a failure, and of why a transport is not in use, in characters.
const FAILURE_CHARACTERS_MAX: usize = 224;

/// What users have open in groups and tickets.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// Groups that are open or not settled, and how many entries of groups were gone through one by one.
    pub(crate) open: (usize, u64),
    pub(crate) totals: Totals,
}

/// Who is asked.
pub(crate) struct Sources<'a> {
    pub(crate) fs: &'a Fs,
    pub(crate) syncs: &'a Syncs,
    pub(crate) messages: &'a MessageCounts,
    pub(crate) staged: Staged,
    pub(crate) transport: Option<&'a (ActiveTransport, Arc<Classes>)>,
    pub(crate) memory: Option<&'a AutoMemory>,
    pub(crate) replica: Option<&'a Replica>,
}

pub(crate) fn describe(sources: &Sources<'_>) -> String {
    let Sources { fs, syncs, messages, staged, transport, memory, replica } = sources;
    let info = fs.volume_info();
    let (answered, batches) = syncs.answered();
    let buffers = syncline_device::buffer_memory();
    let failure = fs.failure().map(|error| cut(&error.to_string()));
    let own = json!({
        "label": info.label,
        "generation": info.generation.0,
        "failure": failure,
        "transport": transport.map(|(transport, _)| transport.kind.name()),
        "not_io_uring_because": transport.and_then(|(transport, _)| why_not_uring(transport)),
        "scheduling": transport.map(|(_, classes)| classes.to_string()),
        "memory": memory.map_or_else(|| "as asked for".to_owned(), AutoMemory::to_string),
        "read_only": fs.is_read_only(),
        "staged": {
            "users": staged.totals.users,
            "groups": staged.totals.groups,
            "groups_not_settled": staged.open.0,
            "entries_visited": staged.open.1,
            "tickets": staged.totals.tickets,
            "memory_bytes": staged.totals.footprint.bytes,
            "reserved_blocks": staged.totals.footprint.blocks,
        },
        "replica": replica.map(|replica| replica.describe(cut)),
        "charged_bytes": fs.charged_bytes(),
        "buffers": {"mapped_bytes": buffers.mapped, "used_bytes": buffers.used},
        "callers": syncs.account().programs().iter().map(caller).collect::<Vec<_>>(),
        "driven_syncs": {"answered": answered, "batches": batches},
        "messages": messages.seen().map(|(name, count)| (name.to_owned(), count.into())).collect::<Map<_, _>>(),
    });
    joined(&own.to_string(), &fs.stats().to_json(&fs.statfs(), syncs.account().latency()))
}

/// The members of two JSON objects, neither of them empty, in one.
fn joined(first: &str, second: &str) -> String {
    let (first, second) = (first.strip_suffix('}'), second.strip_prefix('{'));
    format!("{},{}", first.expect("an object"), second.expect("an object"))
}

fn caller(program: &Program) -> Value {
    json!({
        "pid": program.pid,
        "name": program.name,
        "fsyncs": program.syncs,
        "fsync_total_us": program.waited.as_nanos() as f64 / 1000.0,
    })
}

fn why_not_uring(transport: &ActiveTransport) -> Option<String> {
    transport.uring_unavailable.as_ref().map(|reason| cut(&reason.to_string()))
}

/// A text of bounded length, also in JSON, where a control character would take six bytes.
fn cut(text: &str) -> String {
    let shown =
        |character: char| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
    text.chars().take(FAILURE_CHARACTERS_MAX).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{NAME_CHARACTERS_MAX, PROGRAMS_MAX};
    use crate::ioctl;
    use crate::ledger::Ledger;
    use crate::messages::Message;
    use fusering::{Errno, TransportKind, UringUnavailable};
    use std::time::Duration;
    use syncline_device::MemoryDevice;
    use syncline_fs::{
        Footprint, FsStats, LatencyHistogram, MkfsOptions, SystemClock, SystemEntropy, VolumeSpace,
    };

    fn opened(label: &str) -> Arc<Fs> {
        let device = Arc::new(MemoryDevice::new(4096));
        let entropy = SystemEntropy::default();
        let options = MkfsOptions::default().label(label);
        Fs::format(&*device, &options, &SystemClock, &entropy, &mut |_, _| {}).unwrap();
        Fs::open(device, syncline_fs::FsOptions::default(), Arc::new(SystemClock), &entropy).unwrap()
    }

    /// Puts something in every bucket of the text.
    fn fill(histogram: &LatencyHistogram) {
        for octave in 0..64 {
            for _ in 0..1000 {
                histogram.record(Duration::from_nanos(u64::MAX >> octave));
            }
        }
    }

    #[test]
    fn longest_text_fits_the_ioctl() {
        // A control character takes six bytes in JSON.
        let fs = opened(&"\u{1}".repeat(64));
        let messages = MessageCounts::default();
        for message in Message::ALL {
            messages.count(*message);
        }
        let transport = ActiveTransport {
            kind: TransportKind::Dev,
            uring_unavailable: Some(UringUnavailable::Ring {
                step: "one with a very long description",
                errno: Errno::EIO,
            }),
        };
        let syncs = Syncs::new(fs.clone(), Arc::new(Ledger::new(fs.clone())));
        fill(syncs.account().latency());
        let footprint = Footprint { bytes: u64::MAX, blocks: u64::MAX };
        let totals = Totals { users: usize::MAX, groups: usize::MAX, tickets: usize::MAX, footprint };
        let staged = Staged { open: (usize::MAX, u64::MAX), totals };
        let transport = (transport, Arc::default());
        let text = describe(&Sources {
            fs: &fs,
            syncs: &syncs,
            messages: &messages,
            staged,
            transport: Some(&transport),
            memory: None,
            replica: None,
        });
        // Programs and what they waited can be as long as this.
        let program = Program {
            pid: Some(u32::MAX),
            name: "x".repeat(NAME_CHARACTERS_MAX),
            syncs: u64::MAX,
            waited: Duration::MAX,
        };
        let programs = (caller(&program).to_string().len() + 1) * (PROGRAMS_MAX + 1);
        let checkpoint_latency = LatencyHistogram::default();
        fill(&checkpoint_latency);
        let mut stats = fs.stats();
        (stats.store.groups, stats.store.grouped_batches) = (u64::MAX, u64::MAX);
        stats.checkpoint_latency = checkpoint_latency;
        // Counters and messages could each grow to 20 digits, and so could 64 buckets of two histograms, by 16 here.
        let digits = 20 * 64 + 16 * 128;
        let worst = ["\u{1}", "\"", "\u{10ffff}"].map(|one| json!(cut(&one.repeat(1000))).to_string().len());
        let cut_bytes = worst.into_iter().max().unwrap();
        assert!(cut_bytes <= 4 * FAILURE_CHARACTERS_MAX + 2, "{cut_bytes} bytes");
        let longest = text.len()
            + programs
            // What is told of the engine is in the text already, but for its second histogram and its digits.
            - FsStats::default().to_json(&VolumeSpace::default(), &LatencyHistogram::default()).len()
            + stats.to_json(&VolumeSpace::default(), &LatencyHistogram::default()).len()
            + 2 * cut_bytes
            // What is told of a replica: an address, a sentence, and figures.
            + 2 * cut_bytes
            + 512
            + digits;
        assert!(longest <= ioctl::STATISTICS_BYTES - 4, "{longest} bytes");
    }

    #[test]
    fn the_mount_tells_all_that_the_library_tells() {
        let volume = syncline::Volume::create_in_memory(16 << 20).unwrap();
        let of_library: Map<String, Value> = serde_json::from_str(&volume.stats().to_json()).unwrap();
        let fs = opened("x");
        let syncs = Syncs::new(fs.clone(), Arc::new(Ledger::new(fs.clone())));
        let text = describe(&Sources {
            fs: &fs,
            syncs: &syncs,
            messages: &MessageCounts::default(),
            staged: Staged::default(),
            transport: None,
            memory: None,
            replica: None,
        });
        let of_mount: Map<String, Value> = serde_json::from_str(&text).unwrap();
        let names = |map: &Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
        for (name, value) in &of_library {
            let same = of_mount.get(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(value.as_object().map(names), same.as_object().map(names), "{name}");
        }
        assert_eq!(of_mount["label"], "x");
        assert_eq!(text.matches("\"space\"").count(), 1, "nothing is told twice");
    }
}
