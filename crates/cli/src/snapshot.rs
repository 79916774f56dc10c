//! `syncline snapshot`: snapshots of a volume in an image or on a device, or of a mounted one by its directory.

mod diff;
mod schedule;
mod usage;

use crate::arguments::{Age, SnapshotAction, SnapshotArguments};
use crate::copy;
use crate::error::Failure;
use crate::list::date_of;
use crate::output::{self, Form, Table, printable};
use crate::volume::uuid_text;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;
use syncline::{SnapshotOptions, Volume};
use syncline_format::tree_item::is_tree_name;
use syncline_fuse::snapshots;

const COLUMNS: &[(&str, usize)] =
    &[("made", 19), ("uuid", 36), ("held", 4), ("scheduled", 9), ("expires", 19), ("name", 1)];
const HEAD_COLUMNS: &[(&str, usize)] =
    &[("made", 19), ("uuid", 36), ("default", 7), ("parent", 16), ("name", 1)];

/// What is told of a snapshot.
struct Listed {
    name: String,
    uuid: [u8; 16],
    made: SystemTime,
    number: u32,
    held: bool,
    scheduled: bool,
    expires: Option<SystemTime>,
}

/// A head as it is listed.
struct Branch {
    name: String,
    uuid: [u8; 16],
    made: SystemTime,
    is_default: bool,
    parent: Option<String>,
}

/// The volume, wherever it is.
enum Place {
    /// In an image or on a device that nobody has.
    Own(Box<Volume>),
    /// Below a directory.
    Mounted(File),
}

pub(crate) fn run(arguments: &SnapshotArguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        SnapshotAction::Create { target, name, json, hold, expires } => {
            let expires = expires.map(|Age(age)| SystemTime::now() + age);
            let made = change(target, Some(name), |place| place.create(name, *hold, expires))?;
            if *json {
                let row = Value::Object(row(&made, Form::Json));
                output::object(Form::Json, &row).map_err(Failure::io("cannot print"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        SnapshotAction::List { target, json, heads } if *heads => list_heads(target, Form::json_if(*json)),
        SnapshotAction::List { target, json, .. } => list(target, Form::json_if(*json)),
        SnapshotAction::Delete { target, names, wait, json } => {
            for name in names {
                change(target, Some(name), |place| place.delete(name, *wait))?;
            }
            tell(*json, &json!({ "deleted": names }))
        }
        SnapshotAction::Clone { target, name, head, json } => {
            let place = open(target, false)?;
            let made = place.clone_snapshot(name, head).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => failed(target, Some(name), source),
                _ => failed(target, Some(head), source),
            });
            let closed = place.close(target);
            let made = made?;
            closed?;
            tell(*json, &Value::Object(head_row(&made, Form::Json)))
        }
        SnapshotAction::Rollback { target, name, keep, json } => {
            let volume = match open(target, false)? {
                Place::Own(volume) => *volume,
                Place::Mounted(_) => return Err(Failure::RollbackOfMounted { path: target.to_owned() }),
            };
            let rolled = volume.rollback(name, keep.as_deref());
            rolled.map_err(|source| match (source.kind(), keep) {
                (io::ErrorKind::NotFound, _) | (_, None) => failed(target, Some(name), source),
                (_, Some(keep)) => failed(target, Some(keep), source),
            })?;
            tell(*json, &json!({ "rolled_back_to": name, "kept": keep }))
        }
        SnapshotAction::Diff { json, content, target, older, newer } => {
            let newer = newer.as_deref();
            let compared = diff::Compared { path: target, older, newer, content: *content };
            diff::diff(&compared, Form::json_if(*json))
        }
        SnapshotAction::Hold { target, names, json } => {
            set_held(target, names, true)?;
            tell(*json, &json!({ "held": names }))
        }
        SnapshotAction::Release { target, names, json } => {
            set_held(target, names, false)?;
            tell(*json, &json!({ "released": names }))
        }
        SnapshotAction::Schedule { action } => schedule::run(action),
        SnapshotAction::Usage { json, target, names } => usage::usage(target, names, Form::json_if(*json)),
        SnapshotAction::Rename { target, name, to, json } => {
            rename(target, name, to)?;
            tell(*json, &json!({ "renamed": name, "name": to }))
        }
    }
}

/// What was done, for programs; people see that nothing went wrong.
fn tell(json: bool, done: &Value) -> Result<ExitCode, Failure> {
    if json {
        output::object(Form::Json, done).map_err(Failure::io("cannot print"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn set_held(path: &Path, names: &[String], held: bool) -> Result<(), Failure> {
    for name in names {
        change(path, Some(name), |place| place.hold(name, held))?;
    }
    Ok(())
}

/// What is wrong with the new name is said of that.
fn rename(path: &Path, name: &str, to: &str) -> Result<(), Failure> {
    let place = open(path, false)?;
    let renamed = place.rename(name, to).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => failed(path, Some(name), source),
        _ => failed(path, Some(to), source),
    });
    let closed = place.close(path);
    renamed.and(closed)
}

fn open(path: &Path, read_only: bool) -> Result<Place, Failure> {
    if path.is_dir() {
        let directory = File::open(path).map_err(Failure::io(format!("cannot open {}", path.display())))?;
        return Ok(Place::Mounted(directory));
    }
    Ok(Place::Own(Box::new(copy::open(path, read_only)?)))
}

/// Opens the volume, changes it and closes it.
fn change<T>(
    path: &Path,
    name: Option<&str>,
    change: impl FnOnce(&Place) -> io::Result<T>,
) -> Result<T, Failure> {
    let place = open(path, false)?;
    let changed = change(&place).map_err(|source| failed(path, name, source));
    let closed = place.close(path);
    let changed = changed?;
    closed.map(|()| changed)
}

impl Place {
    fn close(self, path: &Path) -> Result<(), Failure> {
        match self {
            Place::Own(volume) => volume.close().map_err(|source| Failure::of_volume(path, source)),
            Place::Mounted(_) => Ok(()),
        }
    }

    fn clone_snapshot(&self, of: &str, head: &str) -> io::Result<Branch> {
        match self {
            Place::Own(volume) => volume.clone_snapshot(of, head).map(Branch::from),
            Place::Mounted(directory) => snapshots::make_head(directory, of, head).map(Branch::from),
        }
    }

    fn heads(&self) -> io::Result<Vec<Branch>> {
        match self {
            Place::Own(volume) => Ok(volume.heads()?.into_iter().map(Branch::from).collect()),
            Place::Mounted(directory) => {
                Ok(snapshots::heads(directory)?.into_iter().map(Branch::from).collect())
            }
        }
    }

    fn create(&self, name: &str, held: bool, expires: Option<SystemTime>) -> io::Result<Listed> {
        match self {
            Place::Own(volume) => {
                let options = SnapshotOptions::new().held(held);
                let options = expires.into_iter().fold(options, SnapshotOptions::expires);
                volume.snapshot_with(name, &options).map(Listed::from)
            }
            Place::Mounted(directory) => {
                snapshots::make_snapshot(directory, name, held, expires).map(Listed::from)
            }
        }
    }

    fn delete(&self, name: &str, wait: bool) -> io::Result<()> {
        match self {
            Place::Own(volume) => {
                match volume.delete_snapshot(name) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => volume.delete_head(name)?,
                    deleted => deleted?,
                }
                if wait { volume.reclaim() } else { Ok(()) }
            }
            Place::Mounted(_) if wait => Err(io::Error::other(
                "--wait is for a volume that is not mounted; a mounted one gives the space back in the background",
            )),
            Place::Mounted(directory) => match snapshots::delete_snapshot(directory, name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => delete_head(directory, name),
                deleted => deleted,
            },
        }
    }

    fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        match self {
            Place::Own(volume) => volume.rename_snapshot(name, to),
            Place::Mounted(directory) => snapshots::rename_snapshot(directory, name, to),
        }
    }

    fn hold(&self, name: &str, held: bool) -> io::Result<()> {
        match self {
            Place::Own(volume) if held => volume.hold_snapshot(name),
            Place::Own(volume) => volume.release_snapshot(name),
            Place::Mounted(directory) => snapshots::hold_snapshot(directory, name, held),
        }
    }

    fn list(&self) -> io::Result<Vec<Listed>> {
        match self {
            Place::Own(volume) => Ok(volume.snapshots()?.into_iter().map(Listed::from).collect()),
            Place::Mounted(directory) => {
                Ok(snapshots::snapshots(directory)?.into_iter().map(Listed::from).collect())
            }
        }
    }
}

impl From<syncline::Snapshot> for Listed {
    fn from(snapshot: syncline::Snapshot) -> Listed {
        let syncline::Snapshot { name, uuid, made, number, held, scheduled, expires, .. } = snapshot;
        Listed { name, uuid, made, number, held, scheduled, expires }
    }
}

impl From<syncline::HeadInfo> for Branch {
    fn from(head: syncline::HeadInfo) -> Branch {
        let syncline::HeadInfo { name, uuid, made, is_default, parent, .. } = head;
        Branch { name, uuid, made, is_default, parent }
    }
}

impl From<snapshots::HeadEntry> for Branch {
    fn from(head: snapshots::HeadEntry) -> Branch {
        let snapshots::HeadEntry { name, uuid, made, is_default, parent } = head;
        Branch { name, uuid, made, is_default, parent }
    }
}

impl From<snapshots::SnapshotEntry> for Listed {
    fn from(entry: snapshots::SnapshotEntry) -> Listed {
        let snapshots::SnapshotEntry { name, uuid, made, number, held, scheduled, expires } = entry;
        Listed { name, uuid, made, number, held, scheduled, expires }
    }
}

/// The snapshot of an open volume that a command is to look at.
pub(crate) fn view(volume: Volume, image: &Path, name: Option<&str>) -> Result<Volume, Failure> {
    let Some(name) = name else { return Ok(volume) };
    volume.at(name).map_err(|source| failed(image, Some(name), source))
}

fn failed(path: &Path, name: Option<&str>, source: io::Error) -> Failure {
    let (path, name) = (path.to_owned(), name.unwrap_or_default().to_owned());
    match (source.kind(), source.raw_os_error()) {
        (_, _) if is_held(&source) => Failure::SnapshotHeld { path, name },
        (io::ErrorKind::NotFound, _) => Failure::NoSnapshot { path, name },
        (io::ErrorKind::AlreadyExists, _) => Failure::SnapshotExists { path, name },
        (io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename, _) if !is_tree_name(&name) => {
            Failure::SnapshotName { path, name }
        }
        (io::ErrorKind::StorageFull, Some(_)) => Failure::NoRoomForSnapshot { path, name },
        (io::ErrorKind::PermissionDenied, _) => Failure::SnapshotsOfOthers { path },
        (io::ErrorKind::Unsupported, _) => Failure::NoSnapshots { path },
        // ENOTTY; the standard library has no kind for it.
        (_, Some(25)) => Failure::NoVolumeThere { path },
        _ => Failure::Snapshot { path, name, source },
    }
}

/// Whether it says that a snapshot cannot be deleted. Of a mounted volume EBUSY says nothing else.
fn is_held(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<syncline::Error>());
    match inner {
        Some(inner) => inner.is_held_snapshot(),
        // EBUSY.
        None => error.raw_os_error() == Some(16),
    }
}

fn list(path: &Path, form: Form) -> Result<ExitCode, Failure> {
    let listed = open(path, true)?.list().map_err(|source| failed(path, None, source))?;
    let printed = || -> io::Result<()> {
        let mut table = Table::new(form, COLUMNS)?;
        for snapshot in &listed {
            table.row(&row(snapshot, form))?;
        }
        table.finish()
    };
    printed().map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}

/// Of a mounted volume. EBUSY says of a head that somebody has it, and of a snapshot that it is held.
fn delete_head(directory: &File, name: &str) -> io::Result<()> {
    snapshots::delete_head(directory, name).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => io::Error::other(format!(
            "the head \"{name}\" is mounted, or is the one that is shown when nobody names one: unmount it first"
        )),
        _ => error,
    })
}

fn list_heads(path: &Path, form: Form) -> Result<ExitCode, Failure> {
    let heads = open(path, true)?.heads().map_err(|source| failed(path, None, source))?;
    let printed = || -> io::Result<()> {
        let mut table = Table::new(form, HEAD_COLUMNS)?;
        for head in &heads {
            table.row(&head_row(head, form))?;
        }
        table.finish()
    };
    printed().map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}

fn head_row(head: &Branch, form: Form) -> Map<String, Value> {
    let shown = |text: &str| match form {
        Form::Json => text.to_owned(),
        Form::Text => printable(text),
    };
    let parent = head.parent.as_deref().map(shown);
    let (yes, none) = match form {
        Form::Json => (json!(head.is_default), Value::Null),
        Form::Text => (json!(if head.is_default { "yes" } else { "no" }), json!("-")),
    };
    // A volume's first head is as old as the volume, and has no number of its own.
    let is_first = head.uuid == [0; 16];
    let unless_first = |text: String| if is_first { none.clone() } else { json!(text) };
    let columns = [
        ("made", unless_first(date_of(head.made))),
        ("uuid", unless_first(uuid_text(&head.uuid))),
        ("default", yes),
        ("parent", parent.map_or(none.clone(), |parent| json!(parent))),
        ("name", json!(shown(&head.name))),
    ];
    columns.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn row(snapshot: &Listed, form: Form) -> Map<String, Value> {
    let name = match form {
        Form::Json => snapshot.name.clone(),
        Form::Text => printable(&snapshot.name),
    };
    let columns = [
        ("made", json!(date_of(snapshot.made))),
        ("uuid", json!(uuid_text(&snapshot.uuid))),
        ("held", json!(snapshot.held)),
        ("scheduled", json!(snapshot.scheduled)),
        ("expires", json!(snapshot.expires.map(date_of))),
        ("name", json!(name)),
    ];
    columns.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
