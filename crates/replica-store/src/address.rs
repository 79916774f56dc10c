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
use std::sync::Arc;

/// A store, or why there is none.
type Built = object_store::Result<Arc<dyn ObjectStore>>;

/// Where a replica is.
#[derive(Debug, Clone)]
pub struct Address {
    /// As it was given.
    pub url: String,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
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
        let store = Arc::new(object_store::memory::InMemory::new());
        Address { url: "memory".to_owned(), store, prefix: Path::default() }
    }

    /// Any store, for tests.
    pub fn over(url: &str, store: Arc<dyn ObjectStore>) -> Address {
        Address { url: url.to_owned(), store, prefix: Path::default() }
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
        Ok(Address { url: url.to_owned(), store, prefix: Path::default() })
    }

    fn bucket(
        url: &str,
        rest: &str,
        feature: &'static str,
        build: fn(&str) -> Option<Built>,
    ) -> Result<Address, Error> {
        let bad = |why: String| Error::Address { url: url.to_owned(), why };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(bad("it names no bucket".to_owned()));
        }
        let prefix = Path::parse(prefix.trim_end_matches('/')).map_err(|error| bad(error.to_string()))?;
        let Some(store) = build(bucket) else { return Err(Error::Feature { url: url.to_owned(), feature }) };
        let store = store.map_err(|error| bad(error.to_string()))?;
        Ok(Address { url: url.to_owned(), store, prefix })
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
