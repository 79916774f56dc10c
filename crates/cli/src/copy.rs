//! `syncline import` and `syncline export`: files and directories copied between the host and an unmounted volume.
//!
//! One copier ([`Copier`]) works between two sides ([`Side`]): the host's files, and a volume opened in this process.
//! What is copied keeps its mode, owner, times, extended attributes, holes, and hard links among what is copied
//! together; symbolic links are copied, not followed, nor are those followed that lie where the copy goes. Each file
//! grows in a place of its own ([`place`]) and gets its name when it is whole, attributes included, so that at no
//! moment a name leads to half of a file. What exists already is refused, or with `--force` replaced. Of a tree, what
//! cannot be read (damaged, or not permitted) is told and left out, whole, so that a damaged volume can be emptied of
//! what it still has; the exit code is 1 then. A file that has lost only its extended attributes is left out too,
//! since an access list among them may be what keeps others from reading it; `syncline cat` prints its data. With
//! `--partial` such files come out as far as they can be read, with a list of what is missing.
//!
//! When a command returns successfully the copy is durable: the volume was closed, or the host's filesystem synced.
//! One that is asked to end (SIGINT, SIGTERM, SIGHUP) clears away what it was making; what was killed, the next one
//! clears away.

mod copier;
mod data;
mod estimate;
mod host;
mod place;
mod side;
mod volume;

use crate::arguments::{ExportArguments, ImportArguments};
use crate::error::Failure;
use crate::output::{self, Form};
use crate::size::Size;
use crate::snapshot;
use crate::volume::LOCK_PATIENCE;
use copier::{Copied, Copier, Damaged, Shortfall, Start};
use host::Host;
use serde_json::{Value, json};
use side::Side;
use std::path::{Component, Path};
use std::process::ExitCode;
use syncline::{Error, Volume, VolumeOptions};
use syncline_fuse::signals;
pub(crate) use volume::Inside;

/// How a copy is to be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// Replace what is there.
    pub(crate) force: bool,
    /// Copy what is damaged as far as it can be read.
    pub(crate) partial: bool,
    pub(crate) quiet: bool,
    pub(crate) form: Form,
}

/// Copies from the host into a volume.
pub(crate) fn import(arguments: &ImportArguments) -> Result<ExitCode, Failure> {
    let image = &arguments.path;
    // Before the volume has threads.
    signals::watch().map_err(Failure::io("cannot wait for signals"))?;
    let volume = open(image, false)?;
    let (host, inside) = (Host::without(image), Inside::new(image, volume.clone()));
    let form = Form::json_if(arguments.json);
    let manner = Manner { force: arguments.force, partial: false, quiet: arguments.quiet, form };
    let copied = copy("importing", &host, &inside, &arguments.source, &arguments.target, manner);
    drop(inside);
    let closed = volume.close().map_err(|source| Failure::of_volume(image, source));
    let copied = copied?;
    closed?;
    report("imported", &copied, manner, false)
}

/// Copies out of a volume to the host.
pub(crate) fn export(arguments: &ExportArguments) -> Result<ExitCode, Failure> {
    let image = &arguments.path;
    // Before the volume has threads.
    signals::watch().map_err(Failure::io("cannot wait for signals"))?;
    let volume = match arguments.partial {
        false => open(image, true)?,
        true => open_with(image, VolumeOptions::new().background(false).read_only(true).salvage(true))?,
    };
    let is_older = volume.inner().is_journal_broken();
    if is_older {
        output::tell(&format!("{}: {OLDER}", image.display()));
    }
    let volume = snapshot::view(volume, image, arguments.snapshot.as_deref())?;
    let (host, inside) = (Host::without(image), Inside::new(image, volume));
    let (partial, form) = (arguments.partial, Form::json_if(arguments.json));
    let manner = Manner { force: arguments.force, partial, quiet: arguments.quiet, form };
    let copied = copy("exporting", &inside, &host, &arguments.source, &arguments.target, manner)?;
    match report("exported", &copied, manner, is_older) {
        Ok(_) if is_older => Err(Failure::Older),
        reported => reported,
    }
}

/// Opens an unmounted volume.
pub(crate) fn open(image: &Path, read_only: bool) -> Result<Volume, Failure> {
    open_with(image, VolumeOptions::new().background(!read_only).read_only(read_only))
}

fn open_with(image: &Path, options: VolumeOptions) -> Result<Volume, Failure> {
    let opened = options.wait_for_lock(LOCK_PATIENCE).open(image);
    opened.map_err(|source| Failure::of_volume(image, source))
}

/// What a broken journal means for what is copied.
const OLDER: &str = "a part of the journal is lost: what is copied is the volume as it was before that, and content \
                     that was new then may be older still, or zeros";

/// What came of a copy.
struct Done {
    copied: Copied,
    shortfall: Shortfall,
}

fn copy<F: Side, T: Side>(
    what: &'static str,
    from: &F,
    to: &T,
    source: &Path,
    target: &Path,
    manner: Manner,
) -> Result<Done, Failure> {
    let bar = output::bytes_of(what, manner.quiet || manner.form == Form::Json);
    let (starts, ends) = place(from, to, source, target)?;
    if !bar.is_hidden() {
        bar.set_length(estimate::bytes_to_copy(from, &starts));
        // The rate is that of the copy.
        bar.reset();
    }
    let failed = |error| Failure::Copy { what: to.show(target), source: error };
    let base = to.open(&ends.base).map_err(failed)?;
    let mut copier = Copier::new(from, to, (base, ends.base.clone()), manner, bar.clone());
    let copied = copier.copy(&starts, &ends);
    bar.finish_and_clear();
    if let Some(signal) = signals::received() {
        return Err(Failure::Ended { signal });
    }
    copied?;
    copier.settle().map_err(failed)?;
    let Copier { copied, shortfall, .. } = copier;
    for path in &shortfall.the_volume {
        output::tell(&format!("{path}: left out: this is the volume itself"));
    }
    Ok(Done { copied, shortfall })
}

/// From where to where the copy goes, as with cp(1): into a directory that exists under the source's name, or to the
/// target's name. A source that ends in `/.` means what is in the directory.
fn place<F: Side, T: Side>(
    from: &F,
    to: &T,
    source: &Path,
    target: &Path,
) -> Result<(Start, Start), Failure> {
    let failed = |error| Failure::Copy { what: to.show(target), source: error };
    let is_directory = to.is_directory(target).map_err(failed)?;
    let written = source.as_os_str().as_encoded_bytes();
    let contents = written.ends_with(b"/.") || written == b"." || written == b"..";
    let name = match source.components().next_back() {
        Some(Component::Normal(name)) if !contents => Some(name.to_owned()),
        _ => None,
    };
    let starts = match &name {
        Some(name) => Start { base: source.parent().unwrap_or(source).to_owned(), name: Some(name.clone()) },
        None if from.is_directory(source).is_ok_and(|is| !is) => {
            return Err(Failure::Copy { what: from.show(source), source: Error::NotDirectory.into() });
        }
        None => Start { base: source.to_owned(), name: None },
    };
    let ends = match (is_directory, target.file_name()) {
        (true, _) => Start { base: target.to_owned(), name },
        (false, Some(name)) => {
            Start { base: target.parent().unwrap_or(target).to_owned(), name: Some(name.to_owned()) }
        }
        (false, None) => return Err(failed(Error::NotFound.into())),
    };
    Ok((starts, ends))
}

fn report(
    done: &str,
    Done { copied, shortfall }: &Done,
    manner: Manner,
    is_older: bool,
) -> Result<ExitCode, Failure> {
    if manner.form == Form::Json {
        let value = json!({
            "files": copied.files,
            "directories": copied.directories,
            "symbolic_links": copied.symlinks,
            "hard_links": copied.hard_links,
            "special_files": copied.special,
            "bytes": copied.bytes,
            "unreadable": shortfall.unreadable,
            "changed": shortfall.changed,
            "older": is_older,
            "damaged": shortfall.damaged.iter().map(damage).collect::<Vec<_>>(),
        });
        output::object(Form::Json, &value).map_err(Failure::io("cannot print"))?;
    } else if !manner.quiet {
        let counted =
            |count: u64, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
        output::line(&format!(
            "{done} {}, {}, {}, {}",
            counted(copied.files, "file", "files"),
            counted(copied.directories, "directory", "directories"),
            counted(
                copied.symlinks + copied.hard_links + copied.special,
                "link or special file",
                "links and special files"
            ),
            Size(copied.bytes)
        ))?;
    }
    let (unreadable, changed) = (shortfall.unreadable, shortfall.changed);
    match (unreadable, changed, shortfall.damaged.len() as u64) {
        (0, 0, 0) => Ok(ExitCode::SUCCESS),
        (unreadable, changed, damaged) => Err(Failure::LeftOut { unreadable, changed, damaged }),
    }
}

fn damage(damaged: &Damaged) -> Value {
    let lost = damaged.lost.iter();
    json!({
        "path": damaged.path,
        "lost": lost.map(|lost| json!({ "start": lost.bytes.start, "end": lost.bytes.end })).collect::<Vec<_>>(),
        "without_attributes": damaged.without_attributes,
    })
}
