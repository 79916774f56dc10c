//! One result: named figures of one workload on one system in one round, as they are kept in JSON.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The figure `p50_us` is a latency, `device_writes_per_op` counts; a name says its unit.
pub(crate) type Figures = BTreeMap<String, f64>;

/// What a workload gave on a system.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) system: String,
    pub(crate) workload: String,
    pub(crate) round: usize,
    pub(crate) figures: Figures,
    /// Figures over time: name, and one value a second.
    pub(crate) series: BTreeMap<String, Vec<f64>>,
    /// Why there are no figures.
    pub(crate) skipped: Option<String>,
    /// How a mount's requests reached the daemon, as it told itself.
    pub(crate) transport: Option<String>,
    /// Seconds from making the system to taking it down: what a run of it costs.
    pub(crate) took_s: Option<f64>,
}

impl Row {
    /// With figures and nothing else.
    #[cfg(test)]
    pub(crate) fn of(system: &str, workload: &str, figures: &[(&str, f64)]) -> Row {
        Row {
            system: system.to_owned(),
            workload: workload.to_owned(),
            round: 0,
            figures: figures.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
            series: BTreeMap::new(),
            skipped: None,
            transport: None,
            took_s: None,
        }
    }

    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    pub(crate) fn json(&self) -> Value {
        let mut row = json!({
            "system": self.system,
            "workload": self.workload,
            "round": self.round,
            "figures": self.figures,
        });
        if let Some(fields) = row.as_object_mut() {
            if !self.series.is_empty() {
                fields.insert("series".to_owned(), json!(self.series));
            }
            if let Some(why) = &self.skipped {
                fields.insert("skipped".to_owned(), json!(why));
            }
            if let Some(transport) = &self.transport {
                fields.insert("transport".to_owned(), json!(transport));
            }
            if let Some(seconds) = self.took_s {
                fields.insert("took_s".to_owned(), json!(seconds));
            }
        }
        row
    }

    /// `None` if a field is missing or of another type.
    pub(crate) fn from_json(value: &Value) -> Option<Row> {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let none = Map::new();
        let figures = value["figures"].as_object()?.iter();
        let series = value["series"].as_object().unwrap_or(&none).iter();
        Some(Row {
            system: text("system")?,
            workload: text("workload")?,
            round: usize::try_from(value["round"].as_u64()?).ok()?,
            // What is no number in JSON (a quotient by zero) is written as null and left out here.
            figures: figures.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect(),
            series: series
                .filter_map(|(name, values)| {
                    let values = values.as_array()?.iter().filter_map(Value::as_f64).collect();
                    Some((name.clone(), values))
                })
                .collect(),
            skipped: text("skipped"),
            transport: text("transport"),
            took_s: value["took_s"].as_f64(),
        })
    }
}

/// The middle value, or halfway between the two in the middle, so that neither latencies nor rates look better than
/// they are; `None` of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(f64::midpoint(values[last / 2], values[last.div_ceil(2)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_survives_json() {
        let row = Row {
            system: "dir:/mnt/a,b".to_owned(),
            workload: "append".to_owned(),
            round: 3,
            figures: [("p50_us".to_owned(), 1.25)].into(),
            series: [("p99_ms".to_owned(), vec![1.0, 2.5])].into(),
            skipped: Some("no \"fio\"".to_owned()),
            transport: Some("/dev/fuse".to_owned()),
            took_s: Some(1.5),
        };
        assert_eq!(Row::from_json(&row.json()), Some(row));
    }

    #[test]
    fn median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(vec![4.0, 1.0, 9.0]), Some(4.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0, 4.0]), Some(3.0));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn row_without_a_round_is_refused() {
        assert_eq!(Row::from_json(&json!({"system": "a", "workload": "b", "figures": {}})), None);
    }
}
