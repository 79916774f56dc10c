//! `syncline stats`: counters and latencies of a mounted volume, asked of its daemon.
//!
//! Programs get every figure as the daemon counts it, people the same in units, and what a sync costs before
//! everything else.

use crate::arguments::StatsArguments;
use crate::error::Failure;
use crate::output::{self, Form};
use crate::size::{Size, duration, grouped};
use crate::watch::lines;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::ExitCode;

/// Histograms among the statistics, in microseconds, and what people see of them.
const HISTOGRAMS: [(&str, &str); 2] =
    [("fsync_us", "fsync_latency"), ("checkpoint_us", "checkpoint_latency")];
/// Characters of the longest bar of a chart.
const BAR_WIDTH: u64 = 40;

pub(crate) fn run(arguments: &StatsArguments) -> Result<ExitCode, Failure> {
    if let Some(interval) = arguments.watch {
        lines::run(&arguments.directory, interval, arguments.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut statistics = read(&arguments.directory)?;
    add_ratios(&mut statistics);
    let form = Form::json_if(arguments.json);
    if form == Form::Text {
        draw_buckets(&mut statistics);
        statistics = for_people(&statistics);
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
        let rest = std::mem::take(map);
        map.insert("ratios".to_owned(), ratios);
        map.extend(rest);
    }
}

/// The same in units and with thousands apart; the ratios without a heading, and nothing of which there is none.
fn for_people(statistics: &Value) -> Value {
    let Value::Object(map) = statistics else { return statistics.clone() };
    let mut shown = Map::new();
    for (key, value) in map.iter().filter(|(_, value)| !is_nothing(value)) {
        let histogram = HISTOGRAMS.iter().find(|(histogram, _)| histogram == key);
        match (key.as_str(), value) {
            ("ratios", Value::Object(ratios)) => {
                shown.extend(ratios.iter().filter(|(_, ratio)| !ratio.is_null()).map(ratio_for_people));
            }
            ("space", space) => drop(shown.insert(key.clone(), space_for_people(space))),
            ("callers", Value::Array(callers)) => {
                drop(shown.insert(key.clone(), callers.iter().map(caller_for_people).collect()));
            }
            (_, Value::Object(figures)) if let Some((_, name)) = histogram => {
                let figures =
                    figures.iter().map(|(key, value)| (key.clone(), latency_for_people(key, value)));
                shown.insert((*name).to_owned(), figures.collect());
            }
            _ => drop(shown.insert(key.clone(), figure_for_people(key, value))),
        }
    }
    Value::Object(shown)
}

/// Whether there is nothing to tell: no words, and no figures or only zeros in a table.
fn is_nothing(value: &Value) -> bool {
    let is_zero = |value: &Value| value.as_f64() == Some(0.0);
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(|value| is_nothing(value) || is_zero(value)),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn latency_for_people(key: &str, value: &Value) -> Value {
    match (key, value.as_f64()) {
        ("count", Some(_)) | (_, None) => figure_for_people(key, value),
        (_, Some(microseconds)) => duration(microseconds).into(),
    }
}

fn caller_for_people(caller: &Value) -> Value {
    let syncs = caller["fsyncs"].as_u64().unwrap_or(0);
    let total = caller["fsync_total_us"].as_f64().unwrap_or(0.0);
    let pid = caller["pid"].as_u64().map_or_else(String::new, |pid| format!(" (pid {pid})"));
    let name = caller["name"].as_str().unwrap_or_default();
    let mean = duration(total / syncs.max(1) as f64);
    format!("{name}{pid}: {} fsyncs, mean {mean}, in all {}", grouped(syncs), duration(total)).into()
}

fn ratio_for_people((key, value): (&String, &Value)) -> (String, Value) {
    match key.strip_suffix("_percent") {
        Some(name) if !value.is_null() => (format!("{name}s"), format!("{value} %").into()),
        Some(name) => (format!("{name}s"), Value::Null),
        None => (key.clone(), value.clone()),
    }
}

fn space_for_people(space: &Value) -> Value {
    let size = |blocks: &str| {
        let bytes = space[blocks].as_u64().zip(space["block_bytes"].as_u64());
        bytes.map(|(blocks, bytes)| Size(blocks.saturating_mul(bytes)).to_string())
    };
    json!({"size": size("blocks"), "free": size("blocks_free"), "available": size("blocks_available")})
}

fn figure_for_people(key: &str, value: &Value) -> Value {
    let is_size = key.ends_with("bytes") || key.ends_with("bytes_max");
    match value {
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.clone(), figure_for_people(key, value))).collect()
        }
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if is_size => Size(bytes).to_string().into(),
            Some(count) => grouped(count).into(),
            None => decimal(number.as_f64().unwrap_or(0.0)).into(),
        },
        other => other.clone(),
    }
}

/// A decimal where it says something.
fn decimal(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { grouped(number.round() as u64) }
}

/// Turns the histograms into charts: a line for each power of two.
fn draw_buckets(statistics: &mut Value) {
    for (histogram, _) in HISTOGRAMS {
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
            *bucket = format!("<= {:>8} {:>11}  {bar}", duration(up_to), grouped(count)).into();
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
    fn people_see_what_a_sync_costs_first_and_everything_in_units() {
        let mut figures = json!({
            "label": "x",
            "space": {"block_bytes": 4096, "blocks": 1 << 20, "blocks_free": 1000, "blocks_available": 0},
            "device": {"writes": 1_234_567, "written_bytes": 141_646_092, "flushes": 99},
            "fsync_us": {"count": 99, "mean": 1234.56, "p50": 12.345},
            "page_cache": {"hits": 1, "misses": 3},
        });
        add_ratios(&mut figures);
        let shown = for_people(&figures);
        let keys: Vec<&String> = shown.as_object().expect("an object").keys().collect();
        assert_eq!(keys[..2], ["device_writes_per_fsync", "device_flushes_per_fsync"]);
        assert_eq!(shown["device_flushes_per_fsync"], 1.0);
        assert_eq!(shown["page_cache_hits"], "25.0 %");
        assert_eq!(shown["node_cache_hits"], Value::Null);
        assert_eq!(shown["space"], json!({"size": "4 GiB", "free": "3.9 MiB", "available": "0 bytes"}));
        assert_eq!(
            shown["device"],
            json!({"writes": "1,234,567", "written_bytes": "135.0 MiB", "flushes": "99"})
        );
        assert_eq!(shown["fsync_latency"], json!({"count": "99", "mean": "1.23 ms", "p50": "12 us"}));
        assert_eq!(figures["device"]["written_bytes"], 141_646_092, "programs get what was counted");
    }

    #[test]
    fn people_see_no_tables_of_nothing() {
        let mut figures = json!({
            "label": "", "failure": null, "read_only": false, "inodes_cached": 0,
            "staged": {"users": 0, "groups": 0}, "messages": {}, "callers": [],
            "checkpoint_us": {"count": 0, "total": 0.0, "buckets": []},
            "device": {"writes": 1, "discards": 0},
        });
        add_ratios(&mut figures);
        let shown = for_people(&figures);
        let keys: Vec<&String> = shown.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["read_only", "inodes_cached", "device"]);
        assert_eq!(figures["staged"]["users"], 0, "programs get what was counted");
    }

    #[test]
    fn people_see_who_syncs() {
        let callers = json!([
            {"pid": 7, "name": "a db", "fsyncs": 2000, "fsync_total_us": 1e6},
            {"pid": null, "name": "others", "fsyncs": 1, "fsync_total_us": 5.0},
        ]);
        let shown = for_people(&json!({"callers": callers}));
        let expected = [
            "a db (pid 7): 2,000 fsyncs, mean 500 us, in all 1.00 s",
            "others: 1 fsyncs, mean 5.0 us, in all 5.0 us",
        ];
        assert_eq!(shown["callers"], json!(expected));
    }

    #[test]
    fn charts_are_as_wide_as_the_largest_bucket_and_show_the_smallest() {
        let buckets = json!([{"up_to": 131.071, "count": 1000}, {"up_to": 262.143, "count": 1}]);
        let mut figures = json!({"fsync_us": {"count": 1001, "buckets": buckets}});
        draw_buckets(&mut figures);
        let line = |index: usize| figures["fsync_us"]["buckets"][index].as_str().expect("a line").to_owned();
        assert_eq!(line(0), format!("<=   131 us       1,000  {}", "#".repeat(40)));
        assert!(line(1).ends_with("          1  #"), "{}", line(1));
    }
}
