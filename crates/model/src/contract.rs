//! The contract (docs/contract.md), as a judge of recovered volumes. It knows what was done and what was acknowledged,
//! and nothing of how the store does it.
//!
//! The history is a list of namespaces, one behind each metadata operation, beginning with the oldest that a recovery
//! may show: everything before was acknowledged (C1). Each entry has, for each page, a *floor*: no content older than
//! that may be seen together with this namespace. A sync raises the floors of its file in all entries; a rename over
//! another file raises those of its source in its own entry and all later ones (C3); so do truncation and transaction
//! for what they change. A content that came to be behind a metadata operation is not seen without that operation
//! (C2), and that of a transaction not without the whole transaction (C4).

use crate::volume::{FILES, NAMES, PAGES, PerPage, Spot, Stamp, spots_of};

/// A broken promise, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub what: String,
    /// The volume said so itself, as damage. With nothing damaged that is a violation all the same.
    pub told: bool,
}

impl Violation {
    pub fn new(what: impl Into<String>) -> Violation {
        Violation { what: what.into(), told: false }
    }

    pub fn told(what: impl Into<String>) -> Violation {
        Violation { what: what.into(), told: true }
    }
}

/// What a volume shows: names, and the content of every page of every file that has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct View {
    pub names: [Option<u8>; NAMES],
    pub pages: PerPage<Stamp>,
}

#[derive(Debug, Clone, Hash)]
struct Entry {
    /// When: the operation that led here.
    id: Stamp,
    names: [Option<u8>; NAMES],
    floors: PerPage<Stamp>,
}

/// A content that a page had.
#[derive(Debug, Clone, Copy, Hash)]
struct Version {
    stamp: Stamp,
    content: Stamp,
    /// The metadata operation before it.
    since: Stamp,
}

/// What a sync promises when it returns 0.
#[derive(Debug, Clone, Copy, Hash)]
pub struct Promise {
    id: Stamp,
    floors: PerPage<Stamp>,
}

#[derive(Debug, Clone, Hash)]
pub struct Contract {
    history: Vec<Entry>,
    versions: PerPage<Vec<Version>>,
    clock: Stamp,
    /// What the recovery under way has found: the next one, should it be needed, has to find the same.
    pub seen: Option<View>,
}

impl Contract {
    /// A volume that shows `view`, all of it durable.
    pub fn new(view: &View, clock: Stamp) -> Contract {
        let id = clock + 1;
        let mut versions = PerPage::<Vec<Version>>::default();
        let mut floors = PerPage::default();
        for spot in (0..FILES as u8).flat_map(spots_of) {
            versions.at_mut(spot).push(Version { stamp: id, content: *view.pages.at(spot), since: 0 });
            *floors.at_mut(spot) = id;
        }
        let history = vec![Entry { id, names: view.names, floors }];
        Contract { history, versions, clock: id, seen: None }
    }

    pub fn clock(&self) -> Stamp {
        self.clock
    }

    /// A write: returns the content's name.
    pub fn write(&mut self, spot: Spot) -> Stamp {
        self.clock += 1;
        let since = self.last().id;
        let version = Version { stamp: self.clock, content: self.clock, since };
        self.versions.at_mut(spot).push(version);
        self.clock
    }

    /// A metadata operation that leads to `names`. `changes` are pages that it gives a content, `whole` files whose
    /// present content is never seen older together with it.
    pub fn operate(&mut self, names: [Option<u8>; NAMES], changes: &[(Spot, Stamp)], whole: &[u8]) {
        self.clock += 1;
        let id = self.clock;
        let mut floors = self.last().floors;
        for file in whole {
            self.raise_to_now(*file, &mut floors);
        }
        for (spot, content) in changes {
            self.versions.at_mut(*spot).push(Version { stamp: id, content: *content, since: id });
            *floors.at_mut(*spot) = id;
        }
        self.history.push(Entry { id, names, floors });
    }

    /// A name for a content that a coming [`Contract::operate`] makes visible (of a transaction).
    pub fn stage(&mut self) -> Stamp {
        self.clock += 1;
        self.clock
    }

    /// The content that a page has now.
    pub fn content(&self, spot: Spot) -> Stamp {
        self.versions.at(spot).last().map_or(0, |version| version.content)
    }

    /// What a sync of a file called now will have promised.
    pub fn promise(&self, file: Option<u8>) -> Promise {
        let mut floors = self.last().floors;
        if let Some(file) = file {
            self.raise_to_now(file, &mut floors);
        }
        Promise { id: self.last().id, floors }
    }

    /// The sync has returned 0 (C1).
    pub fn keep(&mut self, promise: &Promise) {
        self.history.retain(|entry| entry.id >= promise.id);
        for entry in &mut self.history {
            for spot in (0..FILES as u8).flat_map(spots_of) {
                let floor = entry.floors.at_mut(spot);
                *floor = (*floor).max(*promise.floors.at(spot));
            }
        }
    }

    /// Whether a recovered volume keeps the contract.
    pub fn judge(&self, view: &View) -> Result<(), Violation> {
        let mut reason = None;
        for entry in self.history.iter().filter(|entry| entry.names == view.names) {
            match self.judge_pages(entry, view) {
                Ok(()) => return Ok(()),
                Err(violation) => reason = Some(violation),
            }
        }
        Err(reason.unwrap_or_else(|| {
            Violation::new(format!(
                "C1, C2: the names are {}, which no prefix that holds all that was acknowledged has led to",
                names_in_words(&view.names)
            ))
        }))
    }

    fn judge_pages(&self, entry: &Entry, view: &View) -> Result<(), Violation> {
        let named = |file: &u8| view.names.contains(&Some(*file));
        for spot in (0..FILES as u8).filter(named).flat_map(spots_of) {
            let content = *view.pages.at(spot);
            let versions = self.versions.at(spot);
            let mut same = versions.iter().filter(|version| version.content == content).peekable();
            if same.peek().is_none() {
                return Err(Violation::new(format!(
                    "stale or foreign bytes: file {} page {} shows {content}, which was never written there",
                    spot.file, spot.page
                )));
            }
            let floor = *entry.floors.at(spot);
            if !same.any(|version| version.stamp >= floor && version.since <= entry.id) {
                return Err(Violation::new(format!(
                    "C1 - C4: file {} page {} shows {content}, which with these names must not be seen",
                    spot.file, spot.page
                )));
            }
        }
        Ok(())
    }

    fn raise_to_now(&self, file: u8, floors: &mut PerPage<Stamp>) {
        for spot in spots_of(file) {
            if let Some(version) = self.versions.at(spot).last() {
                *floors.at_mut(spot) = version.stamp;
            }
        }
    }

    fn last(&self) -> &Entry {
        self.history.last().expect("a history is never empty")
    }
}

fn names_in_words(names: &[Option<u8>; NAMES]) -> String {
    let mut words = Vec::new();
    for (name, file) in ["a", "b", "c"].iter().zip(names) {
        if let Some(file) = file {
            words.push(format!("{name} -> file {file}"));
        }
    }
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

const _: () = assert!(NAMES == 3 && PAGES == 2);
