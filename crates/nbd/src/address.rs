//! Addresses of exports, as libnbd, nbdkit and qemu write them.
//!
//! | form | what |
//! |---|---|
//! | `nbd://host[:port]/export` | by TCP, port 10809 unless it is named; an IPv6 address in brackets |
//! | `nbd+unix:///export?socket=/path` | by a Unix socket |
//!
//! The export's name may be empty: the server's default. Bytes that an address gives another meaning are written `%20`.

use crate::NbdError;
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use syncline_device::{percent_decoded, percent_encoded};

/// The port that IANA has given to NBD.
const PORT: u16 = 10809;
/// What the protocol allows.
const NAME_BYTES_MAX: usize = 4096;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// An export of a server. Displayed in its one canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub place: Place,
    pub export: String,
}

impl Address {
    /// Whether this is written as an address of NBD, be it a right one or not.
    pub fn is_one(name: &str) -> bool {
        ["nbd://", "nbd+", "nbds://", "nbds+"].iter().any(|scheme| name.starts_with(scheme))
    }

    /// # Errors
    /// `Address`.
    pub fn parse(url: &str) -> Result<Address, NbdError> {
        let bad = |why| NbdError::Address { url: url.to_owned(), why };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("it has no \"://\""))?;
        if scheme.starts_with("nbds") {
            return Err(bad("TLS is not spoken: use a tunnel"));
        }
        if rest.contains('#') {
            return Err(bad("a \"#\" has to be written %23"));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = percent_decoded(path).ok_or_else(|| bad("the export's name is no text"))?;
        if export.len() > NAME_BYTES_MAX {
            return Err(bad("the export's name is longer than 4096 bytes"));
        }
        let place = match (scheme, query) {
            ("nbd", None) => tcp(authority).map_err(bad)?,
            ("nbd", Some(_)) => return Err(bad("nothing may stand behind a \"?\"")),
            ("nbd+unix", Some(query)) if authority.is_empty() => unix(query).map_err(bad)?,
            ("nbd+unix", None) => return Err(bad("?socket= is missing")),
            ("nbd+unix", _) => return Err(bad("with nbd+unix there is no host: three slashes")),
            _ => return Err(bad("only nbd and nbd+unix are spoken")),
        };
        Ok(Address { place, export })
    }
}

fn tcp(authority: &str) -> Result<Place, &'static str> {
    if authority.contains('@') {
        return Err("there are no users");
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or("behind \"]\" comes a port")?)),
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.contains(['[', ']']) {
        return Err("the host is missing");
    }
    let is_number = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = match port {
        None => PORT,
        Some(port) if is_number(port) => {
            port.parse().ok().filter(|port| *port != 0).ok_or("the port is none")?
        }
        Some(_) => return Err("the port is no number"),
    };
    Ok(Place::Tcp { host: host.to_ascii_lowercase(), port })
}

fn unix(query: &str) -> Result<Place, &'static str> {
    let mut socket = None;
    for part in query.split('&') {
        match part.split_once('=') {
            Some(("socket", path)) if socket.is_none() && !path.is_empty() => socket = Some(path),
            _ => return Err("behind the \"?\" stands one socket=PATH"),
        }
    }
    let path = socket.and_then(percent_decoded).ok_or("the socket's path is no text")?;
    // Whoever goes on in another directory finds it still.
    std::path::absolute(Path::new(&path)).map(Place::Unix).map_err(|_| "the socket's path is none")
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp { host, port } => {
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "nbd://{open}{host}{close}")?;
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                f.write_char('/')?;
                f.write_str(&percent_encoded(&self.export, b"/"))
            }
            Place::Unix(socket) => {
                f.write_str("nbd+unix:///")?;
                f.write_str(&percent_encoded(&self.export, b"/"))?;
                f.write_str("?socket=")?;
                f.write_str(&percent_encoded(&socket.to_string_lossy(), b"/"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_in_one_form() {
        for (written, canonical) in [
            ("nbd://host", "nbd://host/"),
            ("nbd://Host:10809/a", "nbd://host/a"),
            ("nbd://127.0.0.1:9/a/b%20c", "nbd://127.0.0.1:9/a/b%20c"),
            ("nbd://[::1]:9/%C3%A9", "nbd://[::1]:9/%C3%A9"),
            ("nbd://[::1]", "nbd://[::1]/"),
            ("nbd+unix:///?socket=/run/a%23b", "nbd+unix:///?socket=/run/a%23b"),
            ("nbd+unix:///x%3fy?socket=/run/s,ock", "nbd+unix:///x%3Fy?socket=/run/s%2Cock"),
        ] {
            let address = Address::parse(written).expect(written);
            assert_eq!(address.to_string(), canonical);
            assert_eq!(Address::parse(canonical).expect(canonical), address);
        }
        let here = std::env::current_dir().expect("a directory").join("sock");
        let relative = Address::parse("nbd+unix:///?socket=sock").expect("relative");
        assert_eq!(relative.place, Place::Unix(here));
    }

    #[test]
    fn what_is_no_address_is_told() {
        for wrong in [
            "nbd:",
            "nbd://",
            "nbd:///x",
            "nbd://h:/",
            "nbd://h:0/",
            "nbd://h:65536/",
            "nbd://h:+1/",
            "nbd://u@h/",
            "nbd://[::1/",
            "nbd://[::1]9/",
            "nbd://]/",
            "nbd://h/?tls=x",
            "nbd://h/a#b",
            "nbd://h/%",
            "nbd://h/%4",
            "nbd://h/%zz",
            "nbd://h/%00",
            "nbd://h/%ff",
            "nbds://h/",
            "nbd+vsock://1/",
            "nbd+unix:///x",
            "nbd+unix://h/x?socket=/s",
            "nbd+unix:///?socket=",
            "nbd+unix:///?socket=/a&socket=/b",
            "nbd+unix:///?sock=/a",
            "nbd+unix:///?",
        ] {
            let told = Address::parse(wrong).expect_err(wrong).to_string();
            assert!(told.contains("nbd://host/export"), "{told}");
        }
        let long = format!("nbd://h/{}", "x".repeat(NAME_BYTES_MAX + 1));
        assert!(Address::parse(&long).is_err());
    }
}
