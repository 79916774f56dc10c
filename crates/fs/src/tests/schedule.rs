//! The schedule of snapshots, by a clock that moves when it is told to.

use super::{MIB, TestVolume};
use crate::{
    Clock, Error, FsOptions, KeepFree, MkfsOptions, Schedule, SnapshotData, SnapshotInfo, SnapshotKind,
    SystemEntropy,
};
use std::collections::BTreeSet;
use syncline_format::ObjectNo;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

fn volume(bytes: u64) -> TestVolume {
    let mkfs = MkfsOptions { journal_bytes: Some(MIB), ..MkfsOptions::default() };
    let mut volume = TestVolume::made(bytes, mkfs, FsOptions::default());
    // At the beginning of an hour, and late enough to be set back.
    volume.clock.advance(30 * DAY);
    let into = volume.clock.now().seconds as u64 % 3600;
    volume.clock.advance(1000 * (3600 - into));
    volume.reopen();
    volume
}

fn schedule(hourly: u16, daily: u16, weekly: u16, monthly: u16) -> Schedule {
    Schedule { hourly, daily, weekly, monthly, keep_free: KeepFree::Nothing, prefix: "auto".to_owned() }
}

/// The background, until it has nothing to do.
fn tend(volume: &TestVolume) {
    for _ in 0..10_000 {
        if !volume.fs.maintain(volume.clock.now(), 64).unwrap() {
            return;
        }
    }
    panic!("the background comes to no end");
}

fn pass(volume: &TestVolume, milliseconds: u64) {
    volume.clock.advance(milliseconds);
    tend(volume);
}

/// Changes the volume.
fn write(volume: &TestVolume, name: &str, content: &[u8]) {
    let found = volume.fs.names.lookup(ObjectNo::ROOT_DIR, name.as_bytes());
    let file = if found.is_ok() { volume.find(name) } else { volume.create(name) };
    volume.write(&file, 0, content);
    volume.sync(&file);
}

fn made(volume: &TestVolume) -> Vec<SnapshotInfo> {
    volume.fs.snapshots()
}

fn hours(volume: &TestVolume) -> Vec<i64> {
    made(volume).iter().map(|snapshot| snapshot.made.seconds / 3600).collect()
}

fn read(volume: &TestVolume, snapshot: &str, name: &str) -> Vec<u8> {
    let view = volume.fs.at(snapshot).unwrap();
    let found = view.names().lookup(ObjectNo::ROOT_DIR, name.as_bytes()).unwrap();
    let file = view.content.inode(found.attr.inode).unwrap();
    let mut content = vec![0xAA; file.state.read().item.size as usize];
    let read = view.shape.file_read(&file, 0, &mut content).unwrap();
    content.truncate(read);
    content
}

/// What is to be kept of snapshots made at these hours, told once more and in another way: for each class the last one
/// of each of its newest periods.
fn expected(all: &[i64], schedule: &Schedule) -> Vec<i64> {
    let month = |hour: i64| {
        // Days of the months of 1970 and 1971, which the test does not leave.
        let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut day = hour / 24;
        lengths.iter().cycle().position(|length| {
            day -= length;
            day < 0
        })
    };
    let mut kept = BTreeSet::new();
    let mut class = |count: u16, period: &dyn Fn(i64) -> i64| {
        let periods: BTreeSet<i64> = all.iter().map(|hour| period(*hour)).collect();
        for wanted in periods.iter().rev().take(usize::from(count)) {
            kept.extend(all.iter().rfind(|hour| period(**hour) == *wanted));
        }
    };
    class(schedule.hourly, &|hour| hour);
    class(schedule.daily, &|hour| hour / 24);
    class(schedule.weekly, &|hour| (hour / 24 + 3) / 7);
    class(schedule.monthly, &|hour| month(hour).unwrap() as i64);
    kept.into_iter().collect()
}

// Shows: C10, C11.
#[test]
fn each_hour_gets_a_snapshot_and_each_class_keeps_the_last_of_its_newest_periods() {
    let mut volume = volume(64 * MIB);
    let wanted = schedule(5, 4, 3, 2);
    volume.fs.schedules().set(Some(&wanted)).unwrap();
    let mut all: Vec<i64> = Vec::new();
    for hour in 0..24 * 70_u64 {
        let now = volume.clock.now().seconds / 3600;
        // Also at night nothing happens, and some hours long the volume is closed.
        if hour % 24 >= 6 {
            write(&volume, "log", format!("{now}").as_bytes());
            pass(&volume, 0);
            all.push(now);
        }
        if hour % 24 == 9 {
            // Later in the hour nothing more is made.
            write(&volume, "log", b"0");
            pass(&volume, HOUR / 2);
            volume.clock.set_back(HOUR / 2);
        }
        if hour % 241 == 240 {
            volume.fs.close().unwrap();
            volume.crash();
        }
        if hour % 24 == 12 {
            assert_eq!(hours(&volume), expected(&all, &wanted), "in hour {hour}");
        }
        volume.clock.advance(HOUR);
    }
    assert!(made(&volume).len() > 8);
    for snapshot in made(&volume) {
        assert!(snapshot.is_scheduled && snapshot.name.starts_with("auto-1970-0"), "{snapshot:?}");
        let told = String::from_utf8(read(&volume, &snapshot.name, "log")).unwrap();
        assert_eq!(told.parse(), Ok(snapshot.made.seconds / 3600), "{}", snapshot.name);
    }
    volume.reopen();
}

#[test]
fn hours_that_were_missed_are_made_up_for_by_one_snapshot_and_hours_without_a_change_by_none() {
    let mut volume = volume(64 * MIB);
    volume.fs.schedules().set(Some(&schedule(24, 0, 0, 0))).unwrap();
    write(&volume, "a", b"1");
    pass(&volume, 0);
    assert_eq!(made(&volume).len(), 1);
    volume.fs.close().unwrap();
    volume.clock.advance(9 * DAY + HOUR / 3);
    volume.crash();
    // Closing has written nothing that is another state of the files.
    pass(&volume, 0);
    let before = made(&volume).len();
    assert!(before <= 2, "{:?}", made(&volume));
    for _ in 0..50 {
        pass(&volume, HOUR);
    }
    assert_eq!(made(&volume).len(), before, "nothing has changed");
    write(&volume, "a", b"2");
    // The hour was decided: it had nothing new.
    pass(&volume, 1000);
    assert_eq!(made(&volume).len(), before);
    pass(&volume, HOUR);
    assert_eq!(made(&volume).len(), before + 1);
    volume.clock.advance(100 * DAY);
    write(&volume, "a", b"3");
    for _ in 0..30 {
        pass(&volume, 100);
    }
    assert_eq!(made(&volume).len(), before + 2, "one, for hours of a hundred days");
}

// Shows: C11.
#[test]
fn a_clock_that_is_set_makes_no_flood_and_takes_nothing_away() {
    let volume = volume(64 * MIB);
    volume.fs.schedules().set(Some(&schedule(4, 0, 0, 0))).unwrap();
    for round in 0..4_u8 {
        write(&volume, "a", &[round]);
        pass(&volume, HOUR);
    }
    let names = |volume: &TestVolume| made(volume).into_iter().map(|made| made.name).collect::<Vec<_>>();
    let before = names(&volume);
    assert_eq!(before.len(), 4);
    // It jumps to and fro over the turn of an hour: each hour has its snapshot.
    for round in 0..40_u8 {
        write(&volume, "a", &[round, 1]);
        volume.clock.set_back(3000);
        tend(&volume);
        write(&volume, "a", &[round, 2]);
        volume.clock.advance(3000);
        tend(&volume);
    }
    assert_eq!(names(&volume), before);
    // Two days back: the next hour's snapshot takes the place of the oldest one, and no other.
    volume.clock.set_back(2 * DAY);
    for round in 0..40_u8 {
        write(&volume, "a", &[round, 3]);
        pass(&volume, 1000);
    }
    let behind = names(&volume);
    assert_eq!(behind[..3], before[1..], "the newest stay");
    assert_eq!(behind.len(), 4);
    // Back where it was: its hour has a snapshot already.
    volume.clock.advance(2 * DAY - 60_000);
    for round in 0..40_u8 {
        write(&volume, "a", &[round, 4]);
        pass(&volume, 100);
    }
    assert_eq!(names(&volume), behind);
    // Ahead by eighty years and back: one snapshot, and from then on one an hour.
    volume.clock.advance(80 * 365 * DAY);
    write(&volume, "a", b"ahead");
    pass(&volume, 0);
    volume.clock.set_back(80 * 365 * DAY - 2 * HOUR);
    write(&volume, "a", b"back");
    pass(&volume, 0);
    let last = names(&volume);
    assert_eq!(last[..2], behind[2..]);
    assert!(last[2].starts_with("auto-2049-") || last[2].starts_with("auto-2050-"), "{last:?}");
    assert_eq!(last.len(), 4);
}

// Shows: C11.
#[test]
fn what_is_held_renamed_or_branched_from_and_what_others_have_made_stays() {
    let mut volume = volume(64 * MIB);
    let random = SystemEntropy::default();
    volume.fs.schedules().set(Some(&schedule(2, 0, 0, 0))).unwrap();
    let mut kept = Vec::new();
    for round in 0..12_u8 {
        write(&volume, "a", &[round]);
        pass(&volume, HOUR);
        let newest = made(&volume).into_iter().rfind(|snapshot| snapshot.is_scheduled).unwrap().name;
        match round {
            1 => volume.fs.hold_snapshot(&newest).unwrap(),
            3 => volume.fs.rename_snapshot(&newest, "mine").unwrap(),
            5 => drop(volume.fs.heads().make(&newest, "branch", &random).unwrap()),
            7 => drop(volume.fs.snapshot("other", SnapshotData::Written, &random).unwrap()),
            _ => continue,
        }
        kept.push(match round {
            3 => ("mine".to_owned(), round),
            7 => ("other".to_owned(), round),
            _ => (newest, round),
        });
    }
    let names = |volume: &TestVolume| made(volume).into_iter().map(|made| made.name).collect::<Vec<_>>();
    assert_eq!(names(&volume).len(), kept.len() + 2);
    for (name, round) in &kept {
        assert_eq!(read(&volume, name, "a"), [*round], "{name}");
    }
    // Its time has come when nobody needs it any more.
    volume.fs.release_snapshot(&kept[0].0).unwrap();
    volume.fs.heads().delete("branch").unwrap();
    // A head that was deleted is an end of the snapshot's line until its space has come back.
    for _ in 0..3 {
        pass(&volume, 11_000);
    }
    assert_eq!(names(&volume).len(), 4, "{:?}", names(&volume));
    volume.fs.schedules().set(None).unwrap();
    assert_eq!(volume.fs.schedules().get(), None);
    let before = names(&volume);
    for _ in 0..5 {
        write(&volume, "a", b"more");
        pass(&volume, HOUR);
    }
    assert_eq!(names(&volume), before, "nobody makes or deletes any");
    volume.reopen();
    assert_eq!(volume.fs.schedules().get(), None);
}

#[test]
fn a_snapshot_that_expires_goes_and_one_that_is_held_as_well_when_it_is_released() {
    let mut volume = volume(64 * MIB);
    let random = SystemEntropy::default();
    let expires = volume.clock.now().seconds as u64 + 3600;
    let kind = SnapshotKind { data: SnapshotData::Written, expires, is_held: false };
    volume.fs.snapshot("short", kind, &random).unwrap();
    volume.fs.snapshot("held", SnapshotKind { is_held: true, ..kind }, &random).unwrap();
    volume.fs.snapshot("long", SnapshotData::Written, &random).unwrap();
    volume.reopen();
    let names = |volume: &TestVolume| made(volume).into_iter().map(|made| made.name).collect::<Vec<_>>();
    assert_eq!(made(&volume)[0].expires, expires);
    pass(&volume, HOUR - 20_000);
    assert_eq!(names(&volume), ["short", "held", "long"]);
    pass(&volume, 31_000);
    assert_eq!(names(&volume), ["held", "long"]);
    // A clock that is set back brings nothing back, and takes nothing.
    volume.clock.set_back(5 * DAY);
    volume.fs.release_snapshot("held").unwrap();
    pass(&volume, 11_000);
    assert_eq!(names(&volume), ["held", "long"]);
    pass(&volume, 5 * DAY);
    assert_eq!(names(&volume), ["long"]);
}

// Shows: C11.
#[test]
fn below_what_is_kept_free_the_oldest_go_one_after_the_other_and_none_is_made() {
    let volume = volume(64 * MIB);
    let random = SystemEntropy::default();
    volume.fs.schedules().set(Some(&schedule(24, 0, 0, 0))).unwrap();
    let available = |volume: &TestVolume| {
        let space = volume.fs.statfs();
        space.blocks_available * 100 / space.blocks
    };
    volume.fs.snapshot("mine", SnapshotData::Written, &random).unwrap();
    // Each snapshot has 4 MiB alone.
    for round in 0..8_u8 {
        write(&volume, "a", &vec![round; 4 * MIB as usize]);
        pass(&volume, HOUR);
    }
    let before = made(&volume);
    assert_eq!(before.len(), 9);
    // Less than 4 MiB more.
    let bound = available(&volume) - 3;
    let keep_free = KeepFree::Percent(bound as u8);
    volume.fs.schedules().set(Some(&Schedule { keep_free, ..schedule(24, 0, 0, 0) })).unwrap();
    pass(&volume, 1000);
    assert_eq!(made(&volume), before);
    write(&volume, "b", &vec![1; 4 * MIB as usize]);
    assert!(volume.fs.schedules().is_low());
    pass(&volume, 1000);
    let behind = made(&volume);
    assert!(available(&volume) >= bound, "{}", available(&volume));
    // As many as it took: with one more of them less would be free.
    let gone = before.len() - behind.len();
    assert!((1..=3).contains(&gone), "{gone}: {behind:?}");
    assert_eq!(behind[0].name, "mine");
    assert_eq!(behind[1..], before[1 + gone..], "the oldest have gone");
    // What others have made is not the schedule's, and nothing is made while too little is free.
    write(&volume, "c", &vec![2; 28 * MIB as usize]);
    for _ in 0..3 {
        write(&volume, "d", b"more");
        pass(&volume, HOUR);
    }
    assert!(available(&volume) < bound);
    assert_eq!(made(&volume).into_iter().map(|made| made.name).collect::<Vec<_>>(), ["mine"]);
    volume.fs.delete_snapshot("mine").unwrap();
    volume.fs.names.unlink(ObjectNo::ROOT_DIR, b"c").unwrap();
    pass(&volume, HOUR);
    pass(&volume, HOUR);
    assert!(!volume.fs.schedules().is_low());
    assert_eq!(made(&volume).len(), 1);
}

#[test]
fn a_full_volume_makes_none_and_goes_on() {
    let volume = volume(16 * MIB);
    volume.fs.schedules().set(Some(&schedule(3, 0, 0, 0))).unwrap();
    write(&volume, "a", b"1");
    pass(&volume, 0);
    assert_eq!(made(&volume).len(), 1);
    let file = volume.create("big");
    let mut at = 0;
    while volume.try_write(&file, at, &[7; 65_536]).is_ok() {
        at += 65_536;
    }
    for _ in 0..5 {
        pass(&volume, HOUR);
    }
    assert_eq!(made(&volume).len(), 1, "too little would be left behind it");
    assert!(volume.fs.failure().is_none());
    // Deleting goes on, and so does the schedule's end.
    volume.fs.schedules().set(None).unwrap();
    volume.fs.delete_snapshot(&made(&volume)[0].name).unwrap();
    pass(&volume, 1000);
    let refused = volume.fs.schedules().set(Some(&schedule(1, 0, 0, 0)));
    drop(file);
    volume.fs.names.unlink(ObjectNo::ROOT_DIR, b"big").unwrap();
    volume.fs.sync_all().unwrap();
    if let Err(error) = refused {
        assert_eq!(error, Error::NoSpace);
        volume.fs.schedules().set(Some(&schedule(1, 0, 0, 0))).unwrap();
    }
    write(&volume, "a", b"2");
    pass(&volume, HOUR);
    assert_eq!(made(&volume).len(), 1);
}

#[test]
fn a_schedule_survives_a_crash_and_is_refused_where_it_cannot_be() {
    let mut volume = volume(64 * MIB);
    let wanted = Schedule { keep_free: KeepFree::Bytes(MIB), ..schedule(24, 7, 4, 12) };
    volume.fs.schedules().set(Some(&wanted)).unwrap();
    volume.crash();
    assert_eq!(volume.fs.schedules().get(), Some(wanted.clone()));
    // Once more, from a checkpoint.
    volume.reopen();
    assert_eq!(volume.fs.schedules().get(), Some(wanted.clone()));
    let copy = volume.read_only_copy();
    assert_eq!(copy.fs.schedules().get(), Some(wanted.clone()));
    assert_eq!(copy.fs.schedules().set(None), Err(Error::ReadOnly));
    for wrong in [
        schedule(0, 0, 0, 0),
        schedule(10_000, 0, 0, 0),
        Schedule { prefix: "a b".to_owned(), ..wanted.clone() },
        Schedule { prefix: String::new(), ..wanted.clone() },
        Schedule { keep_free: KeepFree::Percent(91), ..wanted.clone() },
    ] {
        let refused = volume.fs.schedules().set(Some(&wrong)).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    }
    assert_eq!(volume.fs.schedules().get(), Some(wanted.clone()));
    volume.fs.schedules().set(None).unwrap();
    volume.crash();
    assert_eq!(volume.fs.schedules().get(), None);
    let mkfs = MkfsOptions { journal_bytes: Some(MIB), ..MkfsOptions::default() };
    let old = TestVolume::made(16 * MIB, mkfs.format(1), FsOptions::default());
    let refused = old.fs.schedules().set(Some(&wanted)).unwrap_err();
    assert!(refused.to_string().contains("version 1"), "{refused}");
    assert_eq!(old.fs.schedules().get(), None);
}
