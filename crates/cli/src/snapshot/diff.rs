//! `syncline snapshot diff`.

use super::{Place, failed, open};
use crate::error::Failure;
use crate::output::{Form, Table, printable};
use crate::volume::LOCK_PATIENCE;
use serde_json::json;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use syncline::{Change, ChangeKind, Volume, VolumeOptions};
use syncline_fuse::{differences, snapshots};

const COLUMNS: &[(&str, usize)] = &[("change", 6), ("path", 1)];

/// What is to be compared.
pub(super) struct Compared<'a> {
    pub(super) path: &'a Path,
    pub(super) older: &'a str,
    pub(super) newer: Option<&'a str>,
    pub(super) content: bool,
}

pub(super) fn diff(compared: &Compared<'_>, form: Form) -> Result<ExitCode, Failure> {
    let Compared { path, older, newer, content } = *compared;
    let volume = match open(path, newer.is_some())? {
        Place::Own(volume) => *volume,
        Place::Mounted(directory) => return diff_of_mounted(&directory, compared, form),
    };
    let (volume, newer) = match newer {
        Some(newer) if is_head(&volume, newer).map_err(|source| failed(path, Some(newer), source))? => {
            drop(volume);
            let opened = VolumeOptions::new().head(newer).wait_for_lock(LOCK_PATIENCE).open(path);
            (opened.map_err(|source| Failure::of_volume(path, source))?, None)
        }
        newer => (volume, newer),
    };
    let changes = volume.diff(older, newer, content).map_err(|source| {
        let is_there =
            |name| volume.snapshots().is_ok_and(|all| all.iter().any(|snapshot| snapshot.name == name));
        let missing = newer.filter(|_| is_there(older)).unwrap_or(older);
        failed(path, Some(missing), source)
    })?;
    if newer.is_none() {
        volume.close().map_err(|source| Failure::of_volume(path, source))?;
    }
    print(&changes, form).map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}

/// The daemon compares.
fn diff_of_mounted(directory: &File, compared: &Compared<'_>, form: Form) -> Result<ExitCode, Failure> {
    let Compared { path, older, newer, content } = *compared;
    let changes = differences::diff(directory, older, newer, content).map_err(|source| {
        let is_there = |name| {
            snapshots::snapshots(directory).is_ok_and(|all| all.iter().any(|snapshot| snapshot.name == name))
        };
        let missing = newer.filter(|_| is_there(older)).unwrap_or(older);
        failed(path, Some(missing), source)
    })?;
    print(&changes, form).map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether it is the name of a head, and of no snapshot.
fn is_head(volume: &Volume, name: &str) -> io::Result<bool> {
    Ok(volume.heads()?.iter().any(|head| head.name == name))
}

fn print(changes: &[Change], form: Form) -> io::Result<()> {
    let mut table = Table::new(form, COLUMNS)?;
    for change in changes {
        table.row(&row(change, form))?;
    }
    table.finish()
}

fn row(change: &Change, form: Form) -> serde_json::Map<String, serde_json::Value> {
    let shown = |path: &Path| match (form, path.to_string_lossy()) {
        (Form::Text, path) if path.is_empty() => "/".to_owned(),
        (Form::Text, path) => printable(&path),
        (Form::Json, path) => path.into_owned(),
    };
    let path = shown(&change.path);
    let row = match (form, &change.kind) {
        (Form::Json, ChangeKind::Added) => json!({"change": "added", "path": path}),
        (Form::Json, ChangeKind::Removed) => json!({"change": "removed", "path": path}),
        (Form::Json, ChangeKind::Renamed { from }) => {
            json!({"change": "renamed", "path": path, "from": shown(from)})
        }
        (Form::Json, ChangeKind::Modified { content, attributes }) => {
            json!({"change": "modified", "path": path, "content": content, "attributes": attributes})
        }
        (Form::Text, ChangeKind::Added) => json!({"change": "+", "path": path}),
        (Form::Text, ChangeKind::Removed) => json!({"change": "-", "path": path}),
        (Form::Text, ChangeKind::Renamed { from }) => {
            json!({"change": "R", "path": format!("{} -> {path}", shown(from))})
        }
        (Form::Text, _) => json!({"change": "M", "path": path}),
        (Form::Json, other) => json!({"change": format!("{other:?}"), "path": path}),
    };
    match row {
        serde_json::Value::Object(row) => row,
        _ => unreachable!("each of them is an object"),
    }
}
