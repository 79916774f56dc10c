//! What is aimed at, beside what was reached: the mount against the best of the kernel's file systems, and the engine
//! in process against the floor or against the same. Judged is `syncline`; the mount over /dev/fuse stands beside it.

use super::{headed, row, shown};
use crate::report::Group;

const PEERS: [&str; 3] = ["ext4", "xfs", "btrfs"];
/// Another one stands here where a figure has no meaning.
const NONE: &str = "-";

/// Which way a figure is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    More,
    Less,
}

/// What the mount is held to.
#[derive(Clone, Copy)]
enum Mount {
    Nothing,
    /// So many times as good as the best peer.
    OfPeer(f64),
    /// The figure itself, at most.
    AtMost(f64),
}

/// What the engine in process is held to.
#[derive(Clone, Copy)]
enum Engine {
    Nothing,
    /// This figure of its own, at most, in this unit.
    AtMost(&'static str, f64, &'static str),
    /// This figure of its own, at least.
    AtLeast(&'static str, f64, &'static str),
    /// So many times the best peer.
    OfPeer(f64),
}

struct Target {
    /// A workload, or the beginning of a family's names.
    workload: &'static str,
    figure: &'static str,
    better: Better,
    /// The best of these.
    peers: &'static [&'static str],
    mount: Mount,
    engine: Engine,
}

const fn target(
    workload: &'static str,
    figure: &'static str,
    better: Better,
    mount: Mount,
    engine: Engine,
) -> Target {
    Target { workload, figure, better, peers: &PEERS, mount, engine }
}

const TARGETS: &[Target] = {
    use Better::{Less, More};
    use Engine::{AtLeast, AtMost};
    use Mount::OfPeer;
    const FREE: Engine = Engine::Nothing;
    &[
        target("append", "p50_us", Less, OfPeer(1.5), AtMost("x_floor", 1.1, "x floor")),
        target("create", "p50_us", Less, OfPeer(1.6), AtMost("x_floor", 1.15, "x floor")),
        target("replace", "p50_us", Less, OfPeer(1.5), AtMost("x_floor", 2.1, "x floor")),
        target("threads", "ops_per_s", More, OfPeer(1.3), AtLeast("of_group_floor", 0.7, "x floor")),
        target("fio-sequential", "mb_per_s", More, OfPeer(1.1), FREE),
        target("fio-random", "mb_per_s", More, OfPeer(1.3), FREE),
        target("fs-mark-each", "ops_per_s", More, OfPeer(1.5), FREE),
        target("fs-mark-pass", "ops_per_s", More, OfPeer(1.2), FREE),
        target("async-pass", "ops_per_s", More, OfPeer(1.0), Engine::OfPeer(2.0)),
        target(
            "async-pass-8",
            "syncs_per_flush",
            More,
            Mount::Nothing,
            AtLeast("syncs_per_flush", 100.0, " syncs"),
        ),
        Target { peers: &["btrfs"], ..target("dbench", "mb_per_s", More, OfPeer(1.0), FREE) },
        Target { peers: &["btrfs"], ..target("dbench", "rename_avg_ms", Less, OfPeer(1.0), FREE) },
        Target { peers: &["btrfs"], ..target("dbench", "rename_max_ms", Less, OfPeer(1.0), FREE) },
        target("dbench", "flush_avg_ms", Less, OfPeer(1.0 / 0.7), FREE),
        // The mount's own aim is the row above; this one is the engine's.
        target("dbench", "mb_per_s", More, Mount::Nothing, Engine::OfPeer(1.0)),
        target("beside-creates", "p50_us", Less, OfPeer(1.0), FREE),
        target(
            "pacing",
            "sync_p99_ratio",
            Less,
            Mount::AtMost(3.0),
            AtMost("sync_p99_ratio", 3.0, "x alone"),
        ),
        target(
            "pacing",
            "read_p99_ratio",
            Less,
            Mount::AtMost(3.0),
            AtMost("read_p99_ratio", 3.0, "x alone"),
        ),
    ]
};

/// One way of using a system against another way that the peers are used.
struct Cross {
    system: &'static str,
    workload: &'static str,
    /// The peers' workload.
    against: &'static str,
    figure: &'static str,
    peers: &'static [&'static str],
    aim: f64,
}

const fn cross(system: &'static str, workload: &'static str, against: &'static str, aim: f64) -> Cross {
    Cross { system, workload, against, figure: "insert_per_s", peers: &PEERS, aim }
}

const fn tickets(workload: &'static str, against: &'static str) -> Cross {
    Cross { figure: "ops_per_s", ..cross("syncline", workload, against, 1.0) }
}

/// What a large file is moved with.
const fn of_ext4(workload: &'static str, aim: f64) -> Cross {
    Cross { figure: "mb_per_s", peers: &["ext4"], ..cross("syncline", workload, workload, aim) }
}

/// W4 reads what it has just written.
const fn warm_reads(figure: &'static str) -> Cross {
    Cross { figure, ..of_ext4("mobile", 0.9) }
}

const CROSSES: &[Cross] = &[
    tickets("ticket-pass-1", "async-pass-1"),
    tickets("ticket-pass-4", "async-pass-4"),
    tickets("ticket-pass-8", "async-pass-8"),
    tickets("ticket-pass-16", "async-pass-16"),
    tickets("ticket-pass-32", "async-pass-32"),
    cross("syncline", "sqlite-atomic", "sqlite-delete", 3.0),
    cross("syncline", "sqlite-atomic", "sqlite-wal", 1.0),
    cross("engine", "sqlite-vfs-delete", "sqlite-delete", 4.0),
    cross("engine", "sqlite-vfs-delete", "sqlite-wal", 1.3),
    of_ext4("sequential-write", 0.7),
    of_ext4("sequential-read-cold", 0.8),
    of_ext4("sequential-read-warm", 1.0),
    warm_reads("sequential_read_mb_per_s"),
    warm_reads("random_read_per_s"),
];

/// One row, in the order of [`HEADS`].
struct Cells {
    name: String,
    figure: &'static str,
    mount: String,
    peer: String,
    against: String,
    aim: String,
    dev: String,
    engine: String,
    engine_aim: String,
}

pub(crate) const HEADS: [&str; 9] = [
    "",
    "figure",
    "mount",
    "best peer",
    "mount against peer",
    "aim",
    "mount, /dev/fuse (against peer)",
    "engine",
    "engine's aim",
];

impl Cells {
    fn in_order(self) -> [String; 9] {
        let Cells { name, figure, mount, peer, against, aim, dev, engine, engine_aim } = self;
        [name, figure.to_owned(), mount, peer, against, aim, dev, engine, engine_aim]
    }
}

/// A row for each workload of a target that was measured.
pub(crate) fn rows(groups: &[Group<'_>]) -> Vec<[String; 9]> {
    let mut rows = Vec::new();
    for target in TARGETS {
        let belongs = |group: &&Group<'_>| {
            group.workload.name == target.workload || group.workload.family() == target.workload
        };
        rows.extend(groups.iter().filter(belongs).filter_map(|group| target.cells(group)));
    }
    rows.extend(CROSSES.iter().filter_map(|cross| cross.cells(groups)));
    rows.into_iter().map(Cells::in_order).collect()
}

/// The same as a table of the document.
pub(super) fn table(groups: &[Group<'_>]) -> String {
    let mut text = String::new();
    for cells in rows(groups) {
        row(&mut text, cells.into_iter());
    }
    headed("### Aims and what was reached", HEADS.map(str::to_owned).to_vec(), text)
}

fn judged(reached: bool) -> &'static str {
    if reached { "" } else { ", missed" }
}

/// Digits behind the point that a figure is worth.
fn places(figure: &str) -> usize {
    match figure {
        milliseconds if milliseconds.ends_with("_ms") => 3,
        ratio if ratio.ends_with("_ratio") => 2,
        _ => 0,
    }
}

/// A figure of a system against the same of a peer, more than 1 where it is better.
fn times(better: Better, value: f64, peer: f64) -> f64 {
    match better {
        Better::More => value / peer,
        Better::Less => peer / value,
    }
}

impl Target {
    /// `None` if nothing of it was measured.
    fn cells(&self, group: &Group<'_>) -> Option<Cells> {
        let of = |system: &str| group.median(system, self.figure);
        let peer = self
            .peers
            .iter()
            .filter_map(|peer| Some((*peer, of(peer)?)))
            .reduce(|best, next| if times(self.better, next.1, best.1) > 1.0 { next } else { best });
        let (mount, dev, engine) = (of("syncline"), of("syncline-dev"), of("engine"));
        mount.or(dev).or(engine)?;
        // Of two that did nothing there is no ratio.
        let against =
            |own: Option<f64>| Some(times(self.better, own?, peer?.1)).filter(|ratio| ratio.is_finite());
        let (against_cell, aim) = match self.mount {
            Mount::Nothing => (NONE.to_owned(), NONE.to_owned()),
            Mount::OfPeer(aim) => (
                against(mount)
                    .map_or(NONE.to_owned(), |ratio| format!("{ratio:.2}x{}", judged(ratio >= aim))),
                format!(">= {aim:.2}x"),
            ),
            Mount::AtMost(aim) => (
                mount.map_or(NONE.to_owned(), |own| format!("{own:.2}{}", judged(own <= aim))),
                format!("<= {aim:.2}"),
            ),
        };
        let (engine, engine_aim) = self.engine_cells(group, engine, peer.map(|(_, value)| value));
        Some(Cells {
            name: group.workload.name.clone(),
            figure: self.figure,
            mount: shown(mount, self.places()),
            peer: self.peer_cell(peer),
            against: against_cell,
            aim,
            dev: match against(dev) {
                Some(ratio) => format!("{} ({ratio:.2}x)", shown(dev, self.places())),
                None => shown(dev, self.places()),
            },
            engine,
            engine_aim,
        })
    }

    fn places(&self) -> usize {
        places(self.figure)
    }

    fn peer_cell(&self, peer: Option<(&str, f64)>) -> String {
        peer.map_or(NONE.to_owned(), |(name, value)| {
            format!("{} ({name})", shown(Some(value), self.places()))
        })
    }

    fn engine_cells(&self, group: &Group<'_>, engine: Option<f64>, peer: Option<f64>) -> (String, String) {
        match self.engine {
            Engine::Nothing => (shown(engine, self.places()), NONE.to_owned()),
            Engine::AtMost(figure, aim, unit) | Engine::AtLeast(figure, aim, unit) => {
                let at_most = matches!(self.engine, Engine::AtMost(..));
                let sign = if at_most { "<=" } else { ">=" };
                let cell = group.median("engine", figure).map_or(NONE.to_owned(), |value| {
                    let reached = if at_most { value <= aim } else { value >= aim };
                    format!("{value:.2}{unit}{}", judged(reached))
                });
                (cell, format!("{sign} {aim}{unit}"))
            }
            Engine::OfPeer(aim) => {
                let ratio = engine.zip(peer).map(|(engine, peer)| times(self.better, engine, peer));
                let cell = ratio
                    .map_or(NONE.to_owned(), |ratio| format!("{ratio:.2}x peer{}", judged(ratio >= aim)));
                (cell, format!(">= {aim}x peer"))
            }
        }
    }
}

impl Cross {
    fn cells(&self, groups: &[Group<'_>]) -> Option<Cells> {
        let of = |workload: &str, system: &str| {
            groups.iter().find(|group| group.workload.name == workload)?.median(system, self.figure)
        };
        let own = of(self.workload, self.system)?;
        let peers = self.peers.iter().filter_map(|peer| Some((*peer, of(self.against, peer)?)));
        let (peer, best) = peers.reduce(|best, next| if next.1 > best.1 { next } else { best })?;
        let name = match self.workload == self.against {
            true => self.workload.to_owned(),
            false => format!("{} against {}", self.workload, self.against),
        };
        let ratio = format!("{:.2}x{}", own / best, judged(own / best >= self.aim));
        let aim = format!(">= {:.2}x", self.aim);
        let none = || NONE.to_owned();
        let cells = Cells {
            name,
            figure: self.figure,
            mount: none(),
            peer: format!("{best:.0} ({peer})"),
            against: none(),
            aim: none(),
            dev: none(),
            engine: none(),
            engine_aim: none(),
        };
        Some(match self.system {
            "engine" => Cells { engine: format!("{own:.0}: {ratio}"), engine_aim: aim, ..cells },
            _ => {
                let dev = of(self.workload, "syncline-dev");
                let dev = dev.map_or_else(none, |dev| format!("{dev:.0} ({:.2}x)", dev / best));
                Cells { mount: format!("{own:.0}"), against: ratio, aim, dev, ..cells }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::report::groups;
    use crate::row::Row;
    use crate::workload;

    /// The table of these rows.
    fn table_of(rows: Vec<Row>) -> String {
        let record = Record::of_rows(rows);
        table(&groups(&record, &workload::all()))
    }

    fn append(mount: f64) -> String {
        let row = |system: &str, p50: f64| Row::of(system, "append", &[("p50_us", p50), ("x_floor", 1.2)]);
        table_of(vec![
            row("engine", 100.0),
            row("syncline", mount),
            row("syncline-dev", 600.0),
            row("ext4", 400.0),
            row("xfs", 300.0),
        ])
    }

    #[test]
    fn one_journal_mode_is_held_against_another_one_of_the_peers() {
        let row =
            |system: &str, workload: &str, rate: f64| Row::of(system, workload, &[("insert_per_s", rate)]);
        let text = table_of(vec![
            row("syncline", "sqlite-atomic", 2800.0),
            row("ext4", "sqlite-delete", 1000.0),
            row("xfs", "sqlite-delete", 900.0),
        ]);
        assert!(
            text.contains(
                "| sqlite-atomic against sqlite-delete | insert_per_s | 2800 | 1000 (ext4) | 2.80x, missed |"
            ),
            "{text}"
        );
    }

    #[test]
    fn mount_is_held_to_the_best_peer_and_engine_to_the_floor() {
        let text = append(150.0);
        assert!(
            text.contains(
                "| 150 | 300 (xfs) | 2.00x | >= 1.50x | 600 (0.50x) | 1.20x floor, missed | <= 1.1x floor |"
            ),
            "{text}"
        );
        let text = append(250.0);
        assert!(text.contains("| 1.20x, missed |"), "{text}");
    }

    #[test]
    fn pacing_is_held_to_three_times_its_own_idle_figure() {
        let row = |system: &str, ratio: f64| Row::of(system, "pacing", &[("sync_p99_ratio", ratio)]);
        let text = table_of(vec![row("engine", 2.0), row("syncline", 3.5), row("ext4", 40.0)]);
        assert!(
            text.contains("| 3.50 | 40.00 (ext4) | 3.50, missed | <= 3.00 | - | 2.00x alone | <= 3x alone |"),
            "{text}"
        );
    }
}
