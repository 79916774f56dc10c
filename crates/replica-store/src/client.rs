//! [`Client`]: carries out what the state machines ask for.

use crate::address::Address;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, Either, FutureExt, select};
use futures_util::stream::FuturesUnordered;
use object_store::{GetOptions, GetRange, ObjectStore, PutMode, PutOptions, PutPayload};
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_replica::{Answer, Operation, Part, Request, RequestId, StoreError};
use tokio::sync::Notify;

/// Longest time that an answer is waited for. The request is repeated then, whatever became of it.
const ANSWER_MAX: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, StoreError>;

/// Requests under way at one store, on one thread.
pub struct Client {
    address: Address,
    runtime: tokio::runtime::Runtime,
    under_way: FuturesUnordered<BoxFuture<'static, (RequestId, Result<Answer>)>>,
    start: Instant,
    wake: Arc<Notify>,
}

/// A state machine as its driver sees it.
pub trait Machine {
    fn poll(&mut self, now: u64) -> Vec<Request>;
    fn next_due(&self) -> Option<u64>;
    fn answer(&mut self, id: RequestId, now: u64, result: Result<Answer>);
}

macro_rules! machine {
    ($name:ty) => {
        impl Machine for $name {
            fn poll(&mut self, now: u64) -> Vec<Request> {
                <$name>::poll(self, now)
            }

            fn next_due(&self) -> Option<u64> {
                <$name>::next_due(self)
            }

            fn answer(&mut self, id: RequestId, now: u64, result: Result<Answer>) {
                <$name>::answer(self, id, now, result);
            }
        }
    };
}

machine!(syncline_replica::Compaction);
machine!(syncline_replica::Opening);
machine!(syncline_replica::Pruning);
machine!(syncline_replica::Replicator);
machine!(syncline_replica::Restore);

impl Client {
    pub fn new(address: &Address) -> std::io::Result<Client> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let address = address.apart()?;
        let (start, wake) = (Instant::now(), Arc::default());
        Ok(Client { address, runtime, under_way: FuturesUnordered::new(), start, wake })
    }

    /// What ends the waiting of [`Client::step`], from any thread.
    pub fn waker(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Nanoseconds since it was made.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Sends what a machine asks for, and waits at most so long for one answer, or for being woken.
    /// Whether there was an answer.
    pub fn step(&mut self, machine: &mut dyn Machine, patience: Duration) -> bool {
        for Request { id, operation } in machine.poll(self.now()) {
            let address = self.address.clone();
            let answer = async move { (id, carry_out_in_time(&address, &operation).await) };
            self.under_way.push(answer.boxed());
        }
        let due = machine.next_due().map(|due| Duration::from_nanos(due.saturating_sub(self.now())));
        let patience = due.map_or(patience, |due| due.min(patience));
        let Client { runtime, under_way, wake, .. } = self;
        let answer = runtime.block_on(async {
            let answered = pin!(async {
                match under_way.is_empty() {
                    true => std::future::pending().await,
                    false => under_way.next().await,
                }
            });
            let woken = pin!(wake.notified());
            match tokio::time::timeout(patience, select(answered, woken)).await {
                Ok(Either::Left((answer, _))) => answer,
                Ok(Either::Right(_)) | Err(_) => None,
            }
        });
        let Some((id, result)) = answer else { return false };
        machine.answer(id, self.now(), result);
        true
    }

    /// Forgets what is under way: the next machine numbers its requests anew.
    pub fn forget(&mut self) {
        self.under_way.clear();
    }

    /// Carries out several operations at the same time.
    pub fn together(&self, operations: &[Operation]) -> Vec<Result<Answer>> {
        let all = operations.iter().map(|operation| carry_out_in_time(&self.address, operation));
        self.runtime.block_on(futures_util::future::join_all(all))
    }

    pub fn one(&self, operation: &Operation) -> Result<Answer> {
        self.runtime.block_on(carry_out_in_time(&self.address, operation))
    }

    /// Asks until the store answers, a few times: for what changes nothing.
    pub fn ask(&self, operation: &Operation) -> Result<Answer> {
        patiently(|| self.one(operation))
    }

    /// The uuids of the volumes that have a replica there, as in names.
    pub fn volumes(&self) -> Result<Vec<String>> {
        let prefix = self.address.prefix.clone();
        let list = || self.runtime.block_on(self.address.store.list_with_delimiter(Some(&prefix)));
        let folders = patiently(|| list().map_err(told_of_place))?.common_prefixes;
        let names = folders.iter().filter_map(|path| self.address.name(path));
        Ok(names.filter(|name| name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit())).collect())
    }

    /// Names that begin so, in a folder of their own, each with its bytes.
    pub fn sizes(&self, folder: &str) -> Result<Vec<(String, u64)>> {
        let path = self.address.path(folder);
        let list = || {
            self.runtime.block_on(async {
                let mut sizes = Vec::new();
                let mut listed = self.address.store.list(Some(&path));
                while let Some(object) = listed.next().await {
                    let object = object.map_err(told_of_place)?;
                    sizes.extend(self.address.name(&object.location).map(|name| (name, object.size)));
                }
                Ok(sizes)
            })
        };
        patiently(list)
    }
}

/// Times that something is asked before its trouble is told, and the first pause between two of them, which doubles.
const TRIES_MAX: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);

fn patiently<T>(ask: impl Fn() -> Result<T>) -> Result<T> {
    let mut pause = PAUSE;
    for _ in 1..TRIES_MAX {
        match ask() {
            Err(StoreError::Unavailable(_)) => std::thread::sleep(pause),
            answer => return answer,
        }
        pause *= 2;
    }
    ask()
}

pub(crate) async fn carry_out_in_time(address: &Address, operation: &Operation) -> Result<Answer> {
    match tokio::time::timeout(ANSWER_MAX, carry_out(address, operation)).await {
        Ok(result) => result,
        Err(_) => Err(StoreError::Unavailable(format!("no answer within {} s", ANSWER_MAX.as_secs()))),
    }
}

/// An answer of a folder says something only if the folder is there, before and behind it.
async fn carry_out(address: &Address, operation: &Operation) -> Result<Answer> {
    let gone = || StoreError::Unavailable("the replica's folder is not there: mount its disk".to_owned());
    let changes = matches!(operation, Operation::Put { .. } | Operation::Create { .. });
    if changes && address.is_gone(operation) {
        return Err(gone());
    }
    match carry_out_somewhere(address, operation).await {
        Ok(answer @ Answer::Bytes { .. }) => Ok(answer),
        _ if address.is_gone(operation) => Err(gone()),
        answer => answer,
    }
}

async fn carry_out_somewhere(address: &Address, operation: &Operation) -> Result<Answer> {
    let path = address.path(operation.name());
    let put = |mode, bytes: &[u8]| {
        let options = PutOptions { mode, ..PutOptions::default() };
        address.store.put_opts(&path, PutPayload::from(bytes.to_vec()), options)
    };
    match operation {
        Operation::Put { bytes, .. } => put(PutMode::Overwrite, bytes).await.map_err(told_of_place)?,
        Operation::Create { bytes, .. } => put(PutMode::Create, bytes).await.map_err(told_of_place)?,
        Operation::Get { part, .. } => {
            let range = match *part {
                Part::All => None,
                Part::Range(from, count) => Some(GetRange::Bounded(from..from + count)),
                Part::Last(count) => Some(GetRange::Suffix(count)),
            };
            let options = GetOptions { range, ..GetOptions::default() };
            let got = address.store.get_opts(&path, options).await.map_err(told)?;
            let length = got.meta.size;
            let bytes = got.bytes().await.map_err(told)?.to_vec();
            return Ok(Answer::Bytes { bytes, length });
        }
        Operation::Delete { names } => return delete(address, names).await,
        Operation::List { .. } => {
            let mut names = Vec::new();
            let mut listed = address.store.list(Some(&path));
            while let Some(object) = listed.next().await {
                names.extend(address.name(&object.map_err(told_of_place)?.location));
            }
            return Ok(Answer::Names(names));
        }
    };
    Ok(Answer::Done)
}

/// Removes names; those that are not there are no error.
async fn delete(address: &Address, names: &[String]) -> Result<Answer> {
    let paths: Vec<_> = names.iter().map(|name| Ok(address.path(name))).collect();
    let mut removed = address.store.delete_stream(futures_util::stream::iter(paths).boxed());
    while let Some(result) = removed.next().await {
        match result.map_err(told) {
            Ok(_) | Err(StoreError::Missing) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Answer::Done)
}

/// The store's error as the protocol knows it.
fn told(error: object_store::Error) -> StoreError {
    use object_store::Error;
    match error {
        Error::NotFound { .. } => StoreError::Missing,
        Error::AlreadyExists { .. } | Error::Precondition { .. } => StoreError::Exists,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            StoreError::Refused(sentence(&error))
        }
        Error::NotImplemented { .. } | Error::NotSupported { .. } => StoreError::Refused(sentence(&error)),
        Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => {
            StoreError::Refused(sentence(&error))
        }
        // Not a network's trouble: somebody has to make room, or to give the right.
        ref error if is_full(error) || is_forbidden(error) => StoreError::Refused(sentence(error)),
        error => {
            let sentence = sentence(&error);
            // Where the server gives no message, the code is all there is.
            let refuses =
                REFUSALS.iter().any(|code| sentence == *code || sentence.ends_with(&format!("({code})")));
            if refuses { StoreError::Refused(sentence) } else { StoreError::Unavailable(sentence) }
        }
    }
}

/// Codes of S3, and of those who speak it, that stay until somebody changes something.
const REFUSALS: [&str; 9] = [
    "AccessDenied",
    "AccountProblem",
    "ExpiredToken",
    "InsufficientStorage",
    "InvalidAccessKeyId",
    "QuotaExceeded",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "XMinioStorageFull",
];

/// Whether a folder's filesystem, or its quota, has no room.
fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
        || error.source().is_some_and(is_full)
}

/// Whether a folder, or a server in a way of its own, does not let us. It will not until somebody changes that.
fn is_forbidden(error: &(dyn std::error::Error + 'static)) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    let told = error.to_string();
    matches!(kind, Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem))
        || ["401 Unauthorized", "403 Forbidden"].iter().any(|status| told.contains(status))
        || error.source().is_some_and(is_forbidden)
}

/// The error of what needs no object, but the place for it.
fn told_of_place(error: object_store::Error) -> StoreError {
    match told(error) {
        StoreError::Missing => StoreError::Refused("there is no such bucket".to_owned()),
        error => error,
    }
}

/// Longest text of a store that is passed on, in characters.
const SENTENCE_MAX: usize = 200;

/// What a store says, without the layers that pass it on, and without its markup.
fn sentence(error: &dyn std::error::Error) -> String {
    let whole = error.to_string();
    let within = |tag: &str| {
        let (_, rest) = whole.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(text, _)| text.to_owned())
    };
    if let Some(code) = within("Code") {
        let message = within("Message").filter(|message| !message.is_empty());
        return message.map_or(code.clone(), |message| format!("{} ({code})", message.trim_end_matches('.')));
    }
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    let text = last.to_string();
    let line = text.lines().next().unwrap_or_default().trim_end_matches(['.', ' ', ':']);
    line.chars().take(SENTENCE_MAX).collect()
}
