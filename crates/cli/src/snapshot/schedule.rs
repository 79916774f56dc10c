//! `syncline snapshot schedule`.

use super::{Place, failed, open};
use crate::arguments::ScheduleAction;
use crate::error::Failure;
use crate::output::{self, Form};
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::process::ExitCode;
use syncline::{KeepFree, Schedule};

/// What is told of a schedule.
struct Told {
    schedule: Option<Schedule>,
    is_paused: bool,
}

pub(super) fn run(action: &ScheduleAction) -> Result<ExitCode, Failure> {
    match action {
        ScheduleAction::Set { json, hourly, daily, weekly, monthly, keep_free, prefix, target } => {
            let classes = [*hourly, *daily, *weekly, *monthly];
            let usual = Schedule::default();
            let usual = [usual.hourly, usual.daily, usual.weekly, usual.monthly];
            let [hourly, daily, weekly, monthly] = match classes.iter().all(Option::is_none) {
                true => usual,
                false => classes.map(Option::unwrap_or_default),
            };
            let (keep_free, prefix) = (keep_free.0, prefix.clone());
            let schedule = Schedule { hourly, daily, weekly, monthly, keep_free, prefix };
            if let Some(why) = schedule.fault() {
                return Err(Failure::Schedule { why });
            }
            let told = change(target, Some(&schedule))?;
            if *json { print(&told, Form::Json) } else { Ok(ExitCode::SUCCESS) }
        }
        ScheduleAction::Off { json, target } => {
            let told = change(target, None)?;
            if *json { print(&told, Form::Json) } else { Ok(ExitCode::SUCCESS) }
        }
        ScheduleAction::Show { json, target } => {
            let told = open(target, true)?.schedule().map_err(|source| of(target, source))?;
            print(&told, Form::json_if(*json))
        }
    }
}

fn change(path: &Path, schedule: Option<&Schedule>) -> Result<Told, Failure> {
    let place = open(path, false)?;
    let told = place.set_schedule(schedule).map_err(|source| of(path, source));
    let closed = place.close(path);
    let told = told?;
    closed.map(|()| told)
}

fn of(path: &Path, source: io::Error) -> Failure {
    if source.kind() == io::ErrorKind::StorageFull {
        return Failure::ScheduleOf { path: path.to_owned(), source };
    }
    match failed(path, None, source) {
        Failure::Snapshot { path, source, .. } => Failure::ScheduleOf { path, source },
        failure => failure,
    }
}

impl Place {
    fn schedule(&self) -> io::Result<Told> {
        match self {
            Place::Own(volume) => {
                Ok(Told { schedule: volume.schedule()?, is_paused: volume.is_schedule_paused()? })
            }
            Place::Mounted(directory) => syncline_fuse::schedule::tell(directory).map(Told::from),
        }
    }

    fn set_schedule(&self, schedule: Option<&Schedule>) -> io::Result<Told> {
        match self {
            Place::Own(volume) => {
                volume.set_schedule(schedule)?;
                self.schedule()
            }
            Place::Mounted(directory) => syncline_fuse::schedule::set(directory, schedule).map(Told::from),
        }
    }
}

impl From<syncline_fuse::schedule::ScheduleEntry> for Told {
    fn from(entry: syncline_fuse::schedule::ScheduleEntry) -> Told {
        Told { schedule: entry.schedule, is_paused: entry.is_paused }
    }
}

fn print(told: &Told, form: Form) -> Result<ExitCode, Failure> {
    let Told { schedule, is_paused } = told;
    let shown = match (schedule, form) {
        (None, Form::Json) => json!({ "schedule": null }),
        (None, Form::Text) => json!({ "schedule": "none" }),
        (Some(schedule), _) => {
            let keep_free = match schedule.keep_free {
                KeepFree::Nothing => Value::Null,
                KeepFree::Percent(percent) => json!(format!("{percent}%")),
                KeepFree::Bytes(bytes) => json!(bytes),
            };
            json!({
                "schedule": schedule.to_string(),
                "hourly": schedule.hourly,
                "daily": schedule.daily,
                "weekly": schedule.weekly,
                "monthly": schedule.monthly,
                "keep_free": keep_free,
                "prefix": schedule.prefix,
                // Less is free than it keeps free: none is made, and the oldest go.
                "paused": is_paused,
            })
        }
    };
    output::object(form, &shown).map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}
