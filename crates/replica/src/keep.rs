//! What is kept of a replica, and what is packed for that.
//!
//! Retention is a list of ages and steps, such as `24h@1s,7d@1m,30d@1h,1y@1d`. A step of at most a second means each
//! unit. Each longer step makes a *level* of packs: level 1 holds what the units of a step have made, level 2 what
//! packs of level 1 have, and so on. A *base* is a pack of everything.
//!
//! Ages are counted back from the newest unit, by the writers' clocks: what is kept does not depend on the clock of
//! whoever deletes, and a volume that nobody writes to keeps what it has.

use crate::chain::{Contents, Group, Link, Position};
use std::collections::BTreeSet;
use syncline_format::replica::{Keep, Manifest};

/// Level of bases.
pub const BASE_LEVEL: u8 = u8::MAX;
/// What steps are packed by where retention names none, in seconds.
const STEP: u64 = 60;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// One level of packs, as seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    pub step: u64,
    /// How long a restore may end with such a pack.
    pub age: u64,
}

/// The levels of packs that retention asks for, from level 1 on.
pub fn levels(keep: &[Keep]) -> Vec<Level> {
    let steps = keep.iter().filter(|keep| keep.step > 1);
    let mut levels: Vec<Level> = steps.map(|keep| Level { step: keep.step, age: keep.age }).collect();
    if levels.is_empty() && !keep.is_empty() {
        levels.push(Level { step: STEP, age: 0 });
    }
    levels
}

/// The part of its step that a time lies in.
pub fn part_of(time: u64, level: Level) -> u64 {
    time / level.step.saturating_mul(SECOND)
}

/// Whether something of a time is older than so many seconds.
fn is_older(time: u64, age: u64, now: u64) -> bool {
    time.saturating_add(age.saturating_mul(SECOND)) < now
}

/// The part of a replica that is kept: packs and first unit. `now`: time of the newest unit.
pub fn kept(contents: &Contents, now: u64) -> (BTreeSet<usize>, Position) {
    let manifest = &contents.manifest;
    let levels = levels(&manifest.keep);
    let oldest = manifest.keep.last().map_or(0, |keep| keep.age);
    let units = manifest.keep.first().filter(|keep| keep.step <= 1).map_or(0, |keep| keep.age);
    let from = first_unit(contents, units, now);
    let age_of = |group: &Group| match group.level {
        BASE_LEVEL => oldest,
        level => levels.get(usize::from(level) - 1).map_or(oldest, |level| level.age),
    };
    let ends = contents.groups.iter().filter(|group| !is_older(group.time, age_of(group), now));
    let mut packs = BTreeSet::new();
    for end in ends.map(|group| group.last).chain(contents.before(from)) {
        // Where one chain joins another, all that follows is there.
        let mut cursor = Some(end);
        while let Some(group) = cursor.and_then(|at| contents.group_at(at)) {
            if !packs.insert(group.packs.start) {
                break;
            }
            packs.extend(group.packs.clone());
            cursor = if group.base { None } else { contents.before(group.first) };
        }
    }
    (packs, from)
}

/// The first unit that is kept: everything in front of it is old, and packed. The last unit always is.
fn first_unit(contents: &Contents, age: u64, now: u64) -> Position {
    let manifest = &contents.manifest;
    let old =
        contents.groups.iter().rev().find(|group| is_older(group.time, age, now)).map(|group| group.last);
    let (Some((claim, unit)), Some(last)) = (old, contents.last()) else { return manifest.from };
    manifest.from.max((claim, unit + 1)).min(last.max(manifest.from))
}

/// What packs of a level would be made of.
pub fn inputs(contents: &Contents, level: u8) -> Vec<Link> {
    let behind = contents.groups.iter().filter(|group| group.level >= level).map(|group| group.last).max();
    if level == 1 {
        let Some(last) = contents.last() else { return Vec::new() };
        return contents.units(behind, last).into_iter().map(Link::Unit).collect();
    }
    let finer = contents.groups.iter().filter(|group| group.level == level - 1);
    let finer = finer.filter(|group| behind.is_none_or(|behind| group.last > behind));
    finer.cloned().map(Link::Group).collect()
}

/// Bytes of a base and of what lies over it, up to the last pack; nothing if nothing is packed.
pub fn weights(contents: &Contents) -> Option<(Position, u64, u64)> {
    let last = contents.groups.iter().map(|group| group.last).max()?;
    let chain = contents.chain(last);
    let (mut base, mut over) = (0, 0);
    for link in &chain {
        match link {
            Link::Group(group) if group.base => base += group.bytes,
            Link::Group(group) => over += group.bytes,
            // Of a chain down to the first unit.
            Link::Unit(_) => return None,
        }
    }
    Some((last, base, over))
}

/// Retention as people write it: `24h@1s,7d@1m,30d@1h,1y@1d`, or `all`.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse(text: &str) -> Result<Vec<Keep>, String> {
    if text == "all" {
        return Ok(Vec::new());
    }
    let mut keep: Vec<Keep> = Vec::new();
    for part in text.split(',') {
        let (age, step) = part
            .split_once('@')
            .ok_or_else(|| format!("\"{part}\" is not of the form AGE@STEP, as in 7d@1m"))?;
        let one = Keep { age: seconds(age)?, step: seconds(step)? };
        if keep.last().is_some_and(|before| before.age >= one.age || before.step >= one.step) {
            return Err(format!(
                "\"{part}\" has to keep longer, and in longer steps, than what is in front of it"
            ));
        }
        if one.step > one.age {
            return Err(format!("\"{part}\" keeps steps that are longer than the time"));
        }
        keep.push(one);
    }
    if keep.len() > 8 { Err("there may be eight steps at most".to_owned()) } else { Ok(keep) }
}

/// A time as people write it: a number with s, m, h, d, w or y behind it.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no time from 1s to 1000y");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let unit = match &text[at..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        "y" => 365 * 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    let longest = 1000 * 365 * 86_400;
    number.checked_mul(unit).filter(|seconds| (1..=longest).contains(seconds)).ok_or_else(wrong)
}

/// Retention as [`parse`] takes it.
pub fn tell(manifest: &Manifest) -> String {
    let time = |seconds: u64| {
        let units = [(365 * 86_400, 'y'), (86_400, 'd'), (3_600, 'h'), (60, 'm')];
        let unit = units.into_iter().find(|(length, _)| seconds.is_multiple_of(*length));
        unit.map_or(format!("{seconds}s"), |(length, name)| format!("{}{name}", seconds / length))
    };
    let steps = manifest.keep.iter().map(|keep| format!("{}@{}", time(keep.age), time(keep.step)));
    let steps: Vec<String> = steps.collect();
    if steps.is_empty() { "all".to_owned() } else { steps.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_is_told_as_it_is_read() {
        let manifest = |keep| Manifest { keep, ..Manifest::unpacked([0; 16], 1, 1, 1, Vec::new()) };
        for text in ["1d@1s,7d@1m,30d@1h,1y@1d", "90s@1s", "all", "30d@2h"] {
            assert_eq!(tell(&manifest(parse(text).unwrap())), text);
        }
        assert_eq!(parse("24h@1s,7d@1m,30d@1h,1y@1d").unwrap(), Keep::DEFAULT);
        for wrong in ["", "1d", "1d@", "1d@0s", "7d@1m,1d@1h", "1d@1m,7d@1m", "1m@1h", "1q@1s", "2000y@1d"] {
            let told = parse(wrong).unwrap_err();
            assert!(told.contains('"') && !told.contains('\n'), "{wrong}: {told}");
        }
    }
}
