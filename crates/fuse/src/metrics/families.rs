//! The metrics themselves, in the text format of Prometheus: base units, one family after the other.
//!
//! A histogram has the same bounds at every scrape: powers of two from a microsecond to half a minute. Its buckets are
//! sums of those in which latencies are counted, so each of them is exact.

use crate::statistics::Sources;
use std::fmt::{Display, Write};
use std::time::Duration;
use syncline_fs::LatencyHistogram;

/// Powers of two of nanoseconds that are bounds of the buckets of a histogram.
const BOUND_BITS: std::ops::RangeInclusive<u32> = 10..=35;

/// What a family of metrics is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Everything that is told, as text.
pub(crate) fn text(sources: &Sources<'_>) -> String {
    let mut text = Text::default();
    add_volume(&mut text, sources);
    add_syncs(&mut text, sources);
    add_device(&mut text, sources);
    add_journal(&mut text, sources);
    add_caches(&mut text, sources);
    add_users(&mut text, sources);
    add_process(&mut text);
    text.0
}

fn add_volume(text: &mut Text, sources: &Sources<'_>) {
    let (fs, space) = (sources.fs, sources.fs.statfs());
    let transport = sources.transport.map_or("none", |(transport, _)| transport.kind.name());
    let label = fs.volume_info().label;
    text.labelled(
        "syncline_volume_info",
        Kind::Gauge,
        "Label of the volume, how requests arrive, and the version of the daemon; always 1.",
        &[(&[("label", &label), ("transport", transport), ("version", env!("CARGO_PKG_VERSION"))], 1)],
    );
    let bytes = |blocks: u64| blocks.saturating_mul(u64::from(space.block_bytes));
    text.gauge("syncline_volume_read_only", "Whether nothing can be written.", u64::from(fs.is_read_only()));
    text.gauge(
        "syncline_volume_failed",
        "Whether an error of the device has stopped the volume.",
        u64::from(fs.failure().is_some()),
    );
    text.gauge("syncline_volume_size_bytes", "What files and metadata can take in all.", bytes(space.blocks));
    text.gauge("syncline_volume_free_bytes", "What is not in use.", bytes(space.blocks_free));
    text.gauge(
        "syncline_volume_available_bytes",
        "What a new file could take now.",
        bytes(space.blocks_available),
    );
}

fn add_syncs(text: &mut Text, sources: &Sources<'_>) {
    let account = sources.syncs.account();
    text.histogram(
        "syncline_sync_duration_seconds",
        "How long fsync, fdatasync and durable writes took, from the request to the answer.",
        account.latency(),
    );
    let (answered, batches) = sources.syncs.answered();
    text.counter("syncline_sync_batched_answers_total", "Syncs that were answered in batches.", answered);
    text.counter("syncline_sync_answer_batches_total", "Batches of answers.", batches);
    let kinds: Vec<_> = sources.messages.seen().map(|(name, count)| ([("request", name)], count)).collect();
    let samples: Vec<(&[(&str, &str)], u64)> =
        kinds.iter().map(|(labels, count)| (&labels[..], *count)).collect();
    text.labelled("syncline_requests_total", Kind::Counter, "Requests of the kernel by kind.", &samples);
}

fn add_device(text: &mut Text, sources: &Sources<'_>) {
    let device = sources.fs.stats().device;
    text.counter("syncline_device_reads_total", "Reads of the device.", device.reads);
    text.counter("syncline_device_read_bytes_total", "Bytes read from the device.", device.read_bytes);
    text.counter("syncline_device_writes_total", "Writes to the device.", device.writes);
    text.counter("syncline_device_written_bytes_total", "Bytes written to the device.", device.written_bytes);
    text.counter("syncline_device_flushes_total", "Flushes of the device's cache.", device.flushes);
    text.counter("syncline_device_discards_total", "Discards of free blocks.", device.discards);
}

fn add_journal(text: &mut Text, sources: &Sources<'_>) {
    let stats = sources.fs.stats();
    let (store, load) = (&stats.store, &stats.load);
    text.counter("syncline_journal_groups_total", "Groups of syncs that were made durable.", store.groups);
    text.counter(
        "syncline_journal_batches_total",
        "Batches of changes in these groups.",
        store.grouped_batches,
    );
    text.gauge("syncline_journal_used_bytes", "What the journal may not reuse yet.", load.ring_bytes);
    text.gauge("syncline_journal_size_bytes", "Size of the journal.", load.ring_bytes_max);
    text.gauge("syncline_journal_images", "Page images that live in the journal.", load.images);
    text.counter("syncline_checkpoints_total", "Checkpoints that were written.", store.checkpoints);
    text.histogram(
        "syncline_checkpoint_duration_seconds",
        "How long checkpoints took, a wait for the one before included.",
        &stats.checkpoint_latency,
    );
    text.gauge(
        "syncline_dirty_node_bytes",
        "Tree nodes that the next checkpoint writes.",
        load.dirty_node_bytes,
    );
    text.gauge("syncline_dirty_node_limit_bytes", "Bound on them.", load.dirty_node_bytes_max);
}

fn add_caches(text: &mut Text, sources: &Sources<'_>) {
    let stats = sources.fs.stats();
    let (store, pages) = (&stats.store, &stats.pages);
    let block_bytes = u64::from(sources.fs.statfs().block_bytes);
    let bytes = |pages: u64| pages.saturating_mul(block_bytes);
    text.counter("syncline_node_cache_hits_total", "Tree nodes found in memory.", store.node_cache_hits);
    text.counter(
        "syncline_node_cache_misses_total",
        "Tree nodes that had to be read.",
        store.node_cache_misses,
    );
    text.counter("syncline_page_cache_hits_total", "Pages of files found in memory.", pages.hits);
    text.counter("syncline_page_cache_misses_total", "Pages that had to be read.", pages.misses);
    text.counter("syncline_page_cache_evictions_total", "Pages dropped for want of room.", pages.evictions);
    text.gauge("syncline_page_cache_bytes", "Pages of files in memory.", bytes(pages.cached));
    text.gauge("syncline_page_cache_limit_bytes", "Bound on them.", bytes(pages.cached_max));
    text.gauge("syncline_page_cache_dirty_bytes", "Pages that are not written.", bytes(pages.dirty));
    text.gauge(
        "syncline_page_cache_logged_bytes",
        "Pages that are written in the journal only.",
        bytes(pages.logged),
    );
    text.gauge("syncline_inodes_cached", "Inodes in memory.", stats.inodes_cached);
    text.gauge(
        "syncline_memory_limit_bytes",
        "Bound on pages, tree nodes and inodes.",
        stats.memory_bytes_max,
    );
    text.gauge(
        "syncline_memory_charged_bytes",
        "What transactions and groups keep of it.",
        sources.fs.charged_bytes(),
    );
}

fn add_users(text: &mut Text, sources: &Sources<'_>) {
    let (totals, damaged) = (&sources.staged.totals, sources.fs.stats().set_aside);
    text.gauge("syncline_staged_users", "Users with groups or tickets.", totals.users as u64);
    text.gauge("syncline_staged_groups", "Groups that are open.", totals.groups as u64);
    text.gauge(
        "syncline_staged_tickets",
        "Started syncs that were not asked for yet.",
        totals.tickets as u64,
    );
    text.gauge("syncline_staged_bytes", "Memory of what is staged.", totals.footprint.bytes);
    text.gauge("syncline_damaged_files", "Files set aside because they cannot be written.", damaged.files);
    text.gauge("syncline_damaged_pages", "Their pages.", damaged.pages);
    text.gauge("syncline_damaged_orphans", "Removed files that cannot be freed.", damaged.orphans);
}

/// What Prometheus' own libraries tell of a process.
fn add_process(text: &mut Text) {
    if let Some(bytes) = resident_bytes() {
        text.gauge("process_resident_memory_bytes", "Resident memory of the daemon.", bytes);
    }
    if let Some(time) = cpu_time() {
        text.family("process_cpu_seconds_total", Kind::Counter, "Time of CPUs that the daemon has used.");
        text.sample("process_cpu_seconds_total", &[], time.as_secs_f64());
    }
}

fn resident_bytes() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    // SAFETY: sysconf takes a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.checked_mul(u64::try_from(page_bytes).ok()?)
}

fn cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for writing.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    (told == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The text so far.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.labelled(name, Kind::Counter, help, &[(&[], value)]);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.labelled(name, Kind::Gauge, help, &[(&[], value)]);
    }

    fn labelled(&mut self, name: &str, kind: Kind, help: &str, samples: &[(&[(&str, &str)], u64)]) {
        self.family(name, kind, help);
        for (labels, value) in samples {
            self.sample(name, labels, value);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &LatencyHistogram) {
        self.family(name, Kind::Histogram, help);
        // All from one look, so that they fit each other while syncs go on.
        let buckets = histogram.buckets();
        let up_to = |bound: Duration| -> u64 {
            buckets.iter().filter(|(edge, _)| *edge <= bound).map(|(_, count)| count).sum()
        };
        let bucket = format!("{name}_bucket");
        for bits in BOUND_BITS {
            let bound = Duration::from_nanos((1 << bits) - 1);
            self.sample(&bucket, &[("le", &bound.as_secs_f64().to_string())], up_to(bound));
        }
        self.sample(&bucket, &[("le", "+Inf")], up_to(Duration::MAX));
        self.sample(&format!("{name}_sum"), &[], histogram.total().as_secs_f64());
        self.sample(&format!("{name}_count"), &[], up_to(Duration::MAX));
    }

    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        if labels.is_empty() {
            return self.line(format_args!("{name} {value}"));
        }
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        self.line(format_args!("{name}{{{}}} {value}", labels.join(",")));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// As the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Began;
    use crate::ledger::Ledger;
    use crate::messages::{Message, MessageCounts};
    use crate::statistics::Staged;
    use crate::syncs::Syncs;
    use std::collections::{BTreeMap, BTreeSet};
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use syncline_device::MemoryDevice;
    use syncline_fs::{Fs, FsOptions, MkfsOptions, SystemClock, SystemEntropy};

    #[test]
    fn a_histogram_is_cumulative_and_every_latency_is_in_it() {
        let histogram = LatencyHistogram::default();
        for nanoseconds in [0, 1023, 1024, 5_000_000, u64::MAX] {
            histogram.record(Duration::from_nanos(nanoseconds));
        }
        let mut text = Text::default();
        text.histogram("x_seconds", "Of x.", &histogram);
        let lines: Vec<&str> = text.0.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "# HELP x_seconds Of x.",
                "# TYPE x_seconds histogram",
                "x_seconds_bucket{le=\"0.000001023\"} 2",
            ]
        );
        let counts: Vec<u64> = lines[2..]
            .iter()
            .filter(|line| line.contains("_bucket"))
            .map(|line| line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count"))
            .collect();
        assert!(counts.is_sorted(), "{counts:?}");
        assert_eq!((counts[1], counts.last()), (3, Some(&5)));
        assert_eq!(counts[counts.len() - 2], 4, "the longest is beyond the last bound");
        assert_eq!(lines.last(), Some(&"x_seconds_count 5"));
    }

    /// The metrics of a volume that has a hostile name.
    fn of_a_volume() -> String {
        let device = Arc::new(MemoryDevice::new(4096));
        let entropy = SystemEntropy::default();
        let options = MkfsOptions::default().label("a \"b\\\nc{}");
        Fs::format(&*device, &options, &SystemClock, &entropy, &mut |_, _| {}).unwrap();
        let fs = Fs::open(device, FsOptions::default(), Arc::new(SystemClock), &entropy).unwrap();
        let syncs = Syncs::new(fs.clone(), Arc::new(Ledger::new(fs.clone())));
        syncs.account().record(Began::now(1));
        let messages = MessageCounts::default();
        messages.count(Message::Fsync);
        let staged = Staged::default();
        text(&Sources {
            fs: &fs,
            syncs: &syncs,
            messages: &messages,
            staged,
            transport: None,
            memory: None,
            replica: None,
        })
    }

    /// Names of samples, without labels.
    fn names(text: &str) -> BTreeSet<&str> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| line.split([' ', '{']).next().unwrap_or_default()).collect()
    }

    #[test]
    fn each_family_is_told_once_with_what_it_is_and_by_the_rules_for_names() {
        let text = of_a_volume();
        let mut families = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            assert!(families.insert(name, kind).is_none(), "{name} is told twice");
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert_eq!(name.ends_with("_seconds"), kind == "histogram", "{name}");
        }
        for name in names(&text) {
            let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let of_histogram = stem.is_some_and(|stem| families.get(stem) == Some(&"histogram"));
            assert!(families.contains_key(name) || of_histogram, "{name} has no type");
        }
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_there_are() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana/syncline.json");
        let dashboard: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let text = of_a_volume();
        let names = names(&text);
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
        let asked =
            targets.map(|target| &target["expr"]).chain(variables.map(|variable| &variable["definition"]));
        let mut count = 0;
        for expression in asked.filter_map(|asked| asked.as_str()) {
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("syncline_") || word.starts_with("process_")) {
                assert!(names.contains(name), "{name} in {expression}");
                count += 1;
            }
        }
        assert!(count > 30, "{count}");
    }

    #[test]
    fn promtool_finds_nothing_to_complain_about() {
        let checked = Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).spawn();
        let Ok(mut promtool) = checked else {
            let line = "skipped: promtool_finds_nothing_to_complain_about: there is no promtool";
            writeln!(std::io::stderr(), "{line}").unwrap();
            return;
        };
        promtool.stdin.take().unwrap().write_all(of_a_volume().as_bytes()).unwrap();
        assert!(promtool.wait().unwrap().success());
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = Text::default();
        text.sample("x", &[("label", "a\"b\\c\nd"), ("other", "")], 1);
        assert_eq!(text.0, "x{label=\"a\\\"b\\\\c\\nd\",other=\"\"} 1\n");
    }

    #[test]
    fn the_process_tells_what_it_uses() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 16));
        assert!(cpu_time().is_some_and(|time| time > Duration::ZERO));
    }
}
