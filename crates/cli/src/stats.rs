//! `syncline stats`: counters and latencies of a mounted volume, asked of its daemon.

use crate::arguments::StatsArguments;
use crate::error::Failure;
use crate::output::{self, Form};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &StatsArguments) -> Result<ExitCode, Failure> {
    let mut statistics = read(&arguments.directory)?;
    add_ratios(&mut statistics);
    output::object(Form::json_if(arguments.json), &statistics).map_err(Failure::io("cannot print"))?;
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
    let lookups = number("/store/node_cache_hits") + number("/store/node_cache_misses");
    let ratios = json!({
        "device_writes_per_fsync": ratio(number("/device/writes"), syncs),
        "device_flushes_per_fsync": ratio(number("/device/flushes"), syncs),
        "batches_per_record": ratio(number("/store/grouped_batches"), number("/store/groups")),
        "node_cache_hit_percent": ratio(100.0 * number("/store/node_cache_hits"), lookups),
    });
    if let Value::Object(map) = statistics {
        map.insert("ratios".to_owned(), ratios);
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
}
