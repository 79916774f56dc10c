//! Stores that are full, unwell, or think it is another time; and objects of other versions.

use crate::common::{formatted, options, restored, settle, until, volume};
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use syncline::MkfsOptions;
use syncline_device::{Device, MemoryDevice};
use syncline_replica::{Acknowledge, Target};
use syncline_replica_store::{Address, Client, Error, OnLag, Options, Session, image, verify};

/// What a store answers to puts, or to everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Well,
    /// The disk under a folder is full.
    NoSpace,
    /// S3's way to say that a quota is used up.
    Quota,
    /// A server's way to say that its disk is full.
    Insufficient,
    /// A folder that is not ours.
    Forbidden,
    /// A server that says no more than its status.
    Status,
    /// Its clock differs from ours, whatever is asked.
    Skewed,
    /// The same, by a server that gives codes without messages, as radosgw does.
    SkewedShortly,
    /// Half of all requests, of any kind.
    Storm,
}

#[derive(Debug)]
struct Store {
    inner: InMemory,
    mood: Mutex<Mood>,
    asked: AtomicU64,
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.mood.lock())
    }
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Result<()> {
    Err(object_store::Error::Generic { store: "Store", source: source.into() })
}

fn coded(code: &str, message: &str) -> Result<()> {
    failed(format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"))
}

fn mixed(number: u64) -> u64 {
    let once = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let twice = (once ^ once >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (twice ^ twice >> 32).wrapping_mul(0x94D0_49BB_1331_11EB)
}

impl Store {
    fn new() -> Arc<Store> {
        Arc::new(Store { inner: InMemory::new(), mood: Mutex::new(Mood::Well), asked: AtomicU64::new(0) })
    }

    fn address(self: &Arc<Store>) -> Address {
        Address::over("s3://bucket", Arc::clone(self) as Arc<dyn ObjectStore>)
    }

    fn is(&self, mood: Mood) {
        *self.mood.lock() = mood;
    }

    fn answers(&self, puts: bool) -> Result<()> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        match *self.mood.lock() {
            Mood::NoSpace if puts => failed(std::io::Error::from_raw_os_error(28)),
            Mood::Quota if puts => coded("QuotaExceeded", "The bucket is full."),
            Mood::Insufficient if puts => coded("InsufficientStorage", "No space left on device"),
            Mood::Forbidden if puts => failed(std::io::Error::from_raw_os_error(13)),
            Mood::Status if puts => failed("Server returned non-2xx status code: 403 Forbidden: "),
            Mood::Skewed => coded("RequestTimeTooSkewed", "The difference between the times is too large."),
            Mood::SkewedShortly => {
                failed("<Error><Code>RequestTimeTooSkewed</Code><RequestId>tx1</RequestId></Error>")
            }
            Mood::Storm if mixed(number) >> 63 == 0 => coded("SlowDown", "Please reduce your request rate."),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl ObjectStore for Store {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.answers(true)?;
        self.inner.put_opts(at, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.answers(false)?;
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.answers(false) {
            Ok(()) => self.inner.list(prefix),
            Err(error) => Box::pin(futures_util::stream::iter([Err(error)])),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn made() -> Arc<dyn Device> {
    formatted(MemoryDevice::new(4096), &MkfsOptions::default())
}

const TROUBLES: [(Mood, &str); 7] = [
    (Mood::NoSpace, "the object store refuses: No space left on device (os error 28)"),
    (Mood::Quota, "the object store refuses: The bucket is full (QuotaExceeded)"),
    (Mood::Forbidden, "the object store refuses: Permission denied (os error 13)"),
    (Mood::Status, "the object store refuses: Server returned non-2xx status code: 403 Forbidden"),
    (Mood::SkewedShortly, "the object store refuses: RequestTimeTooSkewed"),
    (Mood::Insufficient, "the object store refuses: No space left on device (InsufficientStorage)"),
    (
        Mood::Skewed,
        "the object store refuses: The difference between the times is too large (RequestTimeTooSkewed)",
    ),
];

// Shows: C13.
#[test]
fn a_store_that_takes_nothing_holds_no_sync_up_says_why_and_gets_everything_later() {
    for (mood, sentence) in TROUBLES {
        let store = Store::new();
        let session = Session::open(made(), &store.address(), &options()).unwrap();
        let volume = volume(session.device());
        volume.write("/before", "before").unwrap();
        volume.sync_all().unwrap();
        settle(&session);
        store.is(mood);
        for number in 0..20 {
            volume.write(format!("/{number}"), vec![number; 10_000]).unwrap();
            volume.sync_all().unwrap();
        }
        until(&session, "the trouble is told", |session| {
            session.status().trouble.is_some_and(|trouble| trouble.to_string() == sentence)
        });
        store.is(Mood::Well);
        settle(&session);
        assert_eq!(session.status().trouble, None);
        let restored = restored(&store.address(), Target::Newest).unwrap();
        (0..20).for_each(|number| assert!(restored.read(format!("/{number}")).unwrap() == [number; 10_000]));
        volume.close().unwrap();
        session.close().unwrap();
    }
}

#[test]
fn a_store_that_takes_nothing_is_told_when_a_volume_is_opened_with_it() {
    for (mood, sentence) in TROUBLES {
        let store = Store::new();
        let device = made();
        let session = Session::open(Arc::clone(&device), &store.address(), &options()).unwrap();
        volume(session.device()).close().unwrap();
        session.close().unwrap();
        store.is(mood);
        let began = Instant::now();
        let Err(error) = Session::open(device, &store.address(), &options()) else {
            panic!("{mood:?}: it opens")
        };
        assert_eq!(error.to_string(), sentence);
        assert!(began.elapsed() < Duration::from_secs(8), "it is told at once");
    }
}

// Shows: C14.
#[test]
fn a_sync_that_waits_for_a_full_store_returns_when_there_is_room_and_finds_itself_in_the_figures() {
    let store = Store::new();
    let remote = Options { acknowledge: Acknowledge::Remote, ..options() };
    let session = Session::open(made(), &store.address(), &remote).unwrap();
    let volume = volume(session.device());
    volume.write("/first", "first").unwrap();
    volume.sync_all().unwrap();
    store.is(Mood::NoSpace);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            volume.write("/second", "second").unwrap();
            volume.sync_all().unwrap();
            (session.status().flush, session.flushes())
        });
        std::thread::sleep(Duration::from_millis(400));
        assert!(!waiting.is_finished(), "nothing was acknowledged that the store does not hold");
        store.is(Mood::Well);
        let (counted, issued) = waiting.join().unwrap();
        assert_eq!(counted, issued, "the flush of a sync that has returned counts in the figures");
    });
    for number in 0..200 {
        volume.write("/third", [number; 10]).unwrap();
        volume.sync_all().unwrap();
        let (counted, issued) = (session.status().flush, session.flushes());
        assert_eq!(counted, issued, "sync {number}");
    }
    assert!(restored(&store.address(), Target::Newest).unwrap().read("/third").unwrap() == [199; 10]);
}

// Shows: C13.
#[test]
fn in_a_storm_of_errors_everything_gets_there_in_the_end() {
    let store = Store::new();
    let session = Session::open(made(), &store.address(), &options()).unwrap();
    let volume = volume(session.device());
    store.is(Mood::Storm);
    for number in 0..10 {
        volume.write(format!("/{number}"), vec![number; 10_000]).unwrap();
        volume.sync_all().unwrap();
        std::thread::sleep(Duration::from_millis(30));
    }
    settle(&session);
    store.is(Mood::Well);
    let restored = restored(&store.address(), Target::Newest).unwrap();
    (0..10).for_each(|number| assert!(restored.read(format!("/{number}")).unwrap() == [number; 10_000]));
}

#[test]
fn syncs_are_slowed_down_while_the_replica_is_late_and_no_longer() {
    let store = Store::new();
    let late = Some(Duration::from_millis(200));
    let slow = Options { on_lag: OnLag::Slow, max_lag: late, ..options() };
    let session = Session::open(made(), &store.address(), &slow).unwrap();
    let volume = volume(session.device());
    let syncs = |count: u8| {
        let began = Instant::now();
        for number in 0..count {
            volume.write("/file", [number; 100]).unwrap();
            volume.sync_all().unwrap();
        }
        began.elapsed()
    };
    syncs(1);
    settle(&session);
    store.is(Mood::Quota);
    syncs(1);
    until(&session, "it is late", |session| session.status().lag > 400_000_000);
    let held_up = syncs(20);
    assert!(held_up >= Duration::from_millis(380), "20 syncs took {held_up:?} while the replica was late");
    store.is(Mood::Well);
    settle(&session);
    until(&session, "syncs are as fast as before", |_| syncs(20) < Duration::from_millis(200));
}

/// Every object, changed as if a newer version had written it.
fn newer(store: &Store, folder: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut listed = store.inner.list(None);
        let mut last = None;
        while let Some(object) = futures_util::StreamExt::next(&mut listed).await {
            let at = object.unwrap().location;
            last = last.max(at.as_ref().contains(folder).then_some(at));
        }
        let at = last.expect("there is one");
        let mut bytes = store.inner.get(&at).await.unwrap().bytes().await.unwrap().to_vec();
        bytes[4..6].copy_from_slice(&9_u16.to_le_bytes());
        store.inner.put(&at, bytes.into()).await.unwrap();
        at.as_ref().to_owned()
    })
}

#[test]
fn objects_of_a_newer_version_are_told_by_name_and_nothing_is_written_over_them() {
    for folder in ["/m/", "/u/"] {
        let store = Store::new();
        let device = made();
        let session = Session::open(Arc::clone(&device), &store.address(), &options()).unwrap();
        let volume = volume(session.device());
        volume.write("/file", "content").unwrap();
        volume.close().unwrap();
        session.close().unwrap();
        let name = newer(&store, folder);
        let wanted = format!(
            "{name} in the replica was written by a newer version of syncline (its format is 9); use that one"
        );
        let objects = |store: &Store| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(futures_util::StreamExt::count(store.inner.list(None)))
        };
        let before = objects(&store);
        let told = |result: std::result::Result<(), Error>| {
            assert_eq!(result.expect_err("it is refused").to_string(), wanted);
        };
        told(Session::open(device, &store.address(), &options()).map(drop));
        let mut client = Client::new(&store.address()).unwrap();
        let uuid = image::volume(&client, None).unwrap();
        told(image::plan(&mut client, uuid, Target::Newest).map(drop));
        if folder == "/u/" {
            told(verify(&client, uuid, |_| {}).map(drop));
        }
        assert_eq!(objects(&store), before);
    }
}
