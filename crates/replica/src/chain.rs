//! [`Contents`]: which objects a replica consists of, and which of them a position needs.
//!
//! A *position* is a claim and a unit of it. A *group* is all packs of the same units: each is about some of the
//! volume's blocks, all together about all of them. A position is restored from a *chain*: the largest group that ends
//! with it, or else its unit; then the same for the position in front of that; down to a base.

use crate::error::ReplicaError;
use crate::names::Names;
use crate::search::EndSearch;
use std::ops::Range;
use syncline_format::replica::{Manifest, NUMBER_END, Pack};

pub type Position = (u64, u64);

/// An object that holds blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Unit(Position),
    /// By its number in the manifest.
    Pack(usize),
}

/// Packs of the same units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub first: Position,
    pub last: Position,
    pub level: u8,
    pub base: bool,
    pub time: u64,
    pub lsn: u64,
    pub predecessor: u64,
    pub tail: u64,
    pub bytes: u64,
    /// Their numbers in the manifest.
    pub packs: Range<usize>,
}

/// One step of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    Unit(Position),
    Group(Group),
}

/// A manifest, and how many units its own claim has.
#[derive(Debug, Clone)]
pub struct Contents {
    pub manifest: Manifest,
    pub end: u64,
    pub groups: Vec<Group>,
}

/// Where the search for the end of a manifest's own claim begins.
pub fn search_of(manifest: &Manifest) -> EndSearch {
    match manifest.from {
        (claim, unit) if claim == manifest.claim => EndSearch::from(unit),
        _ => EndSearch::default(),
    }
}

impl Contents {
    /// # Errors
    /// The manifest's packs do not fit each other.
    pub fn of(manifest: Manifest, names: &Names, end: u64) -> Result<Contents, ReplicaError> {
        let groups = groups(&manifest).ok_or_else(|| ReplicaError::Inconsistent {
            name: names.manifest(manifest.number),
            what: "its packs are not about all of the volume",
        })?;
        Ok(Contents { manifest, end, groups })
    }

    /// How many units a claim has; 0 for one that nothing is known of.
    pub fn units_of(&self, claim: u64) -> u64 {
        match claim == self.manifest.claim {
            true => self.end,
            false => (claim as usize)
                .checked_sub(1)
                .map_or(0, |at| self.manifest.ends.get(at).map_or(0, |end| end.units)),
        }
    }

    /// The unit in front of a position.
    pub fn before(&self, position: Position) -> Option<Position> {
        match position {
            (claim, unit) if unit > 0 => Some((claim, unit - 1)),
            (claim, _) => (1..claim)
                .rev()
                .find(|claim| self.units_of(*claim) > 0)
                .map(|claim| (claim, self.units_of(claim) - 1)),
        }
    }

    /// The last unit.
    pub fn last(&self) -> Option<Position> {
        self.before((self.manifest.claim + 1, 0))
    }

    /// Units behind one position, up to another one, as far as the manifest keeps them; ascending.
    pub fn units(&self, behind: Option<Position>, upto: Position) -> Vec<Position> {
        let from = self.manifest.from;
        let mut units = Vec::new();
        for claim in from.0..=upto.0.min(self.manifest.claim) {
            let start = if claim == from.0 { from.1 } else { 0 };
            let start = match behind {
                Some((other, unit)) if other == claim => start.max(unit + 1),
                Some((other, _)) if other > claim => NUMBER_END,
                _ => start,
            };
            let end = self.units_of(claim);
            let end = if claim == upto.0 { end.min(upto.1.saturating_add(1)) } else { end };
            units.extend((start..end).map(|unit| (claim, unit)));
        }
        units
    }

    /// The largest group that ends with a position.
    pub fn group_at(&self, position: Position) -> Option<&Group> {
        let from = self.groups.partition_point(|group| group.last < position);
        let here = self.groups[from..].iter().take_while(|group| group.last == position);
        here.min_by_key(|group| group.first)
    }

    /// What the state at a position consists of, from the newest on. It ends with a base, or where nothing is known to
    /// be; that a unit is a base is not known here.
    pub fn chain(&self, end: Position) -> Vec<Link> {
        let mut links = Vec::new();
        let mut cursor = Some(end);
        while let Some(at) = cursor {
            match self.group_at(at) {
                Some(group) => {
                    cursor = if group.base { None } else { self.before(group.first) };
                    links.push(Link::Group(group.clone()));
                }
                None if at < self.manifest.from => break,
                None => {
                    cursor = self.before(at);
                    links.push(Link::Unit(at));
                }
            }
        }
        links
    }
}

/// `None`: they do not fit each other.
fn groups(manifest: &Manifest) -> Option<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    let mut block = manifest.blocks;
    for (number, pack) in manifest.packs.iter().enumerate() {
        if pack.first_block == 0 {
            if block != manifest.blocks {
                return None;
            }
            groups.push(group(pack, number));
        } else {
            let last = groups.last_mut().filter(|last| {
                (last.first, last.last, last.level) == (pack.first, pack.last, pack.level)
                    && pack.first_block == block
            })?;
            last.packs.end += 1;
            last.bytes += pack.bytes;
        }
        block = pack.end_block;
    }
    (block == manifest.blocks).then_some(groups)
}

fn group(pack: &Pack, number: usize) -> Group {
    Group {
        first: pack.first,
        last: pack.last,
        level: pack.level,
        base: pack.base,
        time: pack.time,
        lsn: pack.lsn,
        predecessor: pack.predecessor,
        tail: pack.tail,
        bytes: pack.bytes,
        packs: number..number + 1,
    }
}

impl Link {
    /// The unit that it begins with.
    pub fn first(&self) -> Position {
        match self {
            Link::Unit(position) => *position,
            Link::Group(group) => group.first,
        }
    }

    /// Its objects.
    pub fn keys(&self) -> Vec<Key> {
        match self {
            Link::Unit(position) => vec![Key::Unit(*position)],
            Link::Group(group) => group.packs.clone().map(Key::Pack).collect(),
        }
    }
}
