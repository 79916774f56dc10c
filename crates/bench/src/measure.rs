//! Latencies, processor time and the device's counters, and how they become figures.

use crate::device::Statistics;
use crate::floor::Floor;
use crate::row::Figures;
use crate::system::Mounted;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

/// The kernel tells programs its times in hundredths, whatever its own clock.
const TICKS_PER_SECOND: f64 = 100.0;

/// Latencies of single operations.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn push(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    pub(crate) fn extend(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// The latency that `share` (0 to 1) of the operations did not exceed, in microseconds; `None` of nothing.
    pub(crate) fn quantile_us(&self, share: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let index = (sorted.len().saturating_sub(1) as f64 * share) as usize;
        sorted.get(index).map(|latency| latency.as_secs_f64() * 1e6)
    }
}

/// What a workload hands back.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    /// Syncs, where they are to be compared with the device's flushes.
    pub(crate) syncs: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Latencies,
    /// Of the floor, in slices between the operations.
    pub(crate) floor: Latencies,
    /// Whatever else it tells.
    pub(crate) figures: Figures,
    pub(crate) series: BTreeMap<String, Vec<f64>>,
    pub(crate) skipped: Option<String>,
}

impl Outcome {
    pub(crate) fn skipped(why: impl Into<String>) -> Outcome {
        Outcome { skipped: Some(why.into()), ..Outcome::default() }
    }

    pub(crate) fn with(mut self, name: &str, figure: f64) -> Outcome {
        self.figures.insert(name.to_owned(), figure);
        self
    }

    /// Everything it tells, and what the counters say beside it.
    pub(crate) fn into_figures(self, spent: &Spent) -> (Figures, BTreeMap<String, Vec<f64>>, Option<String>) {
        let mut figures = self.figures;
        let mut put = |name: &str, value: Option<f64>| {
            if let Some(value) = value {
                figures.entry(name.to_owned()).or_insert(value);
            }
        };
        let seconds = self.elapsed.as_secs_f64();
        if self.operations > 0 {
            put("operations", Some(self.operations as f64));
            put("ops_per_s", Some(self.operations as f64 / seconds));
        }
        if self.bytes > 0 {
            put("mb_per_s", Some(self.bytes as f64 / 1e6 / seconds));
        }
        put("seconds", (seconds > 0.0).then_some(seconds));
        put("p50_us", self.latencies.quantile_us(0.5));
        put("p99_us", self.latencies.quantile_us(0.99));
        put("max_us", self.latencies.quantile_us(1.0));
        let floor = self.floor.quantile_us(0.5);
        put("floor_us", floor);
        put("x_floor", self.latencies.quantile_us(0.5).zip(floor).map(|(p50, floor)| p50 / floor));
        if let Some(device) = spent.device.filter(|device| self.syncs > 0 && device.flushes > 0) {
            put("syncs_per_flush", Some(self.syncs as f64 / device.flushes as f64));
        }
        spent.put(self.operations, &mut put);
        (figures, self.series, self.skipped)
    }
}

/// What was counted at one moment.
#[derive(Debug, Clone, Copy)]
struct Snapshot {
    device: Option<Statistics>,
    busy_seconds: f64,
    records: Option<u64>,
}

/// What a measured part took.
#[derive(Debug)]
pub(crate) struct Spent {
    device: Option<Statistics>,
    busy_seconds: f64,
    records: Option<u64>,
    /// As [`Mounted::flushes_alone`].
    flushes_alone: bool,
}

impl Spent {
    fn put(&self, operations: u64, put: &mut impl FnMut(&str, Option<f64>)) {
        put("cpu_s", Some(self.busy_seconds));
        if let Some(device) = self.device {
            put("device_reads", Some(device.reads as f64));
            put("device_writes", Some(self.writes(device)));
            put("device_kib", Some(device.sectors_written as f64 / 2.0));
            put("device_flushes", Some(device.flushes as f64));
        }
        if operations > 0 {
            let each = |count: f64| Some(count / operations as f64);
            put("cpu_us_per_op", each(self.busy_seconds * 1e6));
            if let Some(device) = self.device {
                put("writes_per_op", each(self.writes(device)));
                put("flushes_per_op", each(device.flushes as f64));
                put("kib_per_op", each(device.sectors_written as f64 / 2.0));
            }
            put("records_per_op", self.records.and_then(|records| each(records as f64)));
        }
    }

    fn writes(&self, device: Statistics) -> f64 {
        writes(device, self.flushes_alone)
    }
}

/// The block layer counts a stand-alone flush as one write more; Syncline issues only such flushes, so they are taken
/// off. The kernel's file systems also flush as part of a write, which nothing in the statistics tells apart: their
/// figure is left as it is, an upper bound.
fn writes(device: Statistics, flushes_alone: bool) -> f64 {
    let flushes = if flushes_alone { device.flushes } else { 0 };
    device.writes.saturating_sub(flushes) as f64
}

/// Counts a workload's measured part, which begins and ends where the workload says: preparations do not count.
pub(crate) struct Meter<'a> {
    mounted: &'a Mounted<'a>,
    floor: &'a Floor,
    begun: RefCell<Snapshot>,
    ended: RefCell<Option<Snapshot>>,
}

impl<'a> Meter<'a> {
    /// Begins at once, for workloads without preparations.
    pub(crate) fn begin_at(mounted: &'a Mounted<'a>, floor: &'a Floor) -> io::Result<Meter<'a>> {
        let begun = RefCell::new(snapshot(mounted, floor)?);
        Ok(Meter { mounted, floor, begun, ended: RefCell::new(None) })
    }

    pub(crate) fn begin(&self) -> io::Result<()> {
        *self.begun.borrow_mut() = snapshot(self.mounted, self.floor)?;
        Ok(())
    }

    pub(crate) fn end(&self) -> io::Result<()> {
        *self.ended.borrow_mut() = Some(snapshot(self.mounted, self.floor)?);
        Ok(())
    }

    /// The device's counters as they are now, where it has any.
    pub(crate) fn device(&self) -> io::Result<Option<Statistics>> {
        self.mounted.statistics()
    }

    /// Of counted writes those that carried data, as far as that can be told.
    pub(crate) fn writes(&self, counted: Statistics) -> f64 {
        writes(counted, self.mounted.flushes_alone())
    }

    /// What it took, up to the end if one was set, else up to now.
    pub(crate) fn spent(&self) -> io::Result<Spent> {
        let begun = *self.begun.borrow();
        let ended = match *self.ended.borrow() {
            Some(ended) => ended,
            None => snapshot(self.mounted, self.floor)?,
        };
        Ok(Spent {
            device: ended.device.zip(begun.device).map(|(ended, begun)| ended.since(begun)),
            busy_seconds: (ended.busy_seconds - begun.busy_seconds).max(0.0),
            records: ended.records.zip(begun.records).map(|(ended, begun)| ended - begun),
            flushes_alone: self.mounted.flushes_alone(),
        })
    }
}

fn snapshot(mounted: &Mounted<'_>, floor: &Floor) -> io::Result<Snapshot> {
    let records = mounted.records()?;
    let device = mounted.statistics()?;
    Ok(Snapshot { device, busy_seconds: busy_seconds()? - floor.busy_seconds(), records })
}

/// Processor time that the whole machine has spent: the caller's, the daemon's and the kernel's threads' alike. Only
/// true for a workload when nothing else runs.
pub(crate) fn busy_seconds() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0.0)).collect();
    // user, nice, system, interrupts and soft interrupts; neither idle nor waiting nor stolen.
    let busy: f64 = [0, 1, 2, 5, 6].iter().filter_map(|&index| ticks.get(index)).sum();
    Ok(busy / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_latencies_that_occurred() {
        let mut latencies = Latencies::default();
        for us in [30, 10, 20, 40] {
            latencies.push(Duration::from_micros(us));
        }
        assert_eq!(latencies.quantile_us(0.5), Some(20.0));
        assert_eq!(latencies.quantile_us(1.0), Some(40.0));
        assert_eq!(Latencies::default().quantile_us(0.5), None);
    }

    #[test]
    fn stand_alone_flushes_are_no_writes_of_syncline() {
        let device = Statistics { reads: 0, writes: 20, sectors_written: 160, flushes: 10 };
        let mut spent =
            Spent { device: Some(device), busy_seconds: 0.0, records: Some(10), flushes_alone: true };
        assert_eq!(spent.writes(device), 10.0);
        spent.flushes_alone = false;
        assert_eq!(spent.writes(device), 20.0);
    }
}
