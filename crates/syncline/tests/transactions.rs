//! Transactions over paths and files: `Volume::transaction` and its tickets.

#[path = "../../fs/tests/gate/mod.rs"]
mod gate;

use gate::Gate;
use std::io::ErrorKind;
use std::time::Duration;
use syncline::{OpenOptions, Volume, VolumeOptions};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_ticket_completes_with_the_flush_and_others_see_the_changes_before() {
    let gate = Gate::new(32 << 20);
    let volume = VolumeOptions::new().open_device(gate.clone()).expect("open");
    volume.write("a", "old").expect("write");
    volume.sync_all().expect("sync");
    let closed = gate.close();
    let mut transaction = volume.transaction().expect("begin");
    transaction.write("a", "new").expect("write");
    transaction.write("b", "too").expect("write");
    let ticket = transaction.commit_async();
    assert_eq!(volume.read("a").expect("read"), b"new");
    assert!(ticket.wait_timeout(Duration::from_millis(20)).is_none(), "the flush has not ended");
    drop(closed);
    ticket.wait_timeout(LONG).expect("it ends").expect("commit");
    assert_eq!(volume.read("b").expect("read"), b"too");
}

#[test]
fn a_conflict_is_told_by_the_ticket() {
    let volume = Volume::create_in_memory(32 << 20).expect("volume");
    volume.write("a", "old").expect("write");
    let mut transaction = volume.transaction().expect("begin");
    transaction.write("a", "mine").expect("write");
    volume.write("a", "theirs").expect("write");
    let error = transaction.commit_async().wait().expect_err("a conflict");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(error.to_string().contains("begin it again"), "{error}");
    assert_eq!(volume.read("a").expect("read"), b"theirs");
}

#[test]
fn paths_lead_where_they_do_outside_of_a_transaction() {
    let volume = Volume::create_in_memory(32 << 20).expect("volume");
    volume.create_dir_all("dir/inner").expect("mkdir");
    volume.symlink("dir", "link").expect("symlink");
    let mut transaction = volume.transaction().expect("begin");
    let file = transaction.create("link/inner/../file").expect("create");
    transaction.write_at(file, b"content", 0).expect("write");
    assert_eq!(transaction.read("/dir/file").expect("read"), b"content");
    transaction.hard_link("dir/file", "dir/inner/other").expect("link");
    transaction.set_xattr("dir/file", "user.a", b"1").expect("setxattr");
    transaction.set_len(file, 4).expect("truncate");
    assert_eq!(transaction.len(file).expect("size"), 4);
    let kind = |result: std::io::Result<syncline::TransactionFile>| result.expect_err("an error").kind();
    assert_eq!(kind(transaction.create("dir/file")), ErrorKind::AlreadyExists);
    assert_eq!(kind(transaction.create("missing/file")), ErrorKind::NotFound);
    assert_eq!(kind(transaction.create("dir/new/")), ErrorKind::NotADirectory);
    assert_eq!(kind(transaction.create("dir/file/below")), ErrorKind::NotFound);
    assert_eq!(kind(transaction.open("dir")), ErrorKind::IsADirectory);
    assert_eq!(kind(transaction.open("nothing")), ErrorKind::NotFound);
    assert_eq!(kind(transaction.create("/")), ErrorKind::InvalidInput);
    assert!(!volume.try_exists("dir/file").expect("lookup"));
    transaction.commit().expect("commit");
    assert_eq!(volume.read("dir/inner/other").expect("read"), b"cont");
    assert_eq!(volume.xattr("dir/file", "user.a").expect("getxattr").as_deref(), Some(&b"1"[..]));

    let mut transaction = volume.transaction().expect("begin");
    transaction.rename("dir/file", "moved").expect("rename");
    transaction.remove_file("dir/inner/other").expect("unlink");
    transaction.remove_xattr("moved", "user.a").expect("removexattr");
    assert!(!transaction.try_exists("dir/file").expect("lookup") && !transaction.is_empty());
    transaction.commit().expect("commit");
    assert_eq!(volume.read("moved").expect("read"), b"cont");
    assert_eq!(volume.metadata("moved").expect("metadata").attr().nlink, 1);
}

#[test]
fn an_open_file_joins_if_it_is_of_this_volume_and_open_for_writing() {
    let volume = Volume::create_in_memory(32 << 20).expect("volume");
    let other = Volume::create_in_memory(32 << 20).expect("volume");
    volume.write("a", "1234").expect("write");
    other.write("a", "1234").expect("write");
    let open = |volume: &Volume, write| OpenOptions::new().read(true).write(write).open(volume, "a");
    let mut transaction = volume.transaction().expect("begin");
    let foreign = open(&other, true).expect("open");
    assert_eq!(transaction.join(&foreign).expect_err("foreign").kind(), ErrorKind::InvalidInput);
    let reader = open(&volume, false).expect("open");
    assert_eq!(transaction.join(&reader).expect_err("read-only").raw_os_error(), Some(9));
    let file = open(&volume, true).expect("open");
    let joined = transaction.join(&file).expect("join");
    transaction.write_at(joined, b"xy", 1).expect("write");
    let mut bytes = [0; 8];
    assert_eq!(transaction.read_at(joined, &mut bytes, 0).expect("read"), 4);
    assert_eq!(&bytes[..4], b"1xy4");
    volume.remove_file("a").expect("unlink");
    transaction.commit().expect("commit");
    assert_eq!(reader.read_at(&mut bytes, 0).expect("read"), 4);
    assert_eq!(&bytes[..4], b"1xy4");
}

#[test]
fn a_name_that_somebody_has_taken_since_it_was_looked_up_is_a_conflict_and_nothing_else() {
    type Act = fn(&mut syncline::VolumeTransaction) -> std::io::Result<()>;
    let acts: [(&str, Act); 6] = [
        ("rename over it", |transaction| transaction.rename("new", "name")),
        ("rename it", |transaction| transaction.rename("name", "other")),
        ("remove it", |transaction| transaction.remove_file("name")),
        ("link it", |transaction| transaction.hard_link("name", "other")),
        ("write it", |transaction| transaction.write("name", "mine")),
        ("mark it", |transaction| transaction.set_xattr("name", "user.a", b"mine")),
    ];
    for (what, act) in acts {
        for replaced in [true, false] {
            for is_open in [false, true] {
                let volume = Volume::create_in_memory(32 << 20).expect("volume");
                for name in ["name", "new", "theirs"] {
                    volume.write(name, name).expect("write");
                }
                let mut transaction = volume.transaction().expect("begin");
                assert!(transaction.try_exists("name").expect("look up"));
                let open = is_open.then(|| volume.open_file("name").expect("open"));
                match replaced {
                    true => volume.rename("theirs", "name").expect("replaced by others"),
                    false => volume.remove_file("name").expect("removed by others"),
                }
                let result = act(&mut transaction).and_then(|()| transaction.commit());
                let error = result.expect_err("both cannot be");
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{what}, replaced {replaced}: {error}");
                drop(open);
                assert_eq!(volume.try_exists("name").expect("look up"), replaced);
            }
        }
    }
}
