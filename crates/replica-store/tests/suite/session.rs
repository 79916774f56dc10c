//! A volume is shipped to a folder, and comes back from it.

use crate::common::{Place, options, restored, settle, until, volume};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use syncline::{MkfsOptions, OpenOptions as FileOptions, SystemClock, SystemEntropy, Volume, VolumeOptions};
use syncline_device::{Device, FileDevice, MemoryDevice};
use syncline_format::BLOCK_BYTES;
use syncline_fs::Fs;
use syncline_replica::{Acknowledge, Phase, ReplicaError, Target};
use syncline_replica_store::{
    Address, Client, Error, Housekeeping, Keep, Options, Session, image, keep_house, mark, verify,
};

const BYTES: u64 = 16 << 20;

fn made(place: &Place) -> Arc<dyn Device> {
    place.made("a", BYTES, &MkfsOptions::default())
}

// Shows: C13.
#[test]
fn what_counts_is_restored_while_the_volume_is_open_and_behind_its_close() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    let volume = volume(session.device());
    volume.write("/one", "first").unwrap();
    volume.sync_all().unwrap();
    settle(&session);
    let restored = place.restored(Target::Newest).unwrap();
    assert_eq!(restored.read("/one").unwrap(), b"first");

    volume.write("/two", vec![7; 300_000]).unwrap();
    volume.remove_file("/one").unwrap();
    volume.close().unwrap();
    let status = session.close().unwrap();
    assert_eq!(status.phase, Phase::Closed);
    let restored = place.restored(Target::Newest).unwrap();
    assert_eq!(restored.read("/two").unwrap(), vec![7; 300_000]);
    assert!(restored.read("/one").is_err());
    let earlier = place.restored(Target::Position(1, status.units - 2)).unwrap();
    drop(earlier);
}

// Shows: C13.
#[test]
fn as_soon_as_nothing_is_told_to_be_late_what_was_synced_is_restored() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    let volume = volume(session.device());
    for number in 0..20u8 {
        volume.write("/one", [number]).unwrap();
        volume.sync_all().unwrap();
        until(&session, "shipping", |session| session.status().lag == 0);
        assert_eq!(place.restored(Target::Newest).unwrap().read("/one").unwrap(), [number]);
    }
    volume.close().unwrap();
    session.close().unwrap();
}

// Shows: C13.
#[test]
fn the_lag_is_never_smaller_than_the_age_of_the_oldest_sync_that_does_not_count() {
    let place = Place::new();
    let slow = Options { interval: Duration::from_secs(3), ..options() };
    let session = Session::open(made(&place), &place.address(), &slow).unwrap();
    let volume = volume(session.device());
    for number in 0..3u8 {
        volume.sync_all().unwrap();
        until(&session, "shipping", |session| session.status().flush >= session.flushes());
        // The uploader looks now and then: this is behind one look, and long before the next.
        std::thread::sleep(Duration::from_millis(270));
        volume.write("/one", [number]).unwrap();
        volume.sync_all().unwrap();
        let (flush, synced) = (session.flushes(), Instant::now());
        loop {
            let age = synced.elapsed();
            let status = session.status();
            if status.flush >= flush {
                break;
            }
            assert!(Duration::from_nanos(status.lag) >= age, "{age:?}: {status:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    volume.close().unwrap();
    session.close().unwrap();
}

// Shows: C14.
#[test]
fn a_folder_that_goes_away_is_waited_for_and_not_made_anew() {
    let place = Place::new();
    let remotely = Options { acknowledge: Acknowledge::Remote, ..options() };
    let session = Session::open(made(&place), &place.address(), &remotely).unwrap();
    let volume = volume(session.device());
    volume.write("/one", "first").unwrap();
    volume.sync_all().unwrap();
    std::fs::rename(place.path("replica"), place.path("away")).unwrap();
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| {
            volume.write("/two", "second").unwrap();
            volume.sync_all()
        });
        until(&session, "trouble", |session| session.status().trouble.is_some());
        assert!(!synced.is_finished() && !place.path("replica").exists());
        std::fs::rename(place.path("away"), place.path("replica")).unwrap();
        synced.join().expect("a thread").unwrap();
    });
    assert_eq!(place.restored(Target::Newest).unwrap().read("/two").unwrap(), b"second");
    volume.close().unwrap();
    session.close().unwrap();
}

#[test]
fn a_volume_that_was_closed_goes_on_without_a_base_and_one_that_was_not_begins_one() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    let first = volume(session.device());
    first.write("/large", vec![3; 4 << 20]).unwrap();
    first.close().unwrap();
    session.close().unwrap();

    let session = Session::open(place.opened("a"), &place.address(), &options()).unwrap();
    assert_eq!(session.status().dirty, 0, "nothing has to be read from the volume");
    let second = volume(session.device());
    second.write("/small", "more").unwrap();
    second.sync_all().unwrap();
    settle(&session);
    assert_eq!(session.status().claim, 2);
    // The process dies: nothing is closed.
    drop(session);
    std::mem::forget(second);

    let copy = place.path("b");
    std::fs::copy(place.path("a"), &copy).unwrap();
    let session = Session::open(place.opened("b"), &place.address(), &options()).unwrap();
    let third = volume(session.device());
    third.write("/third", "and more").unwrap();
    third.close().unwrap();
    let status = session.close().unwrap();
    assert_eq!(status.claim, 3);
    let restored = place.restored(Target::Newest).unwrap();
    assert_eq!(restored.read("/large").unwrap(), vec![3; 4 << 20]);
    assert_eq!(restored.read("/small").unwrap(), b"more");
    assert_eq!(restored.read("/third").unwrap(), b"and more");
}

// Shows: C13.
#[test]
fn a_sync_of_a_volume_that_is_shipped_is_one_write_and_one_flush() {
    let place = Place::new();
    // In memory: a new image file has holes, and the first write into each costs one more.
    let device = MemoryDevice::new(BYTES / BLOCK_BYTES as u64);
    let entropy = SystemEntropy::default();
    Fs::format(&device, &MkfsOptions::default(), &SystemClock, &entropy, &mut |_, _| {}).expect("mkfs");
    let session = Session::open(Arc::new(device), &place.address(), &options()).unwrap();
    let quiet = VolumeOptions::new().background(false);
    let volume = Volume::on_device(session.device(), &quiet).expect("the volume opens");
    volume.write("/first", "x").unwrap();
    volume.sync_all().unwrap();
    settle(&session);
    let mut counted = session.status().units;
    for number in 0..30 {
        let before = session.device().counters();
        let mut file = volume.create_file(format!("/{number}")).unwrap();
        file.write_all(b"content").unwrap();
        file.sync_all().unwrap();
        let after = session.device().counters();
        assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1));
        assert_eq!(after.reads, before.reads);
        // In some rounds what came before is shipped meanwhile, in others not.
        if number % 3 == 0 {
            settle(&session);
            assert!(session.status().units > counted, "it was shipped");
            counted = session.status().units;
        }
    }
    volume.close().unwrap();
    session.close().unwrap();
}

// Shows: C15.
#[test]
fn of_two_copies_of_a_volume_one_ships_and_the_other_is_told() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    let here = volume(session.device());
    here.write("/file", "here").unwrap();
    here.sync_all().unwrap();
    settle(&session);
    std::fs::copy(place.path("a"), place.path("b")).unwrap();

    let other = Session::open(place.opened("b"), &place.address(), &options()).unwrap();
    let there = volume(other.device());
    there.write("/file", "there").unwrap();
    there.sync_all().unwrap();
    settle(&other);
    // The first one goes on, and learns of it with its next unit.
    here.write("/late", "nobody sees this elsewhere").unwrap();
    let _ = here.sync_all();
    until(&session, "being fenced", |session| matches!(session.status().phase, Phase::Failed(_)));
    let Phase::Failed(error) = session.status().phase else { unreachable!() };
    assert!(matches!(error, ReplicaError::Fenced { claim: 2, .. }), "{error}");
    assert!(error.to_string().contains("has taken over the replica (claim 2)"), "{error}");
    // From then on nothing is acknowledged here (C8).
    let refused = here.write("/later", "x").and_then(|()| here.sync_all()).unwrap_err();
    assert!(refused.to_string().contains("has taken over the replica (claim 2)"), "{refused}");
    here.close().unwrap_err();
    drop(session);

    let error = Session::open(place.opened("a"), &place.address(), &options()).map(drop).unwrap_err();
    assert!(error.to_string().contains("was written by process"), "{error}");
    assert!(error.to_string().contains("(claim 2, this volume has 1)"), "{error}");
    let restored = place.restored(Target::Newest).unwrap();
    assert_eq!(restored.read("/file").unwrap(), b"there");
    assert!(restored.read("/late").is_err());
    there.close().unwrap();
    other.close().unwrap();
}

// Shows: C15.
#[test]
fn an_image_that_was_set_back_is_refused_before_it_claims() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    let first = volume(session.device());
    first.write("/a", "a").unwrap();
    first.sync_all().unwrap();
    settle(&session);
    std::fs::copy(place.path("a"), place.path("old")).unwrap();
    first.write("/b", "b").unwrap();
    first.close().unwrap();
    session.close().unwrap();
    let before = std::fs::read(place.path("old")).unwrap();
    let error = Session::open(place.opened("old"), &place.address(), &options()).map(drop).unwrap_err();
    assert!(error.to_string().contains("it was set back"), "{error}");
    // The attempt has claimed nothing: neither the image nor the replica knows of it.
    assert_eq!(std::fs::read(place.path("old")).unwrap(), before);
    let session = Session::open(place.opened("a"), &place.address(), &options()).unwrap();
    assert_eq!(session.status().claim, 2);
    let second = volume(session.device());
    assert_eq!(second.read("/b").unwrap(), b"b");
    second.close().unwrap();
    session.close().unwrap();
}

#[test]
fn damage_in_the_store_is_named() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    let first = volume(session.device());
    first.write("/a", vec![1; 100_000]).unwrap();
    first.close().unwrap();
    session.close().unwrap();
    let volumes = Client::new(&place.address()).unwrap().volumes().unwrap();
    let unit = format!("{}/u/00000001/0000000000", volumes[0]);
    let file = place.path("replica").join(&unit);
    let mut bytes = std::fs::read(&file).unwrap();
    let whole = bytes.clone();
    bytes[200] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let told = |place: &Place| place.restored(Target::Newest).map(drop).unwrap_err().to_string();
    assert_eq!(
        told(&place),
        format!("{unit} in the replica is damaged: a frame does not match its checksum")
    );
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    assert!(told(&place).starts_with(&format!("{unit} in the replica is damaged: ")), "{}", told(&place));
    std::fs::remove_file(&file).unwrap();
    assert!(told(&place).contains("replica"), "{}", told(&place));
    std::fs::write(&file, &whole).unwrap();
    place.restored(Target::Newest).unwrap();
}

#[test]
fn empty_places_and_devices_are_told_in_a_sentence() {
    let place = Place::new();
    let told = |error: Error| error.to_string();
    let nothing = place.restored(Target::Newest).map(drop).unwrap_err();
    assert!(told(nothing).ends_with("holds no replica"));
    let empty: Arc<dyn Device> = Arc::new(MemoryDevice::new(BYTES / BLOCK_BYTES as u64));
    let error = Session::open(empty, &place.address(), &options()).map(drop).unwrap_err();
    assert!(told(error).starts_with("the device holds no volume that can be replicated"));
}

/// Copies a folder of a replica as it is at about this moment: whatever was in it before is in the copy.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let mut entries: Vec<_> = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        let target = to.join(entry.file_name().unwrap());
        match entry.is_dir() {
            true => copy(&entry, &target),
            // What is being put has a name of its own until it is whole.
            false => drop(std::fs::copy(&entry, &target)),
        }
    }
}

const WRITERS: usize = 3;

/// Writers append numbers and sync each; the machine is "lost" now and then. Records that were acknowledged and are not
/// in what is restored.
fn lost_records(options: &Options) -> u64 {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), options).unwrap();
    let volume = volume(session.device());
    let acknowledged: [AtomicU64; WRITERS] = Default::default();
    let stop = AtomicBool::new(false);
    let mut lost = 0;
    std::thread::scope(|scope| {
        for (writer, count) in acknowledged.iter().enumerate() {
            let (volume, stop) = (&volume, &stop);
            scope.spawn(move || {
                let path = format!("/{writer}");
                let mut file = FileOptions::new().append(true).create(true).open(volume, path).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let next = count.load(Ordering::Relaxed);
                    file.write_all(&next.to_le_bytes()).unwrap();
                    file.sync_all().unwrap();
                    count.store(next + 1, Ordering::SeqCst);
                }
            });
        }
        while acknowledged.iter().any(|count| count.load(Ordering::SeqCst) < 5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for turn in 0..6 {
            std::thread::sleep(Duration::from_millis(25));
            let known: Vec<u64> = acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect();
            let folder = place.path(&format!("copy{turn}"));
            copy(&place.path("replica"), &folder);
            let address = Address::parse(folder.to_str().unwrap()).unwrap();
            match restored(&address, Target::Newest) {
                Ok(restored) => {
                    for (writer, known) in known.iter().enumerate() {
                        let content = restored.read(format!("/{writer}")).unwrap_or_default();
                        let records: Vec<u64> = content
                            .as_chunks::<8>()
                            .0
                            .iter()
                            .map(|record| u64::from_le_bytes(*record))
                            .collect();
                        assert_eq!(records, (0..records.len() as u64).collect::<Vec<_>>());
                        lost += known.saturating_sub(records.len() as u64);
                    }
                }
                Err(Error::Replica(ReplicaError::Empty | ReplicaError::NothingBefore)) => {
                    lost += known.iter().sum::<u64>();
                }
                Err(error) => panic!("{error}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    volume.close().unwrap();
    session.close().unwrap();
    lost
}

// Shows: C14.
#[test]
fn what_was_acknowledged_remotely_is_restored_whenever_the_machine_is_lost() {
    assert_eq!(lost_records(&Options { acknowledge: Acknowledge::Remote, ..options() }), 0);
    // The same, not asked for: the test sees what is lost.
    let late = Options { interval: Duration::from_secs(3600), ..options() };
    assert!(lost_records(&late) > 0);
}

// Shows: C15.
#[test]
fn whoever_restores_with_a_claim_continues_and_the_lost_machine_is_told_if_it_was_not_lost() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    let lost = volume(session.device());
    lost.write("/kept", "kept").unwrap();
    lost.sync_all().unwrap();
    settle(&session);

    let mut client = Client::new(&place.address()).unwrap();
    let uuid = image::volume(&client, None).unwrap();
    let owner = image::fence(&mut client, uuid, Duration::from_secs(10)).unwrap();
    assert_eq!(owner.claim, 2);
    let made = place.path("b");
    image::restore(&mut client, uuid, Target::Newest, |blocks| {
        let device = FileDevice::create(&made, blocks * BLOCK_BYTES as u64).expect("an image");
        mark::write(&device, &owner)?;
        Ok(Arc::new(device))
    })
    .unwrap();

    lost.write("/late", "not shipped").unwrap();
    let _ = lost.sync_all();
    until(&session, "being fenced", |session| matches!(session.status().phase, Phase::Failed(_)));
    lost.close().unwrap_err();
    drop(session);

    let session = Session::open(place.opened("b"), &place.address(), &options()).unwrap();
    assert_eq!(session.status().claim, 3);
    let next = volume(session.device());
    assert_eq!(next.read("/kept").unwrap(), b"kept");
    assert!(next.read("/late").is_err());
    next.write("/next", "next").unwrap();
    next.close().unwrap();
    session.close().unwrap();
    let restored = place.restored(Target::Newest).unwrap();
    assert_eq!(restored.read("/next").unwrap(), b"next");
    let verified = verify(&client, uuid, |_| {}).unwrap();
    assert!(verified.damage.is_empty() && verified.overview.owner.claim == 3, "{:?}", verified.damage);
    assert!(verified.overview.newest.is_some_and(|newest| newest.claim == 3));
}

#[test]
fn a_replica_is_begun_once_in_each_place() {
    let place = Place::new();
    let begin = Options { begin: true, ..options() };
    let session = Session::open(made(&place), &place.address(), &begin).unwrap();
    session.close().unwrap();
    let told = Session::open(place.opened("a"), &place.address(), &begin).map(drop).unwrap_err().to_string();
    assert!(told.contains("holds a replica of this volume already, written by process"), "{told}");
    // The attempt has taken nothing from the volume.
    let session = Session::open(place.opened("a"), &place.address(), &options()).unwrap();
    session.close().unwrap();
    // Elsewhere it begins anew, if that is asked for.
    let elsewhere = Address::make(place.path("elsewhere").to_str().unwrap()).unwrap();
    let told = Session::open(place.opened("a"), &elsewhere, &options()).map(drop).unwrap_err().to_string();
    assert!(told.contains("is it the right address?"), "{told}");
    let session = Session::open(place.opened("a"), &elsewhere, &begin).unwrap();
    assert_eq!(session.status().claim, 1);
    session.close().unwrap();
}

/// Objects below a folder of the replica.
fn objects(place: &Place, kind: &str) -> usize {
    let replica = place.path("replica");
    let volume = std::fs::read_dir(replica).unwrap().map(|entry| entry.unwrap().path());
    let count = |folder: PathBuf| -> usize {
        let mut folders = vec![folder];
        let mut found = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { found += 1 }
            }
        }
        found
    };
    volume.map(|volume| count(volume.join(kind))).sum()
}

// Shows: C13.
#[test]
fn a_replica_is_packed_and_pruned_beside_its_writer_and_comes_back_as_it_was() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    let volume = volume(session.device());
    let mut client = Client::new(&place.address()).unwrap();
    let uuid = image::volume(&client, None).unwrap();
    let keep = Some(vec![Keep { age: 1, step: 1 }, Keep { age: 3600, step: 2 }]);
    let how = Housekeeping { keep, grace: Some(0), ..Housekeeping::default() };
    let mut deleted = 0;
    let began = Instant::now();
    for number in 0_u64.. {
        volume.write(format!("/{}", number % 7), number.to_le_bytes().repeat(4000)).unwrap();
        volume.sync_all().unwrap();
        settle(&session);
        if number % 5 == 4 {
            let before = (objects(&place, "u"), objects(&place, "p"), objects(&place, "m"));
            let dry =
                keep_house(&mut client, uuid, &Housekeeping { dry: true, ..how.clone() }, &|| true).unwrap();
            assert_eq!(before, (objects(&place, "u"), objects(&place, "p"), objects(&place, "m")), "{dry:?}");
            let kept = keep_house(&mut client, uuid, &how, &|| true).unwrap();
            deleted += kept.deleted.units.len() + kept.deleted.packs.len();
            let restored = place.restored(Target::Newest).unwrap();
            let last = restored.read(format!("/{}", number % 7)).unwrap();
            assert_eq!(last, number.to_le_bytes().repeat(4000));
            assert_eq!(verify(&client, uuid, |_| {}).unwrap().damage, Vec::<String>::new());
        }
        if deleted > 20 && began.elapsed() > Duration::from_secs(5) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{deleted} objects were deleted");
    }
    volume.close().unwrap();
    session.close().unwrap();
    keep_house(&mut client, uuid, &how, &|| true).unwrap();
    // Whoever comes next goes on from what is packed.
    let session = Session::open(place.opened("a"), &place.address(), &options()).unwrap();
    assert_eq!(session.status().dirty, 0, "what was closed is not shipped again");
    let next = self::volume(session.device());
    next.write("/next", "next").unwrap();
    next.close().unwrap();
    session.close().unwrap();
    keep_house(&mut client, uuid, &how, &|| true).unwrap();
    assert_eq!(place.restored(Target::Newest).unwrap().read("/next").unwrap(), b"next");
}

#[test]
fn a_session_keeps_house_by_itself() {
    let place = Place::new();
    let often = Options { housekeeping: Some(Duration::from_millis(200)), ..options() };
    let session = Session::open(made(&place), &place.address(), &often).unwrap();
    let volume = volume(session.device());
    let mut client = Client::new(&place.address()).unwrap();
    let uuid = image::volume(&client, None).unwrap();
    let keep = Some(vec![Keep { age: 1, step: 1 }, Keep { age: 3600, step: 2 }]);
    let how = Housekeeping { keep, grace: Some(1), packs_only: true, ..Housekeeping::default() };
    keep_house(&mut client, uuid, &how, &|| true).unwrap();
    let mut number = 0_u64;
    let mut most = 0;
    until(&session, "units are packed and deleted", |session| {
        number += 1;
        volume.write("/file", number.to_le_bytes()).unwrap();
        volume.sync_all().unwrap();
        settle(session);
        let units = objects(&place, "u");
        most = most.max(units);
        units < most && objects(&place, "p") > 0
    });
    volume.close().unwrap();
    session.close().unwrap();
    assert_eq!(place.restored(Target::Newest).unwrap().read("/file").unwrap(), number.to_le_bytes());
}
