//! Workloads of many names: links, and syncs beside creations.

use super::{Context, PAGE, page};
use crate::measure::{Latencies, Outcome};
use std::io;
use std::time::{Duration, Instant};

/// Creations that nobody has synced, before each sync of `beside_creates`.
const CREATES: u64 = 2000;
/// Operations of the floor before each round.
const SLICE: u64 = 12;

pub(super) fn link(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    context.backend.make_directory("link")?;
    let file = context.backend.create("link/file")?;
    file.write_at(0, &page(0))?;
    file.sync()?;
    super::timed(context, context.arguments.operations, |index| {
        context.backend.link("link/file", &format!("link/{index}"))?;
        file.sync()
    })
}

/// Only the sync of A is timed; the creations before it are not.
pub(super) fn beside_creates(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    context.backend.make_directory("elsewhere")?;
    context.backend.make_directory("here")?;
    let file = context.backend.create("here/a")?;
    file.sync()?;
    let rounds = (context.arguments.operations / 200).clamp(3, 25);
    let (mut latencies, mut floor) = (Latencies::default(), Latencies::default());
    let mut elapsed = Duration::ZERO;
    context.meter.begin()?;
    for round in 0..rounds {
        context.floor.group(1, SLICE, &mut floor)?;
        for index in 0..CREATES {
            context.backend.create(&format!("elsewhere/{round}-{index}"))?;
        }
        file.write_at(round * PAGE as u64, &page(round))?;
        let begin = Instant::now();
        file.sync()?;
        latencies.push(begin.elapsed());
        elapsed += begin.elapsed();
    }
    context.meter.end()?;
    Ok(Outcome { operations: rounds, elapsed, latencies, floor, ..Outcome::default() })
}
