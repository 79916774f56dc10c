//! [`Outlines`]: headers and indexes of objects, as they are read.

use crate::chain::{Contents, Key, Link};
use crate::error::ReplicaError;
use crate::names::Names;
use crate::newest::{Layer, Newest};
use crate::request::{Operation, Part};
use crate::unit::Outline;
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::replica::{Flags, Manifest, UNIT_HEADER_BYTES};

/// What is fetched of an object's end at first. Most indexes are shorter; one of 8 MiB of small files takes more than a
/// quarter of this.
const TAIL_BYTES: u64 = 64 << 10;

/// Which part of an object was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    Tail(Key),
    Head(Key),
}

/// Outlines of one replica's objects.
pub struct Outlines {
    uuid: [u8; 16],
    names: Names,
    asked: BTreeSet<Key>,
    /// Ends of objects whose heads are on their way, and how long those objects are.
    tails: BTreeMap<Key, (Vec<u8>, u64)>,
    known: BTreeMap<Key, Result<Outline, ReplicaError>>,
}

impl Outlines {
    pub fn new(uuid: [u8; 16]) -> Outlines {
        Outlines {
            uuid,
            names: Names::new(uuid),
            asked: BTreeSet::new(),
            tails: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    pub fn name_of(&self, key: Key, manifest: &Manifest) -> String {
        match key {
            Key::Unit((claim, number)) => self.names.unit(claim, number),
            Key::Pack(pack) => self.names.pack(manifest.packs[pack].number, manifest.packs[pack].id),
        }
    }

    pub fn get(&self, key: Key) -> Option<&Result<Outline, ReplicaError>> {
        self.known.get(&key)
    }

    /// What to ask for an object, unless that was asked before.
    pub fn ask(&mut self, key: Key, manifest: &Manifest) -> Option<(Piece, Operation)> {
        let (name, part) = (self.name_of(key, manifest), Part::Last(TAIL_BYTES));
        self.asked.insert(key).then_some((Piece::Tail(key), Operation::Get { name, part }))
    }

    /// An object was not there when a piece of it was asked for; it may be asked for again.
    pub fn forget(&mut self, piece: Piece) {
        let (Piece::Tail(key) | Piece::Head(key)) = piece;
        self.asked.remove(&key);
        self.tails.remove(&key);
    }

    /// Another manifest numbers packs anew.
    pub fn forget_packs(&mut self) {
        let is_unit = |key: &Key| matches!(key, Key::Unit(_));
        self.asked.retain(is_unit);
        self.tails.retain(|key, _| is_unit(key));
        self.known.retain(|key, _| is_unit(key));
    }

    /// Takes a piece of an object of `length` bytes; what to ask for next, or nothing when its outline is known.
    ///
    /// # Errors
    /// The object is one of another volume.
    pub fn answer(
        &mut self,
        piece: Piece,
        bytes: Vec<u8>,
        length: u64,
        manifest: &Manifest,
    ) -> Result<Option<(Piece, Operation)>, ReplicaError> {
        match piece {
            Piece::Tail(key) if bytes.len() as u64 == length => {
                let head = bytes.get(..UNIT_HEADER_BYTES).unwrap_or(&bytes).to_vec();
                self.decode(key, &head, &bytes, length, manifest)
            }
            Piece::Tail(key) => {
                self.tails.insert(key, (bytes, length));
                let (name, part) = (self.name_of(key, manifest), Part::Range(0, UNIT_HEADER_BYTES as u64));
                Ok(Some((Piece::Head(key), Operation::Get { name, part })))
            }
            Piece::Head(key) => match self.tails.remove(&key) {
                Some((tail, length)) => self.decode(key, &bytes, &tail, length, manifest),
                None => Ok(None),
            },
        }
    }

    fn decode(
        &mut self,
        key: Key,
        head: &[u8],
        tail: &[u8],
        length: u64,
        manifest: &Manifest,
    ) -> Result<Option<(Piece, Operation)>, ReplicaError> {
        let name = self.name_of(key, manifest);
        let outline = match Outline::decode(head, tail, length) {
            Ok(Ok(outline)) if outline.header.uuid != self.uuid => {
                return Err(ReplicaError::ForeignVolume { name });
            }
            Ok(Ok(outline)) if !is_meant(key, &outline, manifest) => {
                Err(ReplicaError::Inconsistent { name, what: "it says that it is another one" })
            }
            Ok(Ok(outline)) => Ok(outline),
            Ok(Err(want)) => {
                return Ok(Some((Piece::Tail(key), Operation::Get { name, part: Part::Last(want) })));
            }
            Err(error) => Err(ReplicaError::undecodable(name, error)),
        };
        self.known.insert(key, outline);
        Ok(None)
    }

    /// Links of a chain, from the newest on, down to the first base among them, each laid under those before it; each
    /// has to name the one below it as its predecessor. Nothing where an outline is not known yet.
    ///
    /// # Errors
    /// An object is damaged, or the chain ends without a base.
    pub fn lay(&self, chain: &[Link], contents: &Contents) -> Result<Option<Laid>, ReplicaError> {
        let mut newest = Newest::default();
        let mut predecessor = None;
        for (count, link) in chain.iter().enumerate() {
            let mut identity = 0;
            let (mut base, mut before) = (false, 0);
            for key in link.keys() {
                let Some(outline) = self.get(key) else { return Ok(None) };
                let outline = outline.as_ref().map_err(Clone::clone)?.clone();
                identity = outline.identity;
                base = outline.header.flags.has(Flags::BASE);
                before = outline.header.predecessor;
                newest.lay_under(Layer { name: self.name_of(key, &contents.manifest), outline });
            }
            if let Link::Group(group) = link {
                (identity, base, before) = (group.tail, group.base, group.predecessor);
            }
            if predecessor.is_some_and(|wanted| wanted != identity) {
                let name = link.keys().first().map(|key| self.name_of(*key, &contents.manifest));
                let what = "what is behind it names another one as its predecessor";
                return Err(ReplicaError::Inconsistent { name: name.unwrap_or_default(), what });
            }
            predecessor = Some(before);
            if base {
                return Ok(Some(Laid { newest, base: true, links: count + 1, predecessor: before }));
            }
        }
        let predecessor = predecessor.unwrap_or(0);
        Ok(Some(Laid { newest, base: false, links: chain.len(), predecessor }))
    }
}

/// Links that were laid under each other.
pub struct Laid {
    pub newest: Newest,
    /// The last of them is a base.
    pub base: bool,
    pub links: usize,
    /// Of the last of them.
    pub predecessor: u64,
}

fn is_meant(key: Key, outline: &Outline, manifest: &Manifest) -> bool {
    match key {
        Key::Unit(position) => (outline.header.claim, outline.header.number) == position,
        Key::Pack(pack) => outline.identity == manifest.packs[pack].identity,
    }
}
