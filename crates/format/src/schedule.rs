//! The policy item of the volume tree: when snapshots are made, and which of them stay.

use crate::FormatError;
use crate::range::POLICY_BYTES_MAX;
use crate::tree_item::is_tree_name;
use std::fmt;

/// Snapshots of one class at most.
pub const KEPT_MAX: u16 = 9999;
/// Percent of a volume at most that a schedule keeps free.
pub const FREE_PERCENT_MAX: u8 = 90;
/// Bytes of a prefix at most: the moment behind it has to fit a name as well.
pub const PREFIX_BYTES_MAX: usize = 200;
/// The names of snapshots begin so if nothing else is said.
pub const PREFIX: &str = "auto";

/// How much of a volume is to be free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepFree {
    /// Whatever is.
    #[default]
    Nothing,
    /// Of what files can take in all, 1 to 90.
    Percent(u8),
    /// At least 1.
    Bytes(u64),
}

/// When snapshots are made, and which of them stay: of each class, the last one of each of the newest hours, days,
/// weeks and months of which there is one. 0: the class is not used. One class at least is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Hours.
    pub hourly: u16,
    /// Days of UTC.
    pub daily: u16,
    /// Weeks from Monday on.
    pub weekly: u16,
    /// Months of the calendar.
    pub monthly: u16,
    /// Below that the oldest of its snapshots go, and none is made.
    pub keep_free: KeepFree,
    /// What the names begin with: 1 to 200 bytes, without space, `/` and control characters.
    pub prefix: String,
}

impl Default for Schedule {
    /// A day of hours, a week of days, a month of weeks, a year of months, and a tenth of the volume free.
    fn default() -> Schedule {
        Schedule {
            hourly: 24,
            daily: 7,
            weekly: 4,
            monthly: 12,
            keep_free: KeepFree::Percent(10),
            prefix: PREFIX.to_owned(),
        }
    }
}

impl Schedule {
    /// What is wrong with it, if anything.
    pub fn fault(&self) -> Option<&'static str> {
        let counts = [self.hourly, self.daily, self.weekly, self.monthly];
        let is_prefix = is_tree_name(&self.prefix)
            && self.prefix.len() <= PREFIX_BYTES_MAX
            && !self.prefix.contains(|c: char| c.is_whitespace() || c.is_control());
        match self.keep_free {
            _ if counts.iter().any(|count| *count > KEPT_MAX) => {
                Some("a schedule keeps at most 9999 of a class")
            }
            _ if counts == [0; 4] => Some("a schedule keeps at least one snapshot"),
            _ if !is_prefix => {
                Some("a prefix has 1 to 200 bytes, without \"/\", spaces and control characters")
            }
            KeepFree::Percent(percent) if !(1..=FREE_PERCENT_MAX).contains(&percent) => {
                Some("of a volume 1 to 90 percent can be kept free")
            }
            KeepFree::Bytes(0) => Some("to keep nothing free, leave it away"),
            _ => None,
        }
    }

    /// The item's value. Panics if something is wrong with it ([`Schedule::fault`]).
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.fault(), None, "{self:?}");
        self.to_string().into_bytes()
    }

    /// Reads an item's value. Errors: a word that is not known, comes twice, or has another value than it may have.
    pub fn decode(bytes: &[u8]) -> Result<Schedule, FormatError> {
        if bytes.len() > POLICY_BYTES_MAX {
            return Err(field("length", bytes.len() as u64));
        }
        let text = std::str::from_utf8(bytes).map_err(|error| field("text", error.valid_up_to() as u64))?;
        let mut schedule = Schedule {
            hourly: 0,
            daily: 0,
            weekly: 0,
            monthly: 0,
            keep_free: KeepFree::Nothing,
            prefix: PREFIX.to_owned(),
        };
        let mut seen = Vec::new();
        for (index, word) in text.split(' ').enumerate() {
            let wrong = || field("word", index as u64);
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            if seen.contains(&name) {
                return Err(wrong());
            }
            seen.push(name);
            let count = || number(value).and_then(|count| u16::try_from(count).ok()).ok_or_else(wrong);
            match name {
                "hourly" => schedule.hourly = count()?,
                "daily" => schedule.daily = count()?,
                "weekly" => schedule.weekly = count()?,
                "monthly" => schedule.monthly = count()?,
                "keep-free" => {
                    let found = match value.strip_suffix('%') {
                        Some(percent) => number(percent)
                            .and_then(|percent| u8::try_from(percent).ok())
                            .map(KeepFree::Percent),
                        None => number(value).map(KeepFree::Bytes),
                    };
                    schedule.keep_free = found.ok_or_else(wrong)?;
                }
                "prefix" => value.clone_into(&mut schedule.prefix),
                _ => return Err(wrong()),
            }
        }
        match schedule.fault() {
            Some(_) => Err(field("text", 0)),
            None => Ok(schedule),
        }
    }
}

/// Digits, and nothing else: what is written has one form.
fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn field(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: "policy item", field, value }
}

impl std::str::FromStr for Schedule {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Schedule, FormatError> {
        Schedule::decode(text.as_bytes())
    }
}

impl fmt::Display for Schedule {
    /// As it is stored: classes that are not used are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [self.hourly, self.daily, self.weekly, self.monthly];
        for (name, count) in ["hourly", "daily", "weekly", "monthly"].iter().zip(counts) {
            if count > 0 {
                write!(f, "{name}={count} ")?;
            }
        }
        match self.keep_free {
            KeepFree::Nothing => {}
            KeepFree::Percent(percent) => write!(f, "keep-free={percent}% ")?,
            KeepFree::Bytes(bytes) => write!(f, "keep-free={bytes} ")?,
        }
        write!(f, "prefix={}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> Schedule {
        Schedule::default()
    }

    #[test]
    fn a_schedule_is_stored_as_the_words_that_people_know() {
        assert_eq!(usual().to_string(), "hourly=24 daily=7 weekly=4 monthly=12 keep-free=10% prefix=auto");
        let largest = Schedule {
            hourly: KEPT_MAX,
            daily: KEPT_MAX,
            weekly: KEPT_MAX,
            monthly: KEPT_MAX,
            keep_free: KeepFree::Bytes(u64::MAX),
            prefix: "ä".repeat(PREFIX_BYTES_MAX / 2),
        };
        assert!(largest.encode().len() <= POLICY_BYTES_MAX);
        for schedule in [
            usual(),
            largest,
            Schedule { hourly: 0, weekly: 0, monthly: 0, keep_free: KeepFree::Nothing, ..usual() },
            Schedule { keep_free: KeepFree::Bytes(1 << 30), prefix: "a=b".to_owned(), ..usual() },
        ] {
            assert_eq!(Schedule::decode(&schedule.encode()), Ok(schedule));
        }
        let read = "daily=3".parse::<Schedule>().map(|schedule| schedule.to_string());
        assert_eq!(read.as_deref(), Ok("daily=3 prefix=auto"));
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for text in [
            "",
            "prefix=auto",
            "hourly=0 prefix=auto",
            "hourly",
            "hourly=24 prefix=",
            "hourly=24 prefix=a/b",
            "hourly=24 prefix=..",
            "hourly=24  prefix=auto",
            "hourly=24 prefix=auto ",
            "hourly=24 hourly=24 prefix=auto",
            "hourly=024 prefix=auto",
            "hourly=+24 prefix=auto",
            "hourly=10000 prefix=auto",
            "hourly=-1 prefix=auto",
            "hourly=24 yearly=1 prefix=auto",
            "hourly=24 keep-free=0 prefix=auto",
            "hourly=24 keep-free=0% prefix=auto",
            "hourly=24 keep-free=91% prefix=auto",
            "hourly=24 keep-free=% prefix=auto",
            "hourly=24 keep-free=1G prefix=auto",
        ] {
            assert!(Schedule::decode(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(Schedule::decode(b"hourly=24 prefix=\xff").is_err());
        assert!(Schedule::decode(format!("hourly=24 prefix={}", "x".repeat(500)).as_bytes()).is_err());
    }
}
