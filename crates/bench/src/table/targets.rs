//! What is aimed at, beside what was reached: the mount against the best of the kernel's file systems, and the engine in process
//! against the floor or against the same.

use super::{headed, row, shown};
use crate::report::Group;

const PEERS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// Which way a figure is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    More,
    Less,
}

/// What the engine in process is held to.
#[derive(Clone, Copy)]
enum Engine {
    Nothing,
    /// This figure of its own, at most.
    AtMost(&'static str, f64),
    /// This figure of its own, at least.
    AtLeast(&'static str, f64),
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
    /// So many times as good as the best peer.
    aim: f64,
    engine: Engine,
}

const fn target(
    workload: &'static str,
    figure: &'static str,
    better: Better,
    aim: f64,
    engine: Engine,
) -> Target {
    Target { workload, figure, better, peers: &PEERS, aim, engine }
}

const TARGETS: &[Target] = {
    use Better::{Less, More};
    use Engine::{AtLeast, AtMost, Nothing, OfPeer};
    &[
        target("append", "p50_us", Less, 1.5, AtMost("x_floor", 1.1)),
        target("create", "p50_us", Less, 1.6, AtMost("x_floor", 1.15)),
        target("replace", "p50_us", Less, 1.5, AtMost("x_floor", 2.1)),
        target("threads", "ops_per_s", More, 1.3, AtLeast("of_group_floor", 0.7)),
        target("fio-sequential", "mb_per_s", More, 1.1, Nothing),
        target("fio-random", "mb_per_s", More, 1.3, Nothing),
        target("fs-mark-each", "ops_per_s", More, 1.5, Nothing),
        target("fs-mark-pass", "ops_per_s", More, 1.2, Nothing),
        target("async-pass", "ops_per_s", More, 1.0, OfPeer(2.0)),
        Target { peers: &["btrfs"], ..target("dbench", "mb_per_s", More, 1.0, Nothing) },
        Target { peers: &["btrfs"], ..target("dbench", "rename_avg_ms", Less, 1.0, Nothing) },
        Target { peers: &["btrfs"], ..target("dbench", "rename_max_ms", Less, 1.0, Nothing) },
        target("dbench", "flush_avg_ms", Less, 1.0 / 0.7, Nothing),
        // The mount's own aim is the row above; this one is the engine's.
        target("dbench", "mb_per_s", More, 0.0, OfPeer(1.0)),
        target("beside-creates", "p50_us", Less, 1.0, Nothing),
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

const CROSSES: &[Cross] = &[
    cross("syncline", "sqlite-atomic", "sqlite-delete", 3.0),
    cross("syncline", "sqlite-atomic", "sqlite-wal", 1.0),
    cross("engine", "sqlite-vfs-delete", "sqlite-delete", 4.0),
    cross("engine", "sqlite-vfs-delete", "sqlite-wal", 1.3),
    Cross {
        figure: "mb_per_s",
        peers: &["ext4"],
        ..cross("syncline", "sequential-read-warm", "sequential-read-warm", 0.9)
    },
];

impl Cross {
    fn cells(&self, groups: &[Group<'_>]) -> Option<Vec<String>> {
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
        let ratio = own / best;
        let ratio = format!("{ratio:.2}x{}", if ratio >= self.aim { "" } else { ", missed" });
        let aim = format!(">= {:.2}x", self.aim);
        let (own, none) = (format!("{own:.0}"), "-".to_owned());
        let best = format!("{best:.0} ({peer})");
        let figure = self.figure.to_owned();
        Some(match self.system {
            "engine" => {
                vec![name, figure, none.clone(), best, none.clone(), none, format!("{own}: {ratio}"), aim]
            }
            _ => vec![name, figure, own, best, ratio, aim, none.clone(), none],
        })
    }
}

/// A row for each workload of a target that was measured.
pub(super) fn table(groups: &[Group<'_>]) -> String {
    let mut rows = String::new();
    for target in TARGETS {
        let belongs = |group: &&Group<'_>| {
            group.workload.name == target.workload || group.workload.family() == target.workload
        };
        for group in groups.iter().filter(belongs) {
            if let Some(cells) = target.cells(group) {
                row(&mut rows, cells.into_iter());
            }
        }
    }
    for cells in CROSSES.iter().filter_map(|cross| cross.cells(groups)) {
        row(&mut rows, cells.into_iter());
    }
    let heads = ["", "figure", "mount", "best peer", "mount against peer", "aim", "engine", "engine's aim"];
    headed("### Aims and what was reached", heads.map(str::to_owned).to_vec(), rows)
}

impl Target {
    /// `None` if nothing of it was measured.
    fn cells(&self, group: &Group<'_>) -> Option<Vec<String>> {
        let of = |system: &str| group.median(system, self.figure);
        let peer = self
            .peers
            .iter()
            .filter_map(|peer| Some((*peer, of(peer)?)))
            .reduce(|best, next| if self.better_of(next.1, best.1) { next } else { best });
        let (mount, engine) = (of("syncline"), of("engine"));
        let times = |value: f64, peer: f64| match self.better {
            Better::More => value / peer,
            Better::Less => peer / value,
        };
        let against = mount.zip(peer).map(|(mount, (_, peer))| times(mount, peer));
        let judged = |reached: bool| if reached { "" } else { ", missed" };
        let aimed = self.aim > 0.0;
        let against_cell = match against.filter(|_| aimed) {
            Some(ratio) => format!("{ratio:.2}x{}", judged(ratio >= self.aim)),
            None => "-".to_owned(),
        };
        let (engine_cell, engine_aim) = match self.engine {
            Engine::Nothing => (shown(engine, self.places()), "-".to_owned()),
            Engine::AtMost(figure, aim) | Engine::AtLeast(figure, aim) => {
                let at_most = matches!(self.engine, Engine::AtMost(..));
                let value = group.median("engine", figure);
                let reached = value.is_none_or(|value| if at_most { value <= aim } else { value >= aim });
                let sign = if at_most { "<=" } else { ">=" };
                (format!("{}x floor{}", shown(value, 2), judged(reached)), format!("{sign} {aim}x floor"))
            }
            Engine::OfPeer(aim) => {
                let ratio = engine.zip(peer).map(|(engine, (_, peer))| times(engine, peer));
                let reached = ratio.is_none_or(|ratio| ratio >= aim);
                (format!("{}x peer{}", shown(ratio, 2), judged(reached)), format!(">= {aim}x peer"))
            }
        };
        mount.or(engine)?;
        Some(vec![
            group.workload.name.clone(),
            self.figure.to_owned(),
            shown(mount, self.places()),
            peer.map_or("-".to_owned(), |(name, value)| {
                format!("{} ({name})", shown(Some(value), self.places()))
            }),
            against_cell,
            if aimed { format!(">= {:.2}x", self.aim) } else { "-".to_owned() },
            engine_cell,
            engine_aim,
        ])
    }

    fn better_of(&self, one: f64, other: f64) -> bool {
        match self.better {
            Better::More => one > other,
            Better::Less => one < other,
        }
    }

    fn places(&self) -> usize {
        if self.figure.ends_with("_ms") { 3 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::report::groups;
    use crate::row::Row;
    use crate::workload;

    fn record(mount: f64) -> Record {
        let row = |system: &str, p50: f64| Row {
            system: system.to_owned(),
            workload: "append".to_owned(),
            round: 0,
            figures: [("p50_us".to_owned(), p50), ("x_floor".to_owned(), 1.2)].into(),
            series: Default::default(),
            skipped: None,
        };
        Record::of_rows(vec![
            row("engine", 100.0),
            row("syncline", mount),
            row("ext4", 400.0),
            row("xfs", 300.0),
        ])
    }

    #[test]
    fn one_journal_mode_is_held_against_another_one_of_the_peers() {
        let row = |system: &str, workload: &str, rate: f64| Row {
            system: system.to_owned(),
            workload: workload.to_owned(),
            round: 0,
            figures: [("insert_per_s".to_owned(), rate)].into(),
            series: Default::default(),
            skipped: None,
        };
        let record = Record::of_rows(vec![
            row("syncline", "sqlite-atomic", 2800.0),
            row("ext4", "sqlite-delete", 1000.0),
            row("xfs", "sqlite-delete", 900.0),
        ]);
        let workloads = workload::all();
        let text = table(&groups(&record, &workloads));
        assert!(
            text.contains(
                "| sqlite-atomic against sqlite-delete | insert_per_s | 2800 | 1000 (ext4) | 2.80x, missed |"
            ),
            "{text}"
        );
    }

    #[test]
    fn mount_is_held_to_the_best_peer_and_engine_to_the_floor() {
        let workloads = workload::all();
        let text = table(&groups(&record(150.0), &workloads));
        assert!(
            text.contains("| 150 | 300 (xfs) | 2.00x | >= 1.50x | 1.20x floor, missed | <= 1.1x floor |"),
            "{text}"
        );
        let text = table(&groups(&record(250.0), &workloads));
        assert!(text.contains("| 1.20x, missed |"), "{text}");
    }
}
