//! `syncline stats`: counters and latencies of a mounted volume, asked of its daemon.

use crate::arguments::StatsArguments;
use crate::error::Failure;
use crate::output::{self, Form};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// Histograms among the statistics.
const HISTOGRAMS: [&str; 2] = ["fsync_us", "checkpoint_us"];
/// Characters of the longest bar of a chart.
const BAR_WIDTH: u64 = 40;

pub(crate) fn run(arguments: &StatsArguments) -> Result<ExitCode, Failure> {
    let mut statistics = read(&arguments.directory)?;
    add_ratios(&mut statistics);
    let form = Form::json_if(arguments.json);
    if form == Form::Text {
        draw_buckets(&mut statistics);
    }
    output::object(form, &statistics).map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}

/// Adds what people ask for first: what a sync costs, and how many share a record.
fn add_ratios(statistics: &mut Value) {
    let number = |path: &str| statistics.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
    let ratio = |part: f64, whole: f64| match whole > 0.0 {
        // Two decimals: more would pretend a precision that background writes do not allow.
        true => Value::from((100.0 * part / whole).round() / 100.0),
        false => Value::Null,
    };
    let syncs = number("/fsync_us/count");
    let pages = number("/page_cache/hits") + number("/page_cache/misses");
    let lookups = number("/store/node_cache_hits") + number("/store/node_cache_misses");
    let ratios = json!({
        "device_writes_per_fsync": ratio(number("/device/writes"), syncs),
        "device_flushes_per_fsync": ratio(number("/device/flushes"), syncs),
        "batches_per_record": ratio(number("/store/grouped_batches"), number("/store/groups")),
        "node_cache_hit_percent": ratio(100.0 * number("/store/node_cache_hits"), lookups),
        "page_cache_hit_percent": ratio(100.0 * number("/page_cache/hits"), pages),
    });
    if let Value::Object(map) = statistics {
        map.insert("ratios".to_owned(), ratios);
    }
}

/// Turns the histograms into charts: a line for each power of two.
fn draw_buckets(statistics: &mut Value) {
    for histogram in HISTOGRAMS {
        let Some(Value::Array(buckets)) = statistics.pointer_mut(&format!("/{histogram}/buckets")) else {
            continue;
        };
        let count = |bucket: &Value| bucket["count"].as_u64().unwrap_or(0);
        let most = buckets.iter().map(count).max().unwrap_or(0).max(1);
        for bucket in buckets {
            let (up_to, count) = (bucket["up_to"].as_f64().unwrap_or(0.0), count(bucket));
            // Whoever is counted at all is seen.
            let length = u128::from(count) * u128::from(BAR_WIDTH) / u128::from(most);
            let bar = "#".repeat((length as usize).max(usize::from(count > 0)));
            *bucket = format!("<= {up_to:>12.0} us {count:>10}  {bar}").into();
        }
    }
}

/// The daemon's figures.
pub(crate) fn read(directory: &Path) -> Result<Value, Failure> {
    let text = syncline_fuse::statistics(directory).map_err(Failure::Mount)?;
    serde_json::from_str(&text).map_err(|error| Failure::Io {
        doing: format!("the daemon of {} sent statistics that cannot be read", directory.display()),
        source: error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_rounded_and_absent_without_syncs() {
        let mut figures = json!({"device": {"writes": 104, "flushes": 101}, "fsync_us": {"count": 99}});
        add_ratios(&mut figures);
        assert_eq!(figures["ratios"]["device_writes_per_fsync"], 1.05);
        assert_eq!(figures["ratios"]["device_flushes_per_fsync"], 1.02);
        assert_eq!(figures["ratios"]["batches_per_record"], Value::Null);
    }

    #[test]
    fn charts_are_as_wide_as_the_largest_bucket_and_show_the_smallest() {
        let buckets = json!([{"up_to": 131.071, "count": 1000}, {"up_to": 262.143, "count": 1}]);
        let mut figures = json!({"fsync_us": {"count": 1001, "buckets": buckets}});
        draw_buckets(&mut figures);
        let line = |index: usize| figures["fsync_us"]["buckets"][index].as_str().expect("a line").to_owned();
        assert_eq!(line(0), format!("<=          131 us       1000  {}", "#".repeat(40)));
        assert!(line(1).ends_with("          1  #"), "{}", line(1));
    }
}
