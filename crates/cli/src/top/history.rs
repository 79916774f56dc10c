//! What is known of a watched mount: the last two looks, and a line of points of the time before.

use crate::error::Failure;
use crate::watch::{Between, Sample};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

/// Points that are kept: more than any terminal is wide.
const POINTS_MAX: usize = 512;

/// A watched mount.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) directory: PathBuf,
    before: Option<Sample>,
    after: Option<Sample>,
    /// Syncs per second, and the 99th percentile of their latency in microseconds, the newest last.
    pub(crate) points: VecDeque<(u64, u64)>,
    /// Why nothing is known any more.
    pub(crate) lost: Option<String>,
}

/// A program that syncs, between two looks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Caller {
    pub(crate) pid: Option<u64>,
    pub(crate) name: String,
    pub(crate) syncs: f64,
    /// Time that these syncs took, added up, in microseconds.
    pub(crate) waited: f64,
}

impl History {
    pub(crate) fn new(directory: &Path) -> History {
        History {
            directory: directory.to_owned(),
            before: None,
            after: None,
            points: VecDeque::new(),
            lost: None,
        }
    }

    /// Looks; an error if it is no mount.
    pub(crate) fn look(&mut self) -> Result<(), Failure> {
        let sample = Sample::take(&self.directory)?;
        self.lost = None;
        self.add(sample);
        Ok(())
    }

    /// Looks; a mount that has ended is shown as such, and may come back.
    pub(crate) fn look_on(&mut self) {
        if let Err(error) = self.look() {
            self.lost = Some(error.to_string());
        }
    }

    pub(crate) fn add(&mut self, sample: Sample) {
        self.before = self.after.take();
        self.after = Some(sample);
        let Some(between) = self.between() else { return };
        let latency = between.quantile("fsync_us", 0.99).unwrap_or(0.0);
        let point = (between.per_second("/fsync_us/count").round() as u64, latency.round() as u64);
        self.points.push_back(point);
        if self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
    }

    /// The last two looks, once there are two.
    pub(crate) fn between(&self) -> Option<Between<'_>> {
        Some(Between { before: self.before.as_ref()?, after: self.after.as_ref()? })
    }

    pub(crate) fn last(&self) -> Option<&Sample> {
        self.after.as_ref()
    }

    /// Those who have synced between the last two looks; who waited longest comes first.
    pub(crate) fn callers(&self) -> Vec<Caller> {
        let Some(between) = self.between() else { return Vec::new() };
        let before: HashMap<_, _> =
            callers_of(between.before).into_iter().map(|caller| (caller.key(), caller)).collect();
        let mut grown: Vec<Caller> = callers_of(between.after)
            .into_iter()
            .map(|caller| match before.get(&caller.key()) {
                // Fewer than before: part of them has gone over to the others.
                Some(before) if before.syncs <= caller.syncs => Caller {
                    syncs: caller.syncs - before.syncs,
                    waited: caller.waited - before.waited,
                    ..caller
                },
                _ => caller,
            })
            .filter(|caller| caller.syncs > 0.0)
            .collect();
        grown.sort_by(|first, second| second.waited.total_cmp(&first.waited));
        grown
    }
}

impl Caller {
    fn key(&self) -> (Option<u64>, String) {
        (self.pid, self.name.clone())
    }
}

fn callers_of(sample: &Sample) -> Vec<Caller> {
    let list = sample.figures["callers"].as_array();
    let caller = |told: &serde_json::Value| Caller {
        pid: told["pid"].as_u64(),
        name: told["name"].as_str().unwrap_or_default().to_owned(),
        syncs: told["fsyncs"].as_f64().unwrap_or(0.0),
        waited: told["fsync_total_us"].as_f64().unwrap_or(0.0),
    };
    list.into_iter().flatten().map(caller).collect()
}
