//! P9: a store that cannot do what the protocol needs is refused, and the sentence says why.

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::sync::Arc;
use syncline_replica_store::probe::probe;
use syncline_replica_store::{Address, Client, Error};

/// What a store does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// A creation looks first, and puts then.
    LooksFirst,
    /// A creation is a PUT.
    Overwrites,
    /// A listing is an old one.
    ListsNothing,
    /// Creations are not known.
    Refuses,
}

#[derive(Debug)]
struct Store {
    inner: InMemory,
    wrong: Wrong,
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.wrong)
    }
}

#[async_trait]
impl ObjectStore for Store {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let mut options = options;
        if options.mode == PutMode::Create {
            match self.wrong {
                Wrong::Refuses => {
                    let operation = "conditional PUT".to_owned();
                    let implementer = "Store".to_owned();
                    return Err(object_store::Error::NotImplemented { operation, implementer });
                }
                Wrong::LooksFirst => {
                    let there = self.inner.get_opts(at, GetOptions::default()).await.is_ok();
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    if !there {
                        options.mode = PutMode::Overwrite;
                    }
                }
                Wrong::Overwrites => options.mode = PutMode::Overwrite,
                _ => {}
            }
        }
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
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.wrong {
            Wrong::ListsNothing => Box::pin(futures_util::stream::empty()),
            _ => self.inner.list(prefix),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn told(wrong: Wrong) -> Option<String> {
    let store = Arc::new(Store { inner: InMemory::new(), wrong });
    let client = Client::new(&Address::over("s3://bucket", store)).unwrap();
    let result = probe(&client, 1);
    assert!(!matches!(result, Err(Error::Unreachable { .. })) || wrong == Wrong::Refuses);
    result.err().map(|error| error.to_string())
}

#[test]
fn a_store_that_cannot_create_atomically_is_refused_with_the_reason() {
    assert_eq!(told(Wrong::Nothing), None);
    let both = "s3://bucket cannot hold a replica: several creations of one name succeed, so two machines could \
                write to the replica at the same time";
    assert_eq!(told(Wrong::LooksFirst).as_deref(), Some(both));
    assert_eq!(told(Wrong::Overwrites).as_deref(), Some(both));
    let list = "s3://bucket cannot hold a replica: what was put is not seen by a LIST behind it";
    assert_eq!(told(Wrong::ListsNothing).as_deref(), Some(list));
    assert!(told(Wrong::Refuses).is_some_and(|told| told.contains("refuses")));
}

#[test]
fn a_folder_passes_and_nothing_of_the_probe_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::parse(folder.path().to_str().unwrap()).unwrap();
    let client = Client::new(&address).unwrap();
    probe(&client, 7).unwrap();
    let left: Vec<_> = walk(folder.path());
    assert!(left.is_empty(), "{left:?}");
}

/// Files below a folder.
fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
