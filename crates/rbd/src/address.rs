//! Addresses of images: `rbd:pool/image` or `rbd:pool/namespace/image`, and behind a `?` what is not as usual:
//! `conf=` the cluster's configuration, `id=` the user. Bytes that have another meaning here are written `%20`.

use crate::RbdError;
use std::ffi::CString;
use std::fmt::{self, Write};
use syncline_device::{percent_decoded, percent_encoded};

/// An image of a cluster. Displayed in its one canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub pool: String,
    /// Empty: none.
    pub namespace: String,
    pub image: String,
    /// The cluster's configuration; `None`: where Ceph's own tools look for it.
    pub conf: Option<String>,
    /// The user's name without `client.`; `None`: `admin`.
    pub id: Option<String>,
}

impl Address {
    /// Whether this is written as an address of an image, be it a right one or not.
    pub fn is_one(name: &str) -> bool {
        name.starts_with("rbd:")
    }

    /// # Errors
    /// `Address`.
    pub fn parse(url: &str) -> Result<Address, RbdError> {
        let bad = |why| RbdError::Address { url: url.to_owned(), why };
        let rest = url.strip_prefix("rbd:").ok_or_else(|| bad("it does not begin with \"rbd:\""))?;
        let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
        if place.contains(['@', '#']) {
            return Err(bad("snapshots of Ceph are no volumes; clone one, and name the clone"));
        }
        let names = place.split('/').map(|name| percent_decoded(name).filter(|name| !name.is_empty()));
        let names: Option<Vec<String>> = names.collect();
        let names = names.ok_or_else(|| bad("a name is empty or no text"))?;
        let (pool, namespace, image) = match names.as_slice() {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] => (pool, namespace.as_str(), image),
            _ => return Err(bad("it has no pool, or too much")),
        };
        let (mut conf, mut id) = (None, None);
        for part in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| bad("behind the \"?\" stands NAME=VALUE"))?;
            let value = percent_decoded(value).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| bad("a value behind the \"?\" is empty or no text"))?;
            match name {
                "conf" => conf = Some(absolute(&value).ok_or_else(|| bad("conf= is no path"))?),
                "id" => id = Some(value),
                _ => return Err(bad("behind the \"?\" there are conf= and id=")),
            }
        }
        let (pool, namespace, image) = (pool.clone(), namespace.to_owned(), image.clone());
        Ok(Address { pool, namespace, image, conf, id })
    }

    /// The user, as Ceph writes it.
    pub(crate) fn user(&self) -> String {
        format!("client.{}", self.id.as_deref().unwrap_or("admin"))
    }
}

/// Whoever goes on in another directory finds it still.
fn absolute(path: &str) -> Option<String> {
    std::path::absolute(path).ok()?.into_os_string().into_string().ok()
}

/// For C. Names from an address hold no NUL.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rbd:")?;
        f.write_str(&percent_encoded(&self.pool, b""))?;
        if !self.namespace.is_empty() {
            f.write_char('/')?;
            f.write_str(&percent_encoded(&self.namespace, b""))?;
        }
        f.write_char('/')?;
        f.write_str(&percent_encoded(&self.image, b""))?;
        let queries = [("conf", &self.conf), ("id", &self.id)];
        let given = queries.into_iter().filter_map(|(name, value)| value.as_ref().map(|value| (name, value)));
        for (number, (name, value)) in given.enumerate() {
            write!(f, "{}{name}=", if number == 0 { '?' } else { '&' })?;
            f.write_str(&percent_encoded(value, b"/"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_in_one_form() {
        for (written, canonical) in [
            ("rbd:pool/image", "rbd:pool/image"),
            ("rbd:p%6fol/name%20space/a%2Fb", "rbd:pool/name%20space/a%2Fb"),
            ("rbd:p/i?id=me&conf=/etc/ceph/x.conf", "rbd:p/i?conf=/etc/ceph/x.conf&id=me"),
            ("rbd:p/i?id=a%26b", "rbd:p/i?id=a%26b"),
        ] {
            let address = Address::parse(written).expect(written);
            assert_eq!(address.to_string(), canonical);
            assert_eq!(Address::parse(canonical).expect(canonical), address);
        }
        assert_eq!(Address::parse("rbd:p/i").expect("an address").user(), "client.admin");
    }

    #[test]
    fn what_is_no_address_is_told() {
        for wrong in [
            "rbd",
            "rbd:",
            "rbd:image",
            "rbd:/image",
            "rbd:pool/",
            "rbd:a/b/c/d",
            "rbd:p/i@snap",
            "rbd:p/i#s",
            "rbd:p/i?",
            "rbd:p/i?x=y",
            "rbd:p/i?id=",
            "rbd:p/%00",
            "rbd:p/%zz",
            "rbd://p/i",
            "rbd:p/i?conf",
        ] {
            let told = Address::parse(wrong).expect_err(wrong).to_string();
            assert!(told.contains("rbd:pool/image"), "{told}");
        }
    }
}
