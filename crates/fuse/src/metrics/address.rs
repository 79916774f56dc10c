//! Where metrics are told: option `metrics=`.
//!
//! They tell how busy a volume is, and nobody has to prove who asks. So without an address it is the loopback's, and a
//! socket in the file system is its owner's alone.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

const UNIX: &str = "unix:";

/// Where metrics are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Internet(SocketAddr),
    /// A socket of this path, which is absolute: the daemon changes its directory.
    Unix(PathBuf),
}

impl Address {
    /// `9464`, `127.0.0.1:9464`, `[::1]:9464`, `unix:/run/syncline.sock`.
    pub(crate) fn parse(text: &str) -> Option<Address> {
        if let Some(path) = text.strip_prefix(UNIX) {
            let path = PathBuf::from(path);
            return path.is_absolute().then_some(Address::Unix(path));
        }
        let of_loopback = text.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        of_loopback.or_else(|| text.parse().ok()).map(Address::Internet)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Internet(address) => address.fmt(formatter),
            Address::Unix(path) => write!(formatter, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_the_loopback_and_others_are_taken_as_they_are_named() {
        let named = |text: &str| Address::parse(text).map(|address| address.to_string());
        assert_eq!(named("9464").as_deref(), Some("127.0.0.1:9464"));
        for text in ["127.0.0.1:9464", "[::1]:1", "0.0.0.0:9464", "unix:/run/syncline.sock"] {
            assert_eq!(named(text).as_deref(), Some(text));
        }
        for text in ["", "unix:", "unix:run/x", "localhost:9464", "127.0.0.1", "65536", "1:2", "x"] {
            assert_eq!(named(text), None, "{text}");
        }
    }
}
