//! A storm: real threads do everything at once to a few files and names of one volume, on the simulated device, and
//! what comes of it has to be what *some* order of their acts gives.
//!
//! A storm has rounds. In a round two or three threads begin together, and do a few acts each; one of them may be a
//! watcher, who only looks at sizes and at pages. Then all is quiet, and the volume is compared with what the oracle
//! allows: an order of the acts is looked for (`order`) in which each has answered what it did, has seen what it saw,
//! and nothing began before what it comes behind had ended. If there is none, two acts were mixed: a lost write, a
//! tail behind the end, bytes in a hole that nobody wrote there, a size without its content, an error that nobody may
//! get. What lies hidden behind the end of a file is brought to light by letting it grow. At the end the power is cut
//! at many moments, and the recovered volumes are judged by the oracle as in every other part, with syncs
//! acknowledged when their threads had the answer. Where several orders are possible, a crash state is wrong only if
//! none of them allows it.
//!
//! Threads are real, so a seed does not determine a run: it determines who does what, and how often it is tried.

use crate::crash::{Builder, Effort, Lie, states};
use crate::device::{Event, SimDevice, Trace};
use crate::driver::{self, SimClock, Told};
use crate::lab::{Start, Tally, complaints, guarded, prepare, recover};
use crate::operation::{Op, from_text};
use crate::oracle::{Model, PAGE, View, difference};
use crate::random::{Random, derive};
use crate::{view, watchdog};
use acts::{Act, Drawing, Outcome, Seen, Stage};
use order::{Found, Order};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use syncline_device::Device;
use syncline_fs::{Context, Fs, HandleId, ObjectNo, OpenFlags};

pub mod acts;
pub mod order;

/// Size of the volume, and of its journal, which is small enough to be full now and then.
const BLOCKS: u64 = 4096;
const JOURNAL_BLOCKS: u64 = 128;
/// Rounds of a storm.
const ROUNDS: usize = 24;
/// Crash states of a storm that are judged.
const STATES_MAX: usize = 10;
/// Models that are tried with other orders for a crash state that the first does not allow.
const OTHERS_MAX: usize = 400;
/// Files do not become larger than about this.
const SIZE_MAX: u64 = 60_000;
/// A file that is copied from and never changed.
const SOURCE: &str = "source";
/// Files whose content is changed.
const FILES: [&str; 3] = ["hot", "warm", "d/cold"];
/// Names that come and go.
const NAMES: &[&str] = &["a", "b", "d/a", "d/b"];
const SETUP: &str = "mkdir:d;creat:source;write:source:0:20000:3;creat:hot;write:hot:0:9000:1;creat:warm;\
     write:warm:0:300:5;creat:d/cold;write:d/cold:8192:5000:7;creat:a;write:a:0:100:9;sync";
const ENOSPC: i32 = 28;

/// The files of a round, by the numbers that acts use.
pub struct Cast {
    files: Vec<(String, ObjectNo)>,
}

impl Cast {
    pub fn inode(&self, file: usize) -> ObjectNo {
        self.files[file].1
    }

    pub fn path(&self, file: usize) -> String {
        self.files[file].0.clone()
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn of(model: &Model) -> Result<Cast, String> {
        let file = |path: &&str| {
            let inode = model.resolve(path).map_err(|errno| format!("{path} has gone (errno {errno})"))?;
            Ok(((*path).to_owned(), ObjectNo(inode)))
        };
        Ok(Cast { files: FILES.iter().map(file).collect::<Result<_, String>>()? })
    }
}

/// What happened in one round, and in which orders it may have.
struct Round {
    threads: Vec<Vec<Seen>>,
    cast: Cast,
    found: Found,
    /// What was done alone behind it, to bring to light what is hidden, and the inodes that it made.
    probes: Vec<(Op, u64)>,
}

struct Storm {
    fs: Arc<Fs>,
    device: Arc<SimDevice>,
    clock: Arc<SimClock>,
    start: Start,
    rounds: Vec<Round>,
    live: Model,
    random: Random,
    opened: usize,
}

fn start() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let setup = from_text(&SETUP.replace(' ', "")).expect("the setup holds operations");
        prepare(BLOCKS, JOURNAL_BLOCKS, &setup, 77)
    })
}

/// One storm; a violation comes with the round that shows it.
pub fn run(seed: u64) -> Tally {
    watchdog::replayed_by(format!("cargo run --release -p syncline-sim -- storm --seed {seed}"));
    guarded(|tally| {
        tally.workloads += 1;
        let result = Storm::new(seed).and_then(|mut storm| {
            for _ in 0..ROUNDS {
                watchdog::progress();
                storm.round(tally)?;
            }
            storm.cut(seed, tally)
        });
        if let Err(what) = result {
            tally.violation(what);
        }
    })
}

impl Storm {
    fn new(seed: u64) -> Result<Storm, String> {
        let start = start().clone();
        let device = SimDevice::new(start.disk.clone(), derive(seed, 61));
        let clock = SimClock::behind(&start.view);
        let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 62))
            .map_err(|error| format!("the volume does not open: {error}"))?;
        device.let_others_in();
        let (opened, live) = (device.position(), Model::new(&start.view));
        let random = Random::new(derive(seed, 63));
        Ok(Storm { fs, device, clock, start, rounds: Vec::new(), live, random, opened })
    }

    /// What the threads are going to do.
    fn draw(&mut self, cast: &Cast) -> Vec<Vec<Act>> {
        let file = self.random.below(cast.len() as u64) as usize;
        let kind = self.random.below(10);
        let threads = if kind < 5 { 2 } else { 2 + self.random.below(2) };
        let mut drawing = Drawing { random: &mut self.random, model: &self.live, cast };
        (0..threads)
            .map(|thread| match kind {
                // Two acts on one file, at the same moment.
                0..5 => vec![drawing.content(file)],
                5 | 6 => (0..2).map(|_| drawing.content(file)).collect(),
                7 if thread == 0 => (0..3).map(|_| drawing.watched(file)).collect(),
                7 => vec![drawing.content(file)],
                8 => (0..2).map(|_| drawing.names()).collect(),
                _ if thread == 0 => vec![drawing.renaming(file)],
                _ => vec![drawing.content(file)],
            })
            .collect()
    }

    fn round(&mut self, tally: &mut Tally) -> Result<(), String> {
        let cast = Cast::of(&self.live)?;
        let acts = self.draw(&cast);
        let before = self.live.live();
        let threads = self.play(&cast, &acts)?;
        for seen in threads.iter().flatten() {
            if let Act::Do(_, op) = &seen.act {
                let told = match seen.outcome {
                    Outcome::Failed(errno) => Told::Refused(errno),
                    _ => Told::Done,
                };
                tally.count(op, told);
            } else {
                tally.operations += 1;
            }
        }
        let shown = self.view()?;
        let found = order::orders(&before, &threads, &cast, &shown);
        let Some(order) = found.orders.first().cloned() else {
            if found.is_cut {
                return Err(format!("an order was looked for too long: {}", told(&threads)));
            }
            return Err(unexplained(&before, &threads, &cast, &shown));
        };
        for &(thread, number) in &order {
            order::commit(&mut self.live, &cast, &threads[thread][number]);
        }
        let probes = self.probe(&threads, tally)?;
        self.rounds.push(Round { threads, cast, found, probes });
        Ok(())
    }

    fn view(&self) -> Result<View, String> {
        view::view(&self.fs).map_err(|error| format!("the running volume cannot be read: {error}"))
    }

    /// Has all threads do their acts, beginning together.
    fn play(&self, cast: &Cast, acts: &[Vec<Act>]) -> Result<Vec<Vec<Seen>>, String> {
        let root = Context::root();
        let open = |file| self.fs.files().open_handle(&root, cast.inode(file), OpenFlags::READ_WRITE);
        let handles: Result<Vec<HandleId>, _> = (0..cast.len()).map(open).collect();
        let handles = handles.map_err(|error| format!("a file does not open: {error}"))?;
        let (steps, ready) = (AtomicU64::new(0), AtomicUsize::new(0));
        let position = || self.device.position();
        let stage = Stage {
            fs: &self.fs,
            clock: &self.clock,
            cast,
            handles: &handles,
            steps: &steps,
            position: &position,
        };
        let play = |mine: &Vec<Act>| -> Vec<Seen> {
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < acts.len() {
                std::thread::yield_now();
            }
            mine.iter().map(|act| stage.play(act)).collect()
        };
        let play = &play;
        let ended: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = acts.iter().map(|mine| scope.spawn(move || play(mine))).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let mut all = Vec::with_capacity(ended.len());
        for seen in ended {
            all.push(seen.map_err(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                format!("panic: {} in {acts:?}", text.unwrap_or_default())
            })?);
        }
        handles
            .into_iter()
            .try_for_each(|handle| self.fs.files().release(handle))
            .map_err(|error| format!("a file does not close: {error} behind {}", told(&all)))?;
        Ok(all)
    }

    /// Makes files of the cast anew whose names others have now.
    fn missing(&self) -> Vec<Op> {
        let [_, files, others] = self.live.paths();
        let gone = FILES.iter().filter(|path| !files.iter().any(|file| file == *path));
        gone.flat_map(|path| {
            let path = (*path).to_owned();
            let unlink = others.contains(&path).then(|| Op::Unlink(path.clone()));
            unlink.into_iter().chain([Op::Creat(path)])
        })
        .collect()
    }

    /// Lets files grow: behind what was their end are zeros.
    fn probe(&mut self, threads: &[Vec<Seen>], tally: &mut Tally) -> Result<Vec<(Op, u64)>, String> {
        let mut probes = self.missing();
        for path in FILES {
            let Ok(ino) = self.live.resolve(path) else { continue };
            let size = self.live.size_of(ino);
            if size > SIZE_MAX {
                probes.push(Op::Truncate { path: path.to_owned(), size: self.random.below(SIZE_MAX / 2) });
            } else if self.random.one_in(3) {
                let size = size.next_multiple_of(PAGE) + self.random.below(3 * PAGE);
                probes.push(Op::Truncate { path: path.to_owned(), size });
            }
        }
        for op in &probes {
            match driver::step(&self.fs, &self.clock, &mut self.live, op) {
                Ok(Told::Done) => tally.count(op, Told::Done),
                other => return Err(format!("{op} alone answers {other:?}")),
            }
        }
        let made = |op: &Op| match op {
            Op::Creat(path) => self.live.resolve(path).unwrap_or(0),
            _ => 0,
        };
        let probes = probes.into_iter().map(|op| (made(&op), op)).map(|(made, op)| (op, made)).collect();
        let shown = self.view()?;
        if !self.live.shows(&shown) {
            let difference = difference(&self.live.live(), &shown);
            return Err(format!(
                "what was hidden is seen when a file grows: {difference} behind {}",
                told(threads)
            ));
        }
        Ok(probes)
    }

    /// Cuts the power at moments of the storm, and judges what is there then.
    fn cut(&mut self, seed: u64, tally: &mut Tally) -> Result<(), String> {
        let (base, recorded) = self.device.recorded();
        tally.writes += recorded.writes.len() as u64;
        tally.flushes += recorded.flushes as u64;
        let first: Vec<usize> = vec![0; self.rounds.len()];
        let (model, trace) = self.replay(&first, &recorded);
        let effort = Effort { subsets: 1, torn: 1 };
        let mut random = Random::new(derive(seed, 64));
        let mut all = states(&trace, self.opened, effort, Lie::None, &mut random);
        while all.len() > STATES_MAX {
            let drop = random.below(all.len() as u64) as usize;
            all.swap_remove(drop);
        }
        all.sort_by_key(|state| state.event);
        let mut builder = Builder::new(base, &trace, Lie::None);
        for (index, state) in all.iter().enumerate() {
            watchdog::progress();
            tally.states += 1;
            let at = |what: String| {
                format!("{what} [crash behind event {} with survivors {:?}]", state.event, state.survivors)
            };
            let device = SimDevice::new(builder.build(state), derive(seed, 100 + index as u64));
            let shown = recover(&device, seed).map_err(at)?;
            if let Err(violation) = model.judge(&shown, state.acknowledged)
                && !self.is_allowed_otherwise(&shown, &recorded, state.event, &first)
            {
                let rounds: Vec<String> = self.rounds.iter().map(|round| told(&round.threads)).collect();
                return Err(at(format!(
                    "{} syncs acknowledged: {violation:?} behind\n{}",
                    state.acknowledged,
                    rounds.join("\n")
                )));
            }
            if index == 0 {
                tally.checks += 1;
                if let Some(what) = complaints(&*SimDevice::new(device.settled(), 0)).into_iter().next() {
                    return Err(at(format!("check after recovery: {what}")));
                }
            }
        }
        Ok(())
    }

    /// The model with these orders of the rounds, and the trace with the acknowledgements of its syncs.
    fn replay(&self, chosen: &[usize], recorded: &Trace) -> (Model, Trace) {
        let mut model = Model::with_overlaps(&self.start.view);
        // When each sync had been answered.
        let mut answered: Vec<usize> = Vec::new();
        for (round, chosen) in self.rounds.iter().zip(chosen) {
            // A hint or a ranged sync may be at work from its beginning on.
            for seen in round.threads.iter().flatten() {
                if let Act::Do(_, op) = &seen.act {
                    model.begin(op);
                }
            }
            let order: &Order = &round.found.orders[*chosen];
            for &(thread, number) in order {
                let seen = &round.threads[thread][number];
                let before = model.syncs();
                order::commit(&mut model, &round.cast, seen);
                answered.resize(answered.len() + model.syncs() - before, seen.position);
            }
            for (op, made) in &round.probes {
                model.apply(op, *made, 0).expect("a probe was carried out");
            }
        }
        // Acknowledged is a prefix: the latest answer up to each counts.
        let mut latest = 0;
        for position in &mut answered {
            latest = latest.max(*position);
            *position = latest;
        }
        (model, with_answers(recorded, &answered))
    }

    /// Whether another order of one round, or of two, allows what is there.
    fn is_allowed_otherwise(&self, shown: &View, recorded: &Trace, event: usize, first: &[usize]) -> bool {
        // Events of the recorded trace: answers that were put in do not count.
        let several: Vec<usize> =
            (0..self.rounds.len()).filter(|at| self.rounds[*at].found.orders.len() > 1).collect();
        let mut tries = 0;
        let allows = |chosen: &[usize]| {
            let (model, trace) = self.replay(chosen, recorded);
            let (_, base) = self.replay(first, recorded);
            let real = recorded_events(&base, event);
            let acknowledged = acknowledged_by(&trace, real);
            model.judge(shown, acknowledged).is_ok()
        };
        for (index, &one) in several.iter().enumerate().rev() {
            for of_one in 0..self.rounds[one].found.orders.len() {
                let mut chosen = first.to_vec();
                chosen[one] = of_one;
                tries += 1;
                if tries > OTHERS_MAX || allows(&chosen) {
                    return true;
                }
                for &other in several[..index].iter().rev().take(3) {
                    for of_other in 1..self.rounds[other].found.orders.len().min(6) {
                        chosen[other] = of_other;
                        tries += 1;
                        if tries > OTHERS_MAX || allows(&chosen) {
                            return true;
                        }
                    }
                    chosen[other] = first[other];
                }
            }
        }
        // Orders that were not kept may be among them.
        self.rounds.iter().any(|round| round.found.is_cut)
    }
}

/// The trace with acknowledgements behind so many of its events each.
fn with_answers(recorded: &Trace, answered: &[usize]) -> Trace {
    let mut trace = Trace { writes: recorded.writes.clone(), events: Vec::new(), flushes: recorded.flushes };
    let mut next = 0;
    for (index, event) in recorded.events.iter().enumerate() {
        let known = next;
        while answered.get(next).is_some_and(|position| *position <= index) {
            next += 1;
        }
        if next > known {
            trace.events.push(Event::Acknowledged(next));
        }
        trace.events.push(*event);
    }
    if next < answered.len() {
        trace.events.push(Event::Acknowledged(answered.len()));
    }
    trace
}

/// Of the first events of a trace with answers, how many were recorded by the device.
fn recorded_events(trace: &Trace, events: usize) -> usize {
    let own = |event: &&Event| !matches!(event, Event::Acknowledged(_));
    trace.events[..events].iter().filter(own).count()
}

/// Syncs that are acknowledged behind so many events of the device.
fn acknowledged_by(trace: &Trace, recorded: usize) -> usize {
    let mut seen = 0;
    let mut acknowledged = 0;
    for event in &trace.events {
        match event {
            Event::Acknowledged(count) => acknowledged = *count,
            _ if seen == recorded => break,
            _ => seen += 1,
        }
    }
    acknowledged
}

/// A round in words.
fn told(threads: &[Vec<Seen>]) -> String {
    let mut text = String::new();
    for (number, acts) in threads.iter().enumerate() {
        let _ = write!(text, "\n      thread {number}:");
        for Seen { act, outcome, began, ended, .. } in acts {
            let act = match act {
                Act::Do(_, op) => op.to_string(),
                act => format!("{act:?}"),
            };
            let outcome = match outcome {
                Outcome::Saw(bytes) => {
                    format!("saw {} bytes beginning with {:?}", bytes.len(), bytes.first())
                }
                outcome => format!("{outcome:?}"),
            };
            let _ = write!(text, " [{began}-{ended}] {act} -> {outcome};");
        }
    }
    text
}

/// What there is against each order of a round: the one that comes nearest.
fn unexplained(before: &View, threads: &[Vec<Seen>], cast: &Cast, shown: &View) -> String {
    let no_space = threads.iter().flatten().any(|seen| seen.outcome == Outcome::Failed(ENOSPC));
    let mut model = Model::new(before);
    let mut applied = true;
    for seen in threads.iter().flatten() {
        applied &= order::apply(&mut model, cast, seen, false);
    }
    let difference = difference(&model.live(), shown);
    format!(
        "no order of these acts explains what they answered and what is there{}: in the order of the threads {}{difference}{}",
        if no_space { " (one found no space)" } else { "" },
        if applied { "" } else { "an answer is wrong, and " },
        told(threads)
    )
}
