//! `syncline snapshot usage`.

use super::{Listed, Place, failed, open};
use crate::error::Failure;
use crate::output::{Form, Table, printable};
use crate::size::Size;
use serde_json::{Map, Value, json};
use std::io;
use std::path::Path;
use std::process::ExitCode;
use syncline_fuse::snapshots;

const COLUMNS: &[(&str, usize)] = &[("usage", 12), ("name", 1)];

/// EROFS.
const READ_ONLY: i32 = 30;

/// What snapshots have alone.
struct Usage {
    each: Vec<(String, u64)>,
    together: u64,
}

pub(super) fn usage(path: &Path, names: &[String], form: Form) -> Result<ExitCode, Failure> {
    let mut place = open(path, true)?;
    let all = place.list().map_err(|source| failed(path, None, source))?;
    let chosen = match names {
        [] => all.iter().collect::<Vec<_>>(),
        names => {
            let named = |name: &String| {
                let missing = || failed(path, Some(name), io::ErrorKind::NotFound.into());
                all.iter().find(|snapshot| snapshot.name == *name).ok_or_else(missing)
            };
            names.iter().map(named).collect::<Result<_, _>>()?
        }
    };
    let mut found = place.usage(&chosen);
    if found.as_ref().is_err_and(|error| syncline::errno(error) == READ_ONLY) {
        // It was not closed: what is in its journal only has to be written first.
        place = open(path, false)?;
        found = place.usage(&chosen);
    }
    let found = found.map_err(|source| failed(path, names.first().map(String::as_str), source));
    if let Place::Own(volume) = place {
        volume.close().map_err(|source| Failure::of_volume(path, source))?;
    }
    print(&found?, form).map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}

impl Place {
    fn usage(&self, of: &[&Listed]) -> io::Result<Usage> {
        let together = self.usage_of(of)?;
        let each = match of {
            [one] => vec![(one.name.clone(), together)],
            several => {
                let each = several.iter().map(|one| Ok((one.name.clone(), self.usage_of(&[*one])?)));
                each.collect::<io::Result<_>>()?
            }
        };
        Ok(Usage { each, together })
    }

    fn usage_of(&self, of: &[&Listed]) -> io::Result<u64> {
        match self {
            Place::Own(volume) => {
                volume.snapshot_usage(&of.iter().map(|one| one.name.as_str()).collect::<Vec<_>>())
            }
            Place::Mounted(directory) => {
                snapshots::snapshot_usage(directory, &of.iter().map(|one| one.number).collect::<Vec<_>>())
            }
        }
    }
}

fn print(usage: &Usage, form: Form) -> io::Result<()> {
    let mut table = Table::new(form, COLUMNS)?;
    for (name, bytes) in &usage.each {
        table.row(&row(*bytes, json!(name), form))?;
    }
    if form == Form::Json || usage.each.len() != 1 {
        table.row(&row(usage.together, Value::Null, form))?;
    }
    table.finish()
}

/// Without a name: of all together.
fn row(bytes: u64, name: Value, form: Form) -> Map<String, Value> {
    let columns = match (form, name) {
        (Form::Json, name) => [("usage", json!(bytes)), ("name", name)],
        (Form::Text, Value::String(name)) => {
            [("usage", json!(Size(bytes).to_string())), ("name", json!(printable(&name)))]
        }
        (Form::Text, _) => [("usage", json!(Size(bytes).to_string())), ("name", json!("(together)"))],
    };
    columns.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
