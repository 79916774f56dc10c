//! The schedule ioctl: its layout, what the daemon does for it, and the calls of programs.

use crate::ioctl::{self, SCHEDULE_BYTES};
use std::fs::File;
use std::io;
use syncline_fs::{Error, Fs, Schedule};

/// Where the text begins.
const TEXT_AT: usize = 8;

/// Flag: there is a schedule.
const EXISTS: u32 = 1;
/// Flag: less is free than it keeps free.
const PAUSED: u32 = 2;

/// `struct syncline_schedule` with what is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScheduleArgument {
    Tell,
    Set(Schedule),
    End,
}

impl ScheduleArgument {
    /// `None`: not understood, or no schedule.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ScheduleArgument> {
        let bytes: &[u8; SCHEDULE_BYTES] = bytes.try_into().ok()?;
        match u32::from_ne_bytes(*bytes.first_chunk()?) {
            1 => Some(ScheduleArgument::Tell),
            2 => Schedule::decode(text(bytes)?).ok().map(ScheduleArgument::Set),
            3 => Some(ScheduleArgument::End),
            _ => None,
        }
    }

    /// Whether it changes the volume.
    pub(crate) fn is_change(&self) -> bool {
        *self != ScheduleArgument::Tell
    }

    /// Does what is asked for, and returns what the caller gets back. `whole` knows the schedule.
    pub(crate) fn run(&self, whole: &Fs) -> Result<[u8; SCHEDULE_BYTES], Error> {
        match self {
            ScheduleArgument::Tell => {}
            ScheduleArgument::Set(schedule) => whole.schedules().set(Some(schedule))?,
            ScheduleArgument::End => whole.schedules().set(None)?,
        }
        let action = match self {
            ScheduleArgument::Tell => 1,
            ScheduleArgument::Set(_) => 2,
            ScheduleArgument::End => 3,
        };
        let told = whole.schedules().get();
        Ok(encode(action, told.as_ref(), whole.schedules().is_low()))
    }
}

/// The text up to its NUL.
fn text(bytes: &[u8; SCHEDULE_BYTES]) -> Option<&[u8]> {
    let field = &bytes[TEXT_AT..];
    Some(&field[..field.iter().position(|byte| *byte == 0)?])
}

/// A schedule's text has at most 320 bytes.
fn encode(action: u32, schedule: Option<&Schedule>, is_paused: bool) -> [u8; SCHEDULE_BYTES] {
    let mut bytes = [0; SCHEDULE_BYTES];
    let flags = (u32::from(schedule.is_some()) * EXISTS) | (u32::from(is_paused) * PAUSED);
    bytes[..4].copy_from_slice(&action.to_ne_bytes());
    bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
    if let Some(schedule) = schedule {
        let text = schedule.to_string();
        bytes[TEXT_AT..TEXT_AT + text.len()].copy_from_slice(text.as_bytes());
    }
    bytes
}

/// What a mounted volume has of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleEntry {
    /// The schedule, if there is one.
    pub schedule: Option<Schedule>,
    /// Less is free than it keeps free: none is made, and the oldest go.
    pub is_paused: bool,
}

fn call(file: &File, action: u32, schedule: Option<&Schedule>) -> io::Result<ScheduleEntry> {
    let mut bytes = encode(action, schedule, false);
    crate::control::call(file, ioctl::SCHEDULE, &mut bytes)?;
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let flags = u32::from_ne_bytes(*bytes[4..].first_chunk().ok_or_else(invalid)?);
    let told = match flags & EXISTS {
        0 => None,
        _ => Some(text(&bytes).and_then(|text| Schedule::decode(text).ok()).ok_or_else(invalid)?),
    };
    Ok(ScheduleEntry { schedule: told, is_paused: flags & PAUSED != 0 })
}

/// The schedule of the volume that an open file or directory is on.
pub fn tell(file: &File) -> io::Result<ScheduleEntry> {
    call(file, 1, None)
}

/// Gives the volume a schedule, or takes it away. Errors: EINVAL, what is wrong with it [`Schedule::fault`] says; EPERM
/// for others than administrators; EOPNOTSUPP on version 1.
pub fn set(file: &File, schedule: Option<&Schedule>) -> io::Result<ScheduleEntry> {
    match schedule {
        Some(schedule) if schedule.fault().is_some() => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        Some(schedule) => call(file, 2, Some(schedule)),
        None => call(file, 3, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_what_was_asked_for_and_what_is_no_schedule_is_refused() {
        let schedule = Schedule { prefix: "x".repeat(200), hourly: 9999, ..Schedule::default() };
        let bytes = encode(2, Some(&schedule), true);
        assert_eq!(ScheduleArgument::decode(&bytes), Some(ScheduleArgument::Set(schedule)));
        assert_eq!(ScheduleArgument::decode(&encode(1, None, false)), Some(ScheduleArgument::Tell));
        assert_eq!(ScheduleArgument::decode(&encode(3, None, false)), Some(ScheduleArgument::End));
        for action in [0, 4] {
            assert_eq!(ScheduleArgument::decode(&encode(action, None, false)), None);
        }
        assert_eq!(ScheduleArgument::decode(&encode(2, None, false)), None, "no text");
        let mut endless = bytes;
        endless[TEXT_AT..].fill(b'x');
        assert_eq!(ScheduleArgument::decode(&endless), None);
        assert_eq!(ScheduleArgument::decode(&bytes[1..]), None);
    }
}
