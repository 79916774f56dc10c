//! Volumes that are begun from their replica, and shipped there.

use crate::common::{Place, options, settle, volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use syncline::{MkfsOptions, Volume};
use syncline_device::Device;
use syncline_replica::{Acknowledge, Names, Target};
use syncline_replica_store::{Client, Lazy, Options, Overview, Session, image, remote};

const BYTES: u64 = 8 << 20;
/// Take-overs, each from the one before, which writes meanwhile.
const ROUNDS: u64 = 12;

/// Ships the volume by the claim that it was begun with.
fn shipped(place: &Place, lazy: &Lazy, options: &Options) -> Session {
    let claimed = lazy.claimed.lock().take().map(|claimed| *claimed);
    let options = Options { exact: lazy.exact, ..options.clone() };
    Session::open_by(Arc::clone(&lazy.device) as Arc<dyn Device>, &place.address(), &options, claimed)
        .unwrap()
}

/// Raises the number in a file for as long as a sync succeeds; the last one whose sync did.
fn count(volume: &Volume, synced: &AtomicU64, from: u64) {
    for number in from.. {
        let written = volume.write("/count", number.to_le_bytes()).and_then(|()| volume.sync_all());
        if written.is_err() {
            break;
        }
        synced.store(number, Ordering::SeqCst);
    }
}

fn counted(volume: &Volume) -> u64 {
    let bytes = volume.read("/count").unwrap();
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

// Shows: C14, C15.
#[test]
fn what_is_acknowledged_while_another_one_takes_over_is_in_the_volume_that_it_begins() {
    let place = Place::new();
    let remotely = Options { acknowledge: Acknowledge::Remote, ..options() };
    let device = place.made("a", BYTES, &MkfsOptions::default());
    let mut session = Session::open(device, &place.address(), &remotely).unwrap();
    let mut owner = volume(session.device());
    let mut number = 0;
    for round in 0..ROUNDS {
        let (synced, is_over) = (AtomicU64::new(number), AtomicBool::new(false));
        let path = place.path(&format!("local {round}"));
        let lazy = std::thread::scope(|scope| {
            scope.spawn(|| {
                count(&owner, &synced, number + 1);
                is_over.store(true, Ordering::SeqCst);
            });
            while synced.load(Ordering::SeqCst) < number + 3 + round % 4 {
                std::thread::sleep(Duration::from_micros(300));
            }
            remote::begin(&place.address(), None, &path).unwrap()
        });
        assert!(is_over.load(Ordering::SeqCst), "who was fenced has stopped");
        drop(session);
        let _ = owner.close();
        session = shipped(&place, &lazy, &remotely);
        assert_eq!(session.status().claim, round + 2, "one claim for each that takes over");
        owner = volume(session.device());
        let found = counted(&owner);
        let last = synced.load(Ordering::SeqCst);
        assert!(found == last || found == last + 1, "{found} in round {round}, and {last} was acknowledged");
        number = found;
    }
    owner.close().unwrap();
    session.close().unwrap();
    let restored = place.restored(Target::Newest).unwrap();
    assert_eq!(counted(&restored), number);
}

// Shows: C14, C15.
#[test]
fn what_is_shipped_between_plan_and_claim_is_planned_anew() {
    let place = Place::new();
    let device = place.made("a", BYTES, &MkfsOptions::default());
    let remotely = Options { acknowledge: Acknowledge::Remote, ..options() };
    let session = Session::open(device, &place.address(), &remotely).unwrap();
    let owner = volume(session.device());
    owner.write("/one", "first").unwrap();
    owner.sync_all().unwrap();

    let mut client = Client::new(&place.address()).unwrap();
    let uuid = image::volume(&client, None).unwrap();
    let planned = image::plan(&mut client, uuid, Target::Newest).unwrap();
    let end = planned.0.end;
    owner.write("/two", "second").unwrap();
    owner.sync_all().unwrap();
    let claimed = image::take_over(&mut client, uuid, Duration::from_secs(10)).unwrap();
    let (plan, _, _) = image::confirmed(Some(planned), &mut client, &claimed).unwrap();
    assert!(plan.end.number > end.number, "{plan:?} behind {end:?}");
    assert_eq!(Some(plan.end), claimed.opened.last);

    // Nothing was shipped in between: nothing is read again.
    let client = &mut Client::new(&place.address()).unwrap();
    let planned = image::plan(client, uuid, Target::Newest).unwrap();
    std::fs::rename(place.path("replica"), place.path("away")).unwrap();
    let (again, _, _) = image::confirmed(Some(planned), client, &claimed).unwrap();
    std::fs::rename(place.path("away"), place.path("replica")).unwrap();
    assert_eq!(again, plan);
    let _ = owner.close();
}

#[test]
fn a_volume_that_is_begun_is_claimed_once_and_nothing_of_it_is_shipped_twice() {
    let place = Place::new();
    let device = place.made("a", BYTES, &MkfsOptions::default());
    let session = Session::open(device, &place.address(), &options()).unwrap();
    let first = volume(session.device());
    first.write("/large", vec![3; 2 << 20]).unwrap();
    first.close().unwrap();
    session.close().unwrap();

    let path = place.path("local");
    let lazy = remote::begin(&place.address(), None, &path).unwrap();
    let session = shipped(&place, &lazy, &options());
    assert!(lazy.claimed.lock().is_none(), "a claim ships once");
    assert_eq!((session.status().claim, session.status().dirty), (2, 0));
    let second = volume(session.device());
    second.write("/small", "more").unwrap();
    second.sync_all().unwrap();
    settle(&session);
    assert_eq!(second.read("/large").unwrap(), vec![3; 2 << 20]);
    second.close().unwrap();
    assert!(session.close().unwrap().bytes < 1 << 20);

    let client = Client::new(&place.address()).unwrap();
    let uuid = image::volume(&client, None).unwrap();
    assert_eq!(Overview::of(&client, uuid).unwrap().owner.claim, 2);
    assert!(!place.path("replica").join(Names::new(uuid).claim(3)).exists());
}
