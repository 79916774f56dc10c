//! What a mounted volume tells of itself, as the JSON of the statistics ioctl.
//!
//! The ioctl's buffer is of fixed size: everything here is bounded, and a test builds the longest text there can be.

use crate::ledger::Totals;
use crate::messages::MessageCounts;
use crate::syncs::Syncs;
use fusering::{ActiveTransport, Classes};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use syncline_fs::{Fs, FsStats, LatencyHistogram};

/// Longest description of a failure, and of why a transport is not in use, in characters.
const FAILURE_CHARACTERS_MAX: usize = 256;

/// What users have open in groups and tickets.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// Groups that are open or not settled, and how many entries of groups were gone through one by one.
    pub(crate) open: (usize, u64),
    pub(crate) totals: Totals,
}

pub(crate) fn describe(
    fs: &Fs,
    syncs: &Syncs,
    messages: &MessageCounts,
    staged: &Staged,
    transport: Option<&(ActiveTransport, Arc<Classes>)>,
) -> String {
    let info = fs.volume_info();
    let space = fs.statfs();
    let (answered, batches) = syncs.answered();
    let failure = fs.failure().map(|error| cut(&error.to_string()));
    let mut all = json!({
        "label": info.label,
        "generation": info.generation.0,
        "failure": failure,
        "transport": transport.map(|(transport, _)| transport.kind.name()),
        "not_io_uring_because": transport.and_then(|(transport, _)| why_not_uring(transport)),
        "scheduling": transport.map(|(_, classes)| classes.to_string()),
        "read_only": fs.is_read_only(),
        "space": {
            "block_bytes": space.block_bytes,
            "blocks": space.blocks,
            "blocks_free": space.blocks_free,
            "blocks_available": space.blocks_available,
        },
        "staged": {
            "users": staged.totals.users,
            "groups": staged.totals.groups,
            "groups_not_settled": staged.open.0,
            "entries_visited": staged.open.1,
            "tickets": staged.totals.tickets,
            "memory_bytes": staged.totals.footprint.bytes,
            "reserved_blocks": staged.totals.footprint.blocks,
        },
        "charged_bytes": fs.charged_bytes(),
        "fsync_us": latencies(syncs.latency()),
        "driven_syncs": {"answered": answered, "batches": batches},
        "messages": messages.seen().map(|(name, count)| (name.to_owned(), count.into())).collect::<Map<_, _>>(),
    });
    if let (Value::Object(all), Value::Object(engine)) = (&mut all, counters(&fs.stats(), space.block_bytes))
    {
        all.extend(engine);
    }
    all.to_string()
}

fn why_not_uring(transport: &ActiveTransport) -> Option<String> {
    transport.uring_unavailable.as_ref().map(|reason| cut(&reason.to_string()))
}

fn counters(engine: &FsStats, block_bytes: u32) -> Value {
    let (device, store, load, pages) = (&engine.device, &engine.store, &engine.load, &engine.pages);
    json!({
        "device": {
            "reads": device.reads,
            "read_bytes": device.read_bytes,
            "writes": device.writes,
            "written_bytes": device.written_bytes,
            "flushes": device.flushes,
            "discards": device.discards,
        },
        "store": {
            "groups": store.groups,
            "grouped_batches": store.grouped_batches,
            "checkpoints": store.checkpoints,
            "node_cache_hits": store.node_cache_hits,
            "node_cache_misses": store.node_cache_misses,
            "dirty_node_bytes": load.dirty_node_bytes,
            "dirty_node_bytes_max": load.dirty_node_bytes_max,
            "journal_bytes": load.ring_bytes,
            "journal_bytes_max": load.ring_bytes_max,
            "images": load.images,
        },
        "page_cache": {
            "pages": pages.cached,
            "pages_max": pages.cached_max,
            "bytes": pages.cached * u64::from(block_bytes),
            "dirty": pages.dirty,
            "logged": pages.logged,
            "hits": pages.hits,
            "misses": pages.misses,
            "evictions": pages.evictions,
        },
        "set_aside": {
            "files": engine.set_aside.files,
            "pages": engine.set_aside.pages,
            "orphans": engine.set_aside.orphans,
        },
        "checkpoint_us": latencies(&engine.checkpoint_latency),
        "inodes_cached": engine.inodes_cached,
        "memory_bytes_max": engine.memory_bytes_max,
    })
}

/// In microseconds; the buckets are by powers of two of nanoseconds.
fn latencies(histogram: &LatencyHistogram) -> Value {
    let at = |share| microseconds(histogram.quantile(share));
    let bucket = |(up_to, count)| json!({"up_to": microseconds(up_to), "count": count});
    json!({
        "count": histogram.count(),
        "total": microseconds(histogram.total()),
        "mean": microseconds(histogram.mean()),
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "p999": at(0.999),
        "max": microseconds(histogram.max()),
        "last": microseconds(histogram.last()),
        "buckets": histogram.buckets().into_iter().map(bucket).collect::<Vec<_>>(),
    })
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1000.0
}

fn cut(text: &str) -> String {
    text.chars().take(FAILURE_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioctl;
    use crate::ledger::Ledger;
    use crate::messages::Message;
    use fusering::{Errno, TransportKind, UringUnavailable};
    use std::sync::Arc;
    use syncline_device::MemoryDevice;
    use syncline_fs::{Footprint, MkfsOptions, SystemClock, SystemEntropy};

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
        fill(syncs.latency());
        let footprint = Footprint { bytes: u64::MAX, blocks: u64::MAX };
        let totals = Totals { users: usize::MAX, groups: usize::MAX, tickets: usize::MAX, footprint };
        let staged = Staged { open: (usize::MAX, u64::MAX), totals };
        let text = describe(&fs, &syncs, &messages, &staged, Some(&(transport, Arc::default())));
        let checkpoint_latency = LatencyHistogram::default();
        fill(&checkpoint_latency);
        let mut stats = fs.stats();
        (stats.store.groups, stats.store.grouped_batches) = (u64::MAX, u64::MAX);
        stats.checkpoint_latency = checkpoint_latency;
        // Counters and messages could each grow to 20 digits, and so could 64 buckets of two histograms, by 16 here.
        let digits = 20 * 64 + 16 * 128;
        let longest =
            text.len() + counters(&stats, 4096).to_string().len() + 2 * 6 * FAILURE_CHARACTERS_MAX + digits;
        assert!(longest <= ioctl::STATISTICS_BYTES - 4, "{longest} bytes");
    }

    #[test]
    fn latencies_are_told_in_microseconds() {
        let histogram = LatencyHistogram::default();
        for nanoseconds in [1000, 1000, 3000] {
            histogram.record(Duration::from_nanos(nanoseconds));
        }
        let told = latencies(&histogram);
        assert_eq!((&told["count"], &told["total"], &told["last"]), (&json!(3), &json!(5.0), &json!(3.0)));
        let buckets = json!([{"up_to": 1.023, "count": 2}, {"up_to": 4.095, "count": 1}]);
        assert_eq!(told["buckets"], buckets);
    }
}
