//! A replica's address: the store, and where in it.
//!
//! | form | what |
//! |---|---|
//! | `/a/folder`, `file:///a/folder` | a local folder |
//! | `gs://bucket/prefix` | with the feature `gcp`; credentials from `GOOGLE_APPLICATION_CREDENTIALS` and the like |
//! | `az://container/prefix` | with the feature `azure`; credentials from `AZURE_STORAGE_ACCOUNT_NAME` and the like |
//! | `s3://bucket/prefix` | with the feature `aws`; credentials and endpoint as the AWS tools take them from the environment |

use crate::error::Error;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use syncline_replica::{Names, Operation};

/// A store, or why there is none.
type Built = object_store::Result<Arc<dyn ObjectStore>>;

/// How the store of a bucket is made; nothing where this build does not know such stores.
type Build = fn(&str) -> Option<Built>;

/// Where a replica is.
#[derive(Debug, Clone)]
pub struct Address {
    /// As it was given.
    pub url: String,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    /// The bucket, where there are connections.
    bucket: Option<(String, Build)>,
    /// The local folder, if it is one.
    folder: Option<Folder>,
}

/// A folder, and which one it was when it was named.
#[derive(Debug, Clone)]
struct Folder {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Folder {
    /// What was named is not there: its disk was unmounted, maybe, and something else lies below.
    fn is_gone(&self) -> bool {
        std::fs::metadata(&self.path).map_or(true, |now| (now.dev(), now.ino()) != (self.device, self.inode))
    }
}

impl Address {
    /// The address of a place that is to be written to: a folder is made if it is not there.
    ///
    /// # Errors
    /// As [`Address::parse`], and the folder cannot be made.
    pub fn make(url: &str) -> Result<Address, Error> {
        let path = match url.split_once("://") {
            None => Some(url),
            Some((scheme, path)) => (scheme == "file").then_some(path),
        };
        if let Some(path) = path.filter(|path| path.starts_with('/')) {
            let bad = |error: std::io::Error| Error::Address { url: url.to_owned(), why: error.to_string() };
            std::fs::create_dir_all(path).map_err(bad)?;
        }
        Address::parse(url)
    }

    /// # Errors
    /// The address names no store, or one that this build does not know, or a folder that is not there.
    pub fn parse(url: &str) -> Result<Address, Error> {
        let bad = |why: String| Error::Address { url: url.to_owned(), why };
        let Some((scheme, rest)) = url.split_once("://") else { return Address::folder(url, url) };
        match scheme {
            "file" => Address::folder(url, rest),
            "s3" => Address::bucket(url, rest, "aws", s3),
            "gs" => Address::bucket(url, rest, "gcp", google),
            "az" => Address::bucket(url, rest, "azure", microsoft),
            other => Err(bad(format!("{other} is neither file nor s3, gs or az"))),
        }
    }

    /// Objects in memory, for tests.
    pub fn memory() -> Address {
        Address::over("memory", Arc::new(object_store::memory::InMemory::new()))
    }

    /// Any store, for tests.
    pub fn over(url: &str, store: Arc<dyn ObjectStore>) -> Address {
        Address { url: url.to_owned(), store, prefix: Path::default(), bucket: None, folder: None }
    }

    /// The same place by connections of its own. A connection that is kept belongs to the runtime that it was made in:
    /// a request that takes one of a runtime which nobody drives stands until its time is up.
    pub(crate) fn apart(&self) -> std::io::Result<Address> {
        let Some((name, build)) = &self.bucket else { return Ok(self.clone()) };
        let built = build(name).ok_or_else(|| std::io::Error::other("this build knows no such store"))?;
        Ok(Address { store: built.map_err(std::io::Error::other)?, ..self.clone() })
    }

    fn folder(url: &str, path: &str) -> Result<Address, Error> {
        let bad = |why: String| Error::Address { url: url.to_owned(), why };
        if !path.starts_with('/') {
            return Err(bad("a folder is given by its whole path".to_owned()));
        }
        // Nobody writes to it unless it is there.
        if !std::path::Path::new(path).is_dir() {
            return Err(bad("there is no such folder".to_owned()));
        }
        // What counts has to survive the machine as far as the folder does.
        let store = LocalFileSystem::new_with_prefix(path).map_err(|error| bad(error.to_string()))?;
        let store = Arc::new(store.with_fsync(true));
        let is = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?;
        let folder = Folder { path: path.into(), device: is.dev(), inode: is.ino() };
        Ok(Address { folder: Some(folder), ..Address::over(url, store) })
    }

    /// Whether a local folder is not there any more, so that nothing may be put there and nothing that is missing means
    /// anything. Folders are made when they are missing, and so a disk that was unmounted would go on elsewhere, and
    /// have a gap when it is back.
    ///
    /// Where the volume has claims they are there. Before the first one the folder is the one that was named.
    pub(crate) fn is_gone(&self, operation: &Operation) -> bool {
        let Some(folder) = &self.folder else { return false };
        let name = operation.name();
        let mut parts = name.split('/').filter(|part| !part.is_empty());
        let (volume, kind) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let has_claims = || folder.path.join(volume).join("e").is_dir();
        let is_first = || Names::number_of(name).is_none_or(|number| number <= 1);
        match operation {
            // A look for the next claim is the look of somebody who has one.
            Operation::Get { .. } if kind == "e" => !has_claims(),
            Operation::Create { .. } if kind == "e" && is_first() => folder.is_gone(),
            Operation::Put { .. } | Operation::Create { .. } if ["e", "m", "u", "p"].contains(&kind) => {
                !has_claims()
            }
            _ => folder.is_gone() && !has_claims(),
        }
    }

    fn bucket(url: &str, rest: &str, feature: &'static str, build: Build) -> Result<Address, Error> {
        let bad = |why: String| Error::Address { url: url.to_owned(), why };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(bad("it names no bucket".to_owned()));
        }
        let prefix = Path::parse(prefix.trim_end_matches('/')).map_err(|error| bad(error.to_string()))?;
        let Some(store) = build(bucket) else { return Err(Error::Feature { url: url.to_owned(), feature }) };
        let store = store.map_err(|error| bad(error.to_string()))?;
        Ok(Address {
            url: url.to_owned(),
            store,
            prefix,
            bucket: Some((bucket.to_owned(), build)),
            folder: None,
        })
    }

    /// The path of a name.
    pub(crate) fn path(&self, name: &str) -> Path {
        name.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// The name of a path.
    pub(crate) fn name(&self, path: &Path) -> Option<String> {
        let parts: Vec<String> =
            path.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned()).collect();
        Some(parts.join("/"))
    }
}

/// What fails is asked again by whoever asked, who knows what has to be the same then (P4).
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
fn once() -> object_store::RetryConfig {
    // The second time it is there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    object_store::RetryConfig { max_retries: 0, ..object_store::RetryConfig::default() }
}

#[cfg(feature = "gcp")]
fn google(bucket: &str) -> Option<Built> {
    let builder = object_store::gcp::GoogleCloudStorageBuilder::from_env();
    let store = builder.with_bucket_name(bucket).with_retry(once()).build();
    Some(store.map(|store| Arc::new(store) as Arc<dyn ObjectStore>))
}

#[cfg(not(feature = "gcp"))]
fn google(_bucket: &str) -> Option<Built> {
    None
}

#[cfg(feature = "azure")]
fn microsoft(container: &str) -> Option<Built> {
    let builder = object_store::azure::MicrosoftAzureBuilder::from_env();
    let store = builder.with_container_name(container).with_retry(once()).build();
    Some(store.map(|store| Arc::new(store) as Arc<dyn ObjectStore>))
}

#[cfg(not(feature = "azure"))]
fn microsoft(_container: &str) -> Option<Built> {
    None
}

#[cfg(feature = "aws")]
fn s3(bucket: &str) -> Option<Built> {
    use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
    let plain = std::env::var("AWS_ENDPOINT_URL").is_ok_and(|endpoint| endpoint.starts_with("http://"));
    let builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_allow_http(plain)
        .with_retry(once())
        .with_conditional_put(S3ConditionalPut::ETagMatch);
    Some(builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>))
}

#[cfg(not(feature = "aws"))]
fn s3(_bucket: &str) -> Option<Built> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "aws")]
    mod connections {
        use super::*;
        use crate::client::Client;
        use crate::fetcher::Fetcher;
        use std::io::{Read, Write};
        use std::net::{TcpListener, TcpStream};
        use std::time::{Duration, Instant};
        use syncline_replica::{Operation, Part, Source};

        const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nETag: \"e\"\r\n\
            Last-Modified: Sat, 28 Nov 2026 00:00:00 GMT\r\n\r\nhere";

        /// Answers everything, and keeps its connections, as the large stores do.
        fn serve(mut stream: TcpStream) {
            let (mut request, mut byte) = (Vec::new(), [0]);
            while matches!(stream.read(&mut byte), Ok(1)) {
                request.push(byte[0]);
                if request.ends_with(b"\r\n\r\n") {
                    request.clear();
                    stream.write_all(ANSWER).unwrap();
                }
            }
        }

        fn at(endpoint: &str) -> Option<Built> {
            let builder = object_store::aws::AmazonS3Builder::new()
                .with_endpoint(endpoint)
                .with_allow_http(true)
                .with_bucket_name("lab")
                .with_access_key_id("lab")
                .with_secret_access_key("laboratory")
                .with_retry(once());
            Some(builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>))
        }

        #[test]
        fn what_one_thread_has_left_open_is_not_waited_for_by_another() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let endpoint = format!("http://{}", listener.local_addr().unwrap());
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    std::thread::spawn(move || serve(stream.unwrap()));
                }
            });
            let store = at(&endpoint).unwrap().unwrap();
            let address = Address { bucket: Some((endpoint, at)), ..Address::over("s3://lab", store) };
            let get = Operation::Get { name: "object".to_owned(), part: Part::All };
            let idle = Client::new(&address).unwrap();
            idle.one(&get).unwrap();
            let begun = Instant::now();
            let fetched = Fetcher::new(&address).unwrap().get(std::slice::from_ref(&get));
            Client::new(&address).unwrap().one(&get).unwrap();
            assert!(fetched[0].is_ok(), "{fetched:?}");
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
            idle.one(&get).unwrap();
        }
    }

    #[test]
    fn names_become_paths_and_paths_names() {
        let address = Address { prefix: Path::from("a/b"), ..Address::memory() };
        let path = address.path("uuid/e/00000001");
        assert_eq!(path.as_ref(), "a/b/uuid/e/00000001");
        assert_eq!(address.name(&path).as_deref(), Some("uuid/e/00000001"));
        assert_eq!(address.path("uuid/e/").as_ref(), "a/b/uuid/e");
    }

    #[test]
    fn bad_addresses_are_told_in_a_sentence() {
        let told = |url: &str| Address::parse(url).map(drop).unwrap_err().to_string();
        assert_eq!(told("folder"), "folder is no address of a replica: a folder is given by its whole path");
        assert_eq!(
            told("ftp://x"),
            "ftp://x is no address of a replica: ftp is neither file nor s3, gs or az"
        );
        assert_eq!(told("s3://"), "s3:// is no address of a replica: it names no bucket");
    }
}
