//! The handshake: from a connection to an export and what it can do.

use crate::error::Told;
use crate::stream::PATIENCE;
use crate::wire;
use crate::{Address, NbdError};
use std::io::{self, Read, Write};
use syncline_format::BLOCK_BYTES;

/// Longest reply that is read. Servers send some hundred bytes.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// Replies to one option. Servers send three.
const REPLIES_MAX: usize = 64;
/// Of what a server says in words, so much is shown.
const TOLD_CHARS_MAX: usize = 200;
/// What a server takes that does not say.
const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Largest device: numbers of bytes are signed on some servers.
const BYTES_MAX: u64 = 1 << 62;

/// An export, as the server describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) bytes: u64,
    flags: u16,
    /// The shortest request that needs no reading at the server.
    preferred: u32,
    /// The longest read or write.
    pub(crate) payload_max: u32,
}

impl Export {
    pub(crate) fn can_write(&self) -> bool {
        self.flags & wire::READ_ONLY == 0
    }

    pub(crate) fn can_trim(&self) -> bool {
        self.can_write() && self.flags & wire::SEND_TRIM != 0
    }

    pub(crate) fn can_write_zeroes(&self) -> bool {
        self.flags & wire::SEND_WRITE_ZEROES != 0
    }

    pub(crate) fn can_flush(&self) -> bool {
        self.flags & wire::SEND_FLUSH != 0
    }

    /// Blocks of the shortest run that is worth a trim.
    pub(crate) fn least_trim(&self) -> u64 {
        u64::from(self.preferred).div_ceil(BLOCK_BYTES as u64).max(1)
    }

    /// Whether a volume can be on it.
    fn check(self, address: &Address, to_write: bool) -> Result<Export, NbdError> {
        let url = || address.to_string();
        if self.flags & wire::HAS_FLAGS == 0 {
            return Err(NbdError::Protocol { url: url(), what: "an export without flags" });
        }
        if self.bytes == 0 || !self.bytes.is_multiple_of(BLOCK_BYTES as u64) || self.bytes > BYTES_MAX {
            return Err(NbdError::Size { url: url(), bytes: self.bytes });
        }
        if to_write && !self.can_write() {
            return Err(NbdError::ReadOnly { url: url().into() });
        }
        if to_write && !self.can_flush() {
            return Err(NbdError::NoFlush { url: url() });
        }
        Ok(self)
    }
}

/// Talks to the server until it serves the export.
pub(crate) fn shake(
    mut stream: impl Read + Write,
    address: &Address,
    to_write: bool,
) -> Result<Export, NbdError> {
    let mut hand = Hand { stream: &mut stream, address };
    let zeroes = hand.greet()?;
    let export = match hand.go()? {
        Some(export) => export,
        None => hand.export_name(zeroes)?,
    };
    export.check(address, to_write)
}

struct Hand<'a, S> {
    stream: &'a mut S,
    address: &'a Address,
}

/// A reply to an option.
struct Reply {
    kind: u32,
    data: Vec<u8>,
}

impl<S: Read + Write> Hand<'_, S> {
    fn url(&self) -> String {
        self.address.to_string()
    }

    fn broken<T>(&self, what: &'static str) -> Result<T, NbdError> {
        Err(NbdError::Protocol { url: self.url(), what })
    }

    fn lost(&self, source: io::Error) -> NbdError {
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                NbdError::Silent { url: self.url(), seconds: PATIENCE.as_secs() }
            }
            _ => NbdError::Closed { url: self.url(), source },
        }
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N], NbdError> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).map_err(|error| self.lost(error))?;
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), NbdError> {
        self.stream.write_all(bytes).map_err(|error| self.lost(error))
    }

    /// Whether zeros follow an answer to [`wire::OPTION_EXPORT_NAME`].
    fn greet(&mut self) -> Result<bool, NbdError> {
        if self.read::<8>()? != wire::HELLO {
            return self.broken("it does not begin with NBDMAGIC");
        }
        match self.read::<8>()? {
            wire::NEWSTYLE => {}
            wire::OLDSTYLE => return self.broken("the handshake of before 2011"),
            _ => return self.broken("a handshake of its own"),
        }
        let flags = u16::from_be_bytes(self.read()?);
        if flags & wire::FIXED_NEWSTYLE == 0 {
            return self.broken("the handshake of before 2012");
        }
        let ours = flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
        self.write(&u32::from(ours).to_be_bytes())?;
        Ok(ours & wire::NO_ZEROES == 0)
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<(), NbdError> {
        let length = (data.len() as u32).to_be_bytes();
        self.write(&[&wire::NEWSTYLE, &option.to_be_bytes()[..], &length, data].concat())
    }

    /// The export by the option of today; `None` if the server does not know it.
    fn go(&mut self) -> Result<Option<Export>, NbdError> {
        let name = self.address.export.as_bytes();
        let length = (name.len() as u32).to_be_bytes();
        let wanted = [1_u16.to_be_bytes(), wire::INFO_BLOCK_SIZE.to_be_bytes()].concat();
        self.option(wire::OPTION_GO, &[&length, name, &wanted].concat())?;
        let mut described = None;
        let (mut preferred, mut payload_max) = (BLOCK_BYTES as u32, PAYLOAD_BYTES_MAX);
        for _ in 0..REPLIES_MAX {
            let Reply { kind, data } = self.reply(wire::OPTION_GO)?;
            match kind {
                wire::ACK => {
                    let Some((bytes, flags)) = described else {
                        return self.broken("an export without a description");
                    };
                    return Ok(Some(Export { bytes, flags, preferred, payload_max }));
                }
                wire::INFO => match Info::of(&data) {
                    None => return self.broken("a description that is cut off"),
                    Some(Info::Export { bytes, flags }) => described = Some((bytes, flags)),
                    Some(Info::BlockSize { min, preferred: best, max }) => {
                        // More than a machine's memory is not meant so.
                        payload_max = max.min(PAYLOAD_BYTES_MAX) & !(BLOCK_BYTES as u32 - 1);
                        preferred = best.clamp(BLOCK_BYTES as u32, PAYLOAD_BYTES_MAX);
                        if min as usize > BLOCK_BYTES || payload_max == 0 {
                            return Err(NbdError::BlockSize { url: self.url(), min, max });
                        }
                    }
                    Some(Info::Other) => {}
                },
                wire::ERROR_UNSUPPORTED => return Ok(None),
                kind if kind & wire::ERROR != 0 => return Err(self.refusal(kind, &data)),
                _ => return self.broken("a reply that was not asked for"),
            }
        }
        self.broken("replies without end")
    }

    fn reply(&mut self, option: u32) -> Result<Reply, NbdError> {
        let magic = u64::from_be_bytes(self.read()?);
        let [of, kind, length] = [self.read()?, self.read()?, self.read()?].map(u32::from_be_bytes);
        if magic != wire::OPTION_REPLY || of != option {
            return self.broken("no reply to what was asked");
        }
        if length > REPLY_BYTES_MAX {
            return self.broken("a reply of more than 64 KiB");
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data).map_err(|error| self.lost(error))?;
        Ok(Reply { kind, data })
    }

    fn refusal(&self, kind: u32, data: &[u8]) -> NbdError {
        let shown = String::from_utf8_lossy(data);
        let harmless = |c: char| if c.is_control() { ' ' } else { c };
        let told =
            Told(shown.chars().take(TOLD_CHARS_MAX).map(harmless).collect::<String>().trim().to_owned());
        let url = self.url();
        match kind {
            wire::ERROR_TLS => NbdError::Tls { url },
            wire::ERROR_UNKNOWN => NbdError::NoExport { url, told },
            _ => NbdError::Refused { url, told },
        }
    }

    /// The export by the option of old, which a server refuses by closing the connection.
    fn export_name(&mut self, zeroes: bool) -> Result<Export, NbdError> {
        let name = self.address.export.clone();
        self.option(wire::OPTION_EXPORT_NAME, name.as_bytes())?;
        let bytes = u64::from_be_bytes(self.read()?);
        let flags = u16::from_be_bytes(self.read()?);
        if zeroes {
            self.read::<124>()?;
        }
        Ok(Export { bytes, flags, preferred: BLOCK_BYTES as u32, payload_max: PAYLOAD_BYTES_MAX })
    }
}

enum Info {
    Export { bytes: u64, flags: u16 },
    BlockSize { min: u32, preferred: u32, max: u32 },
    Other,
}

impl Info {
    /// `None`: it is shorter than it says.
    fn of(data: &[u8]) -> Option<Info> {
        let (kind, rest) = data.split_first_chunk::<2>()?;
        let word = |at: usize| rest.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        Some(match u16::from_be_bytes(*kind) {
            wire::INFO_EXPORT => {
                let (bytes, flags) = rest.split_first_chunk::<8>()?;
                let flags = u16::from_be_bytes(*flags.first_chunk()?);
                Info::Export { bytes: u64::from_be_bytes(*bytes), flags }
            }
            wire::INFO_BLOCK_SIZE => Info::BlockSize { min: word(0)?, preferred: word(4)?, max: word(8)? },
            _ => Info::Other,
        })
    }
}
