//! The contract (docs/contract.md), as a judge of recovered volumes. It knows what was done and what was acknowledged,
//! and nothing of how the store does it.
//!
//! The history of a head is a list of namespaces, one behind each metadata operation, beginning with the oldest that a
//! recovery may show: everything before was acknowledged (C1). Each entry has, for each page, a *floor*: no content
//! older than that may be seen together with this namespace. A sync raises the floors of its file in all entries; a
//! rename over another file raises those of its source in its own entry and all later ones (C3); so do truncation and
//! transaction for what they change. A content that came to be behind a metadata operation is not seen without that
//! operation (C2), and that of a transaction not without the whole transaction (C4).
//!
//! Which snapshots and heads there are is part of the default head's namespace. A snapshot shows what was logged when
//! it was made, and nothing else as long as it exists (C10, C11); another head has a history of its own, which begins
//! with what its snapshot shows (C12). A sync in any head covers the metadata of all.

use crate::volume::{FILES, NAMES, PAGES, PerPage, Spot, Stamp, TREES, spots_in, spots_of};

/// A broken promise, in words.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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

/// What a tree shows: names, and the content of every page of every file that has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shot {
    pub names: [Option<u8>; NAMES],
    pub pages: PerPage<Stamp>,
}

/// What a volume shows: the default head, and by number the snapshots and the other heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct View {
    pub main: Shot,
    pub kept: [Option<Shot>; TREES],
    pub heads: [Option<Shot>; TREES],
}

#[derive(Debug, Clone, Hash)]
struct Entry {
    /// When: the operation that led here.
    id: Stamp,
    names: [Option<u8>; NAMES],
    floors: PerPage<Stamp>,
    /// Of the default head: the snapshots, and which other heads there are.
    kept: [Option<Shot>; TREES],
    heads: [bool; TREES],
}

/// A content that a page had.
#[derive(Debug, Clone, Copy, Hash)]
struct Version {
    stamp: Stamp,
    content: Stamp,
    /// The metadata operation before it.
    since: Stamp,
}

/// What a sync promises when it returns 0: of each head.
#[derive(Debug, Clone, Copy, Hash)]
pub struct Promise {
    heads: [Option<(Stamp, PerPage<Stamp>)>; TREES],
}

/// Of one head.
#[derive(Debug, Clone, Hash)]
struct History {
    entries: Vec<Entry>,
    versions: PerPage<Vec<Version>>,
}

#[derive(Debug, Clone, Hash)]
pub struct Contract {
    main: u8,
    heads: [Option<History>; TREES],
    clock: Stamp,
    /// What the recovery under way has found: the next one, should it be needed, has to find the same.
    pub seen: Option<View>,
}

impl History {
    /// It begins with what is shown now, and durable.
    fn new(shot: &Shot, id: Stamp) -> History {
        let mut versions = PerPage::<Vec<Version>>::default();
        let mut floors = PerPage::default();
        for spot in spots_in(0) {
            versions.at_mut(spot).push(Version { stamp: id, content: *shot.pages.at(spot), since: 0 });
            *floors.at_mut(spot) = id;
        }
        let entry = Entry { id, names: shot.names, floors, kept: [None; TREES], heads: [false; TREES] };
        History { entries: vec![entry], versions }
    }

    fn judge(&self, view: &View, trees: bool) -> Result<(), Violation> {
        let same_trees = |entry: &Entry| {
            !trees || (entry.kept == view.kept && entry.heads == view.heads.map(|head| head.is_some()))
        };
        let mut reason = None;
        for entry in self.entries.iter().filter(|entry| entry.names == view.main.names && same_trees(entry)) {
            match self.judge_pages(entry, &view.main) {
                Ok(()) => return Ok(()),
                Err(violation) => reason = Some(violation),
            }
        }
        Err(reason.unwrap_or_else(|| {
            let all = |entry: &&Entry| {
                let same = |(wanted, got): (&Option<Shot>, &Option<Shot>)| wanted.is_some() == got.is_some();
                entry.kept.iter().zip(&view.kept).all(same)
            };
            let alike = || self.entries.iter().rev().filter(|entry| entry.names == view.main.names);
            match alike().find(all).or_else(|| alike().next()) {
                Some(entry) => Violation::new(entry.trees_in_words(view)),
                None => Violation::new(format!(
                    "C1, C2: the names are {}, which no prefix that holds all that was acknowledged has led to",
                    names_in_words(&view.main.names)
                )),
            }
        }))
    }

    fn judge_pages(&self, entry: &Entry, shot: &Shot) -> Result<(), Violation> {
        let named = |file: &u8| shot.names.contains(&Some(*file));
        for spot in (0..FILES as u8).filter(named).flat_map(|file| spots_of(0, file)) {
            let content = *shot.pages.at(spot);
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
        for spot in spots_of(0, file) {
            if let Some(version) = self.versions.at(spot).last() {
                *floors.at_mut(spot) = version.stamp;
            }
        }
    }

    fn last(&self) -> &Entry {
        self.entries.last().expect("a history is never empty")
    }
}

impl Contract {
    /// A volume that shows `view`, all of it durable; `main` is the default head.
    pub fn new(main: u8, view: &View, clock: Stamp) -> Contract {
        let id = clock + 1;
        let mut heads = view.heads.map(|head| head.map(|shot| History::new(&shot, id)));
        let mut history = History::new(&view.main, id);
        history.entries[0].kept = view.kept;
        history.entries[0].heads = view.heads.map(|head| head.is_some());
        heads[usize::from(main)] = Some(history);
        Contract { main, heads, clock: id, seen: None }
    }

    pub fn clock(&self) -> Stamp {
        self.clock
    }

    fn of(&self, tree: u8) -> &History {
        self.heads[usize::from(tree)].as_ref().expect("the head is there")
    }

    fn of_mut(&mut self, tree: u8) -> &mut History {
        self.heads[usize::from(tree)].as_mut().expect("the head is there")
    }

    /// A write: returns the content's name.
    pub fn write(&mut self, spot: Spot) -> Stamp {
        self.clock += 1;
        let (stamp, history) = (self.clock, self.of_mut(spot.tree));
        let since = history.last().id;
        history.versions.at_mut(spot).push(Version { stamp, content: stamp, since });
        stamp
    }

    /// A metadata operation of a head that leads to `names`. `changes` are pages that it gives a content, `whole` files
    /// whose present content is never seen older together with it.
    pub fn operate(&mut self, tree: u8, names: [Option<u8>; NAMES], changes: &[(Spot, Stamp)], whole: &[u8]) {
        self.clock += 1;
        let (id, history) = (self.clock, self.of_mut(tree));
        let mut floors = history.last().floors;
        for file in whole {
            history.raise_to_now(*file, &mut floors);
        }
        for (spot, content) in changes {
            history.versions.at_mut(*spot).push(Version { stamp: id, content: *content, since: id });
            *floors.at_mut(*spot) = id;
        }
        let Entry { kept, heads, .. } = *history.last();
        history.entries.push(Entry { id, names, floors, kept, heads });
    }

    /// A snapshot is made that shows this, or it goes away.
    pub fn keep_snapshot(&mut self, tree: u8, shot: Option<Shot>) {
        let main = self.main;
        self.operate(main, self.of(main).last().names, &[], &[]);
        self.last_mut(main).kept[usize::from(tree)] = shot;
    }

    /// A head is made that begins as this, or it goes away.
    pub fn keep_head(&mut self, tree: u8, shot: Option<&Shot>) {
        let main = self.main;
        self.operate(main, self.of(main).last().names, &[], &[]);
        self.last_mut(main).heads[usize::from(tree)] = shot.is_some();
        self.heads[usize::from(tree)] = shot.map(|shot| History::new(shot, self.clock));
    }

    /// The default head is another tree from here on, and shows what a snapshot does.
    pub fn roll_back(&mut self, tree: u8, shot: &Shot) {
        let history = self.heads[usize::from(self.main)].take();
        self.main = tree;
        self.heads[usize::from(tree)] = history;
        let changes: Vec<(Spot, Stamp)> = spots_in(tree).map(|spot| (spot, *shot.pages.at(spot))).collect();
        self.operate(tree, shot.names, &changes, &[]);
    }

    fn last_mut(&mut self, tree: u8) -> &mut Entry {
        self.of_mut(tree).entries.last_mut().expect("a history is never empty")
    }

    /// What is known of a snapshot.
    pub fn snapshot(&self, tree: u8) -> Option<Shot> {
        self.of(self.main).last().kept[usize::from(tree)]
    }

    /// A name for a content that a coming [`Contract::operate`] makes visible (of a transaction).
    pub fn stage(&mut self) -> Stamp {
        self.clock += 1;
        self.clock
    }

    /// The content that a page has now.
    pub fn content(&self, spot: Spot) -> Stamp {
        self.of(spot.tree).versions.at(spot).last().map_or(0, |version| version.content)
    }

    /// What a sync of a file of a head called now will have promised; of all other heads that of none.
    pub fn promise(&self, of: Option<(u8, u8)>) -> Promise {
        let mut heads = [None; TREES];
        for (tree, history) in self.heads.iter().enumerate() {
            let Some(history) = history else { continue };
            let mut floors = history.last().floors;
            if let Some((_, file)) = of.filter(|(head, _)| usize::from(*head) == tree) {
                history.raise_to_now(file, &mut floors);
            }
            heads[tree] = Some((history.last().id, floors));
        }
        Promise { heads }
    }

    /// The sync has returned 0 (C1).
    pub fn keep(&mut self, promise: &Promise) {
        for (history, promise) in self.heads.iter_mut().zip(&promise.heads) {
            let (Some(history), Some((id, floors))) = (history, promise) else { continue };
            history.entries.retain(|entry| entry.id >= *id);
            for entry in &mut history.entries {
                for spot in spots_in(0) {
                    let floor = entry.floors.at_mut(spot);
                    *floor = (*floor).max(*floors.at(spot));
                }
            }
        }
    }

    /// Whether a recovered volume keeps the contract.
    pub fn judge(&self, view: &View) -> Result<(), Violation> {
        self.of(self.main).judge(view, true)?;
        for (history, shot) in self.heads.iter().zip(&view.heads) {
            if let (Some(history), Some(shot)) = (history, shot) {
                history.judge(&View { main: *shot, ..View::default() }, false)?;
            }
        }
        Ok(())
    }

    /// Whether a head may show this if all that is logged is durable: what a snapshot of it may show (C10).
    pub fn judge_committed(&self, tree: u8, shot: &Shot) -> Result<(), Violation> {
        let history = self.of(tree);
        let last = History { entries: vec![history.last().clone()], versions: history.versions.clone() };
        last.judge(&View { main: *shot, ..View::default() }, false)
    }
}

impl Entry {
    fn trees_in_words(&self, view: &View) -> String {
        for tree in 0..TREES {
            match (&self.kept[tree], &view.kept[tree]) {
                (Some(wanted), Some(got)) if wanted != got => {
                    let page = spots_in(0).find(|spot| wanted.pages.at(*spot) != got.pages.at(*spot));
                    return match page {
                        Some(spot) => format!(
                            "C10: snapshot {tree} shows {} in file {} page {}, and was made with {}",
                            got.pages.at(spot),
                            spot.file,
                            spot.page,
                            wanted.pages.at(spot)
                        ),
                        None => format!("C10: snapshot {tree} shows other names than it was made with"),
                    };
                }
                (Some(_), None) => return format!("C10: snapshot {tree} is missing"),
                (None, Some(_)) => return format!("C2, C11: snapshot {tree} is there, and must not be"),
                _ => {}
            }
            if self.heads[tree] != view.heads[tree].is_some() {
                return format!("C12: head {tree} is missing, or is there and must not be");
            }
        }
        "C1 - C4: these names must not be seen together with these contents".to_owned()
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
