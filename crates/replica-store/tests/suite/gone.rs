//! Folders that go away, units that are missing, and claims that are damaged.

use crate::common::{Place, options, settle, volume};
use std::sync::Arc;
use std::time::Duration;
use syncline::MkfsOptions;
use syncline_device::Device;
use syncline_replica::{Names, Operation, Part, StoreError, Target};
use syncline_replica_store::{Client, Gap, Overview, Session, image, verify};

const BYTES: u64 = 16 << 20;

fn made(place: &Place) -> Arc<dyn Device> {
    place.made("a", BYTES, &MkfsOptions::default())
}

fn create(name: String) -> Operation {
    Operation::Create { name, bytes: Arc::new(vec![1; 192]) }
}

// Shows: C13, C15.
#[test]
fn nothing_is_made_below_a_folder_that_went_away_and_what_is_missing_there_says_nothing() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    volume(session.device()).close().unwrap();
    session.close().unwrap();
    let client = Client::new(&place.address()).unwrap();
    let names = Names::new(image::volume(&client, None).unwrap());
    let is_refused = |operation: Operation| {
        let told = client.one(&operation);
        assert!(
            matches!(&told, Err(StoreError::Unavailable(why)) if why.contains("mount its disk")),
            "{told:?}"
        );
    };
    let put = Operation::Put { name: names.unit(1, 9), bytes: Arc::new(vec![1; 64]) };
    let look = Operation::Get { name: names.claim(2), part: Part::All };
    assert_eq!(client.one(&look), Err(StoreError::Missing));
    std::fs::rename(place.path("replica"), place.path("away")).unwrap();
    let all =
        || [names.claim(1), names.claim(2), names.manifest(2), names.pack(2, 7)].into_iter().map(create);
    all().chain([put.clone(), look.clone()]).for_each(is_refused);
    is_refused(Operation::List { prefix: names.claims() });
    assert!(!place.path("replica").exists());
    // What a disk was mounted on is an empty folder.
    std::fs::create_dir(place.path("replica")).unwrap();
    all().chain([put, look.clone()]).for_each(is_refused);
    assert_eq!(std::fs::read_dir(place.path("replica")).unwrap().count(), 0);
    std::fs::remove_dir(place.path("replica")).unwrap();
    std::fs::rename(place.path("away"), place.path("replica")).unwrap();
    assert_eq!(client.one(&look), Err(StoreError::Missing));
}

// Shows: C13.
#[test]
fn units_that_are_missing_are_told_with_what_they_take_with_them() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    let owner = volume(session.device());
    for number in 0..8u8 {
        owner.write("/one", [number]).unwrap();
        owner.sync_all().unwrap();
        settle(&session);
    }
    let client = Client::new(&place.address()).unwrap();
    let uuid = image::volume(&client, None).unwrap();
    let names = Names::new(uuid);
    let count = Overview::of(&client, uuid).unwrap().units.len() as u64;
    let file = |number: u64| place.path("replica").join(names.unit(1, number));
    let time = |number: u64| {
        let bytes = std::fs::read(file(number)).unwrap();
        Some(syncline_replica::unit::Outline::of(&bytes).unwrap().header.time)
    };
    let (missing, from, to) = (count - 5, time(count - 6), time(count - 1));
    let aside = place.path("aside");
    std::fs::rename(file(missing), &aside).unwrap();
    let verified = verify(&client, uuid, |_| {}).unwrap();
    assert_eq!(verified.damage, Vec::<String>::new());
    let [lost] = &verified.lost[..] else { panic!("{:?}", verified.lost) };
    assert_eq!(lost.gap, Gap { claim: 1, first: missing, end: missing + 1 });
    assert_eq!((lost.from, lost.to, lost.cut_off), (from, to, 4));
    // Units behind it are read as well.
    let whole = std::fs::read(file(count - 2)).unwrap();
    let mut damaged = whole.clone();
    damaged[200] ^= 1;
    std::fs::write(file(count - 2), damaged).unwrap();
    assert_eq!(verify(&client, uuid, |_| {}).unwrap().damage.len(), 1);
    std::fs::write(file(count - 2), whole).unwrap();

    // Of an earlier claim they are told as well, with what a later one has put over them.
    owner.close().unwrap();
    session.close().unwrap();
    let again = Session::open(place.opened("a"), &place.address(), &options()).unwrap();
    volume(again.device()).close().unwrap();
    let more = again.close().unwrap().units;
    assert!(place.restored(Target::Newest).is_err());
    let closed = 1 + std::fs::read_dir(file(0).parent().unwrap()).unwrap().count() as u64 - count;
    let lost = verify(&client, uuid, |_| {}).unwrap().lost;
    let [lost] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!((lost.gap.first, lost.from), (missing, from));
    assert_eq!(lost.cut_off as u64, 4 + closed + more);
    std::fs::rename(&aside, file(missing)).unwrap();
    assert_eq!(verify(&client, uuid, |_| {}).unwrap().lost, []);
}

// Shows: C13.
#[test]
fn a_unit_that_overtakes_the_one_in_front_of_it_is_no_gap() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    volume(session.device()).close().unwrap();
    session.close().unwrap();
    let client = Client::new(&place.address()).unwrap();
    let uuid = image::volume(&client, None).unwrap();
    let count = Overview::of(&client, uuid).unwrap().units.len() as u64;
    let file = |number: u64| place.path("replica").join(Names::new(uuid).unit(1, number));
    std::fs::copy(file(count - 1), file(count + 1)).unwrap();
    let verified = verify(&client, uuid, |_| {}).unwrap();
    assert_eq!((verified.damage.len(), verified.lost.len()), (0, 0));
}

// Shows: C15.
#[test]
fn whoever_takes_over_from_a_claim_that_is_damaged_is_told() {
    let place = Place::new();
    let session = Session::open(made(&place), &place.address(), &options()).unwrap();
    volume(session.device()).close().unwrap();
    session.close().unwrap();
    let mut client = Client::new(&place.address()).unwrap();
    let uuid = image::volume(&client, None).unwrap();
    let sound = image::take_over(&mut client, uuid, Duration::from_secs(10)).unwrap();
    assert_eq!((sound.opened.claim, &sound.opened.doubt), (2, &None));
    let file = place.path("replica").join(Names::new(uuid).claim(2));
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let doubtful = image::take_over(&mut client, uuid, Duration::from_secs(10)).unwrap();
    let doubt = doubtful.opened.doubt.expect("it is told").to_string();
    assert!(doubt.contains(&Names::new(uuid).claim(2)), "{doubt}");
    // One of newer software is not damaged: whoever knows it may not be shut out by who does not.
    let file = place.path("replica").join(Names::new(uuid).claim(3));
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[4] = 9;
    std::fs::write(&file, &bytes).unwrap();
    let refused = image::take_over(&mut client, uuid, Duration::from_secs(10)).unwrap_err().to_string();
    assert!(refused.contains(&Names::new(uuid).claim(3)), "{refused}");
    assert!(!place.path("replica").join(Names::new(uuid).claim(4)).exists());
}
