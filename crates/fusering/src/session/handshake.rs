//! INIT: the first request of a connection, in which both sides say what they can do.

use super::config::{Config, Negotiated};
use crate::abi::{
    InHeader, InitFlags, InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, Opcode, OutHeader, READ_BUFFER_BYTES_MIN,
};
use crate::error::Error;
use crate::transport::connection::Connection;
use std::io::{self, IoSlice};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const PAGE_BYTES: u32 = 4096;
/// Pages of a message unless MAX_PAGES is agreed on.
const PAGES_DEFAULT: u32 = 32;

/// INIT as it was received.
pub(super) struct Received {
    pub(super) unique: u64,
    pub(super) init: InitIn,
}

/// What is to be said in return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreement {
    pub(super) negotiated: Negotiated,
    pub(super) out: InitOut,
}

/// Waits for INIT; a kernel with a newer major version is told ours and asks again.
pub(super) fn receive(connection: &Connection) -> Result<Received, Error> {
    let mut buffer = vec![0; READ_BUFFER_BYTES_MIN];
    loop {
        let bytes = match connection.read(&mut buffer) {
            Ok(bytes) => bytes,
            Err(error) if is_retry(&error) => continue,
            Err(source) => return Err(Error::Handshake { source }),
        };
        let (unique, init) = parse(&buffer[..bytes])?;
        if init.major > MAJOR {
            let out = InitOut { major: MAJOR, minor: MINOR, ..InitOut::new_zeroed() };
            // The kernel takes just the version from it.
            send(connection, unique, 0, out.as_bytes())?;
            continue;
        }
        return Ok(Received { unique, init });
    }
}

fn is_retry(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT | libc::EAGAIN))
}

fn parse(message: &[u8]) -> Result<(u64, InitIn), Error> {
    let (header, rest) = InHeader::read_from_prefix(message).map_err(|_| Error::NotInit { opcode: None })?;
    if header.opcode != Opcode::INIT {
        return Err(Error::NotInit { opcode: Some(header.opcode) });
    }
    let mut init = InitIn::new_zeroed();
    let bytes = rest.len().min(size_of::<InitIn>());
    init.as_mut_bytes()[..bytes].copy_from_slice(&rest[..bytes]);
    if bytes < 8 {
        return Err(Error::NotInit { opcode: Some(header.opcode) });
    }
    Ok((header.unique, init))
}

/// What this side answers to `init`. `uring`: whether io_uring is to be agreed on if it is offered.
pub(super) fn agree(init: &InitIn, config: &Config, uring: bool) -> Result<Agreement, Error> {
    if init.major < MAJOR || init.minor < MINOR_MIN {
        return Err(Error::KernelTooOld { major: init.major, minor: init.minor });
    }
    let low = InitFlags::from_halves(init.flags, 0);
    let high = if low.contains(InitFlags::INIT_EXT) { init.flags2 } else { 0 };
    let offered = InitFlags::from_halves(init.flags, high);
    // These two are this module's business.
    let own = InitFlags::OVER_IO_URING | InitFlags::REQUEST_TIMEOUT | InitFlags::INIT_EXT;
    let mut asked =
        config.wanted.difference(own) | config.required | InitFlags::MAX_PAGES | InitFlags::BIG_WRITES;
    if uring {
        asked |= InitFlags::OVER_IO_URING;
    }
    if config.request_timeout_seconds.is_some() {
        asked |= InitFlags::REQUEST_TIMEOUT;
    }
    let mut flags = offered.intersection(asked);
    let missing = config.required.difference(flags);
    if !missing.is_empty() {
        return Err(Error::Missing { missing });
    }
    if flags.halves().1 != 0 {
        flags |= InitFlags::INIT_EXT;
    }
    let minor = init.minor.min(MINOR);
    let pages_max = if flags.contains(InitFlags::MAX_PAGES) { u32::from(u16::MAX) } else { PAGES_DEFAULT };
    let pages = |bytes: u32| bytes.div_ceil(PAGE_BYTES).clamp(1, pages_max);
    let write_pages = pages(config.write_bytes_max);
    let message_pages = write_pages.max(pages(config.read_bytes_max));
    let background = config.background_max.max(1);
    let congestion = config.congestion_threshold.unwrap_or((background / 4 * 3).max(1));
    let (flags_low, flags_high) = flags.halves();
    let negotiated = Negotiated {
        minor,
        offered,
        flags,
        write_bytes_max: write_pages * PAGE_BYTES,
        read_bytes_max: message_pages * PAGE_BYTES,
        readahead_bytes_max: config.readahead_bytes_max.min(init.max_readahead),
    };
    let timeout = config.request_timeout_seconds.filter(|_| flags.contains(InitFlags::REQUEST_TIMEOUT));
    let out = InitOut {
        major: MAJOR,
        minor,
        max_readahead: negotiated.readahead_bytes_max,
        flags: flags_low,
        max_background: background,
        congestion_threshold: congestion,
        max_write: negotiated.write_bytes_max,
        time_gran: config.time_granularity_ns,
        max_pages: message_pages as u16,
        flags2: flags_high,
        request_timeout: timeout.unwrap_or(0),
        ..InitOut::new_zeroed()
    };
    Ok(Agreement { negotiated, out })
}

/// Answers INIT.
pub(super) fn accept(connection: &Connection, received: &Received, out: &InitOut) -> Result<(), Error> {
    send(connection, received.unique, 0, out.as_bytes())
}

/// Answers INIT with an error: the mount is of no use.
pub(super) fn refuse(connection: &Connection, received: &Received) {
    // The connection is given up in any case.
    let _ = send(connection, received.unique, -libc::EPROTO, &[]);
}

fn send(connection: &Connection, unique: u64, error: i32, body: &[u8]) -> Result<(), Error> {
    let header = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error, unique };
    connection
        .write(&[IoSlice::new(header.as_bytes()), IoSlice::new(body)])
        .map_err(|source| Error::Handshake { source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(minor: u32, offered: InitFlags) -> InitIn {
        let (flags, flags2) = offered.halves();
        InitIn { major: 7, minor, max_readahead: 128 << 10, flags, flags2, ..InitIn::new_zeroed() }
    }

    const OFFERED: InitFlags = InitFlags(
        InitFlags::MAX_PAGES.0
            | InitFlags::INIT_EXT.0
            | InitFlags::OVER_IO_URING.0
            | InitFlags::POSIX_ACL.0
            | InitFlags::BIG_WRITES.0,
    );

    #[test]
    fn the_lower_minor_version_is_agreed_on() {
        for (theirs, agreed) in [(31, 31), (38, 38), (45, 45), (60, 45)] {
            let agreement = agree(&kernel(theirs, OFFERED), &Config::default(), false).expect("agreed");
            assert_eq!((agreement.negotiated.minor, agreement.out.minor), (agreed, agreed));
        }
        assert!(matches!(
            agree(&kernel(30, OFFERED), &Config::default(), false),
            Err(Error::KernelTooOld { major: 7, minor: 30 })
        ));
    }

    #[test]
    fn only_what_is_offered_is_agreed_on() {
        let config =
            Config { wanted: InitFlags::POSIX_ACL | InitFlags::WRITEBACK_CACHE, ..Config::default() };
        let agreement = agree(&kernel(45, OFFERED), &config, false).expect("agreed");
        assert!(agreement.negotiated.flags.contains(InitFlags::POSIX_ACL));
        assert!(
            !agreement.negotiated.flags.intersects(InitFlags::WRITEBACK_CACHE | InitFlags::OVER_IO_URING)
        );
        let config = Config { required: InitFlags::WRITEBACK_CACHE, ..Config::default() };
        let refused = agree(&kernel(45, OFFERED), &config, false);
        assert!(matches!(refused, Err(Error::Missing { missing: InitFlags::WRITEBACK_CACHE })));
    }

    #[test]
    fn the_upper_half_of_the_flags_counts_only_with_init_ext() {
        let with = agree(&kernel(45, OFFERED), &Config::default(), true).expect("agreed");
        assert!(with.negotiated.flags.contains(InitFlags::OVER_IO_URING | InitFlags::INIT_EXT));
        assert_eq!(with.out.flags2, 1 << 9);
        let offered = OFFERED.difference(InitFlags::INIT_EXT);
        let without = agree(&kernel(45, offered), &Config::default(), true).expect("agreed");
        assert!(!without.negotiated.flags.contains(InitFlags::OVER_IO_URING));
    }

    #[test]
    fn io_uring_is_agreed_on_only_if_this_side_is_ready() {
        let config = Config { wanted: InitFlags::OVER_IO_URING, ..Config::default() };
        let agreement = agree(&kernel(45, OFFERED), &config, false).expect("agreed");
        assert!(!agreement.negotiated.flags.contains(InitFlags::OVER_IO_URING));
    }

    #[test]
    fn messages_are_whole_pages_and_small_without_max_pages() {
        let agreed = |write_bytes_max, read_bytes_max| {
            let config = Config { write_bytes_max, read_bytes_max, ..Config::default() };
            let agreement = agree(&kernel(45, OFFERED), &config, false).expect("agreed");
            assert_eq!(agreement.negotiated.read_bytes_max, u32::from(agreement.out.max_pages) * 4096);
            (agreement.out.max_write, agreement.out.max_pages)
        };
        assert_eq!(agreed(100_000, 0), (25 * 4096, 25));
        assert_eq!(agreed(100_000, 1 << 20), (25 * 4096, 256));
        let offered = OFFERED.difference(InitFlags::MAX_PAGES);
        let agreement = agree(&kernel(45, offered), &Config::default(), false).expect("agreed");
        assert_eq!(agreement.out.max_write, 128 << 10);
    }

    #[test]
    fn init_of_any_length_is_read_without_panic() {
        let header = InHeader { opcode: Opcode::INIT, unique: 9, ..InHeader::default() };
        let mut message = header.as_bytes().to_vec();
        message.extend_from_slice(kernel(45, OFFERED).as_bytes());
        for bytes in 0..message.len() {
            let parsed = parse(&message[..bytes]);
            assert_eq!(parsed.is_ok(), bytes >= 48, "{bytes}");
        }
        let (unique, init) = parse(&message).expect("whole");
        assert_eq!((unique, init), (9, kernel(45, OFFERED)));
        let other = InHeader { opcode: Opcode::GETATTR, ..header };
        assert!(matches!(parse(other.as_bytes()), Err(Error::NotInit { opcode: Some(Opcode::GETATTR) })));
    }
}
