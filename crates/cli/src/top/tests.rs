use super::*;
use crate::watch::Sample;
use serde_json::{Value, json};
use std::path::Path;

fn figures(syncs: u64) -> Value {
    json!({
        "label": "la\u{1b}bel", "transport": "io_uring", "failure": null,
        "fsync_us": {"count": syncs, "max": 9000.0, "buckets": [{"up_to": 256.0, "count": syncs}]},
        "device": {"writes": syncs + syncs / 50, "flushes": syncs, "written_bytes": 4096 * syncs},
        "store": {
            "groups": syncs / 4, "grouped_batches": syncs, "checkpoints": syncs / 1000,
            "journal_bytes": 3 << 20, "journal_bytes_max": 16 << 20, "dirty_node_bytes": 1, "dirty_node_bytes_max": 4,
            "node_cache_hits": 10 * syncs, "node_cache_misses": 0,
        },
        "page_cache": {"bytes": 96 << 20, "hits": 3 * syncs, "misses": syncs},
        "checkpoint_us": {"last": 12_000.0},
        "memory_bytes_max": 256 << 20,
        "callers": [
            {"pid": 7, "name": "quick", "fsyncs": syncs / 2, "fsync_total_us": 50.0 * syncs as f64},
            {"pid": 8, "name": "slow", "fsyncs": syncs / 4, "fsync_total_us": 250.0 * syncs as f64},
            {"pid": 9, "name": "asleep", "fsyncs": 5, "fsync_total_us": 1e9},
        ],
    })
}

fn watched(directory: &str) -> History {
    let mut mount = History::new(Path::new(directory));
    let at = Instant::now();
    for second in 0..4 {
        let sample = Sample {
            at: at + Duration::from_secs(second),
            figures: figures(10_000 + 2000 * second * second),
        };
        mount.add(sample);
    }
    mount
}

fn text(mounts: &[History], selected: usize, size: (u16, u16)) -> String {
    lines(&drawn(mounts, selected, size)).join("\n")
}

#[test]
fn a_screen_tells_what_syncs_do_and_who_asks() {
    let shown = text(&[watched("/mnt")], 0, (100, 30));
    // 4,000 to 10,000 in the third second: 10,000 syncs, all up to 256 us, none below half of it.
    for expected in [
        "syncline top  /mnt  la\\u{1b}bel  io_uring  (q ends)",
        "10,000 /s",
        "28,000 since the mount",
        "p50 192 us  p90 243 us  p99 255 us",
        "longest since the mount 9.00 ms",
        "39.0 MiB/s",
        "18.8 %",
        "28 (+10)",
        "12.00 ms",
        "96 MiB",
        "75.0 %",
        "100.0 %",
        "▃██",
    ] {
        assert!(shown.contains(expected), "{expected} in\n{shown}");
    }
    let figure = |name: &str| {
        let rest = shown.split(name).nth(1).unwrap_or_else(|| panic!("{name} in\n{shown}"));
        rest.split('│').next().unwrap_or_default().trim().to_owned()
    };
    assert_eq!(
        [figure("│writes"), figure("│flushes"), figure("batches in a group")],
        ["1.02", "1.00", "4.00"]
    );
    let (slow, quick) = (shown.find("slow").unwrap(), shown.find("quick").unwrap());
    assert!(slow < quick && !shown.contains("asleep"), "{shown}");
    assert!(figure("│8  ").starts_with("slow"), "{shown}");
}

#[test]
fn several_mounts_stand_in_a_list_and_one_that_has_ended_says_so() {
    let mut mounts = [watched("/mnt"), watched("/data")];
    mounts[1].lost = Some("it is gone".to_owned());
    let shown = text(&mounts, 1, (100, 30));
    assert!(shown.starts_with("syncline top  /data  ended: it is gone"), "{shown}");
    assert!(
        shown.contains("  /mnt") && shown.contains("> /data") && shown.contains("mounts (tab)"),
        "{shown}"
    );
}

#[test]
fn small_terminals_and_mounts_without_figures_are_no_reason_to_stop() {
    for size in [(1, 1), (10, 3), (40, 12), (80, 24), (500, 100)] {
        text(&[watched("/mnt"), History::new(Path::new("/x"))], 0, size);
        text(&[watched("/mnt"), History::new(Path::new("/x"))], 1, size);
    }
    assert!(text(&[watched("/mnt")], 0, (80, 24)).contains("p50"));
}

#[test]
fn keys_end_and_choose() {
    let wish = |code, modifiers| wish_of(KeyEvent::new(code, modifiers));
    assert_eq!(wish(KeyCode::Char('q'), KeyModifiers::NONE), Wish::End);
    assert_eq!(wish(KeyCode::Char('c'), KeyModifiers::CONTROL), Wish::End);
    assert_eq!(wish(KeyCode::Char('c'), KeyModifiers::NONE), Wish::Nothing);
    assert_eq!(wish(KeyCode::Tab, KeyModifiers::NONE), Wish::Next);
    assert_eq!(wish(KeyCode::BackTab, KeyModifiers::SHIFT), Wish::Previous);
}
