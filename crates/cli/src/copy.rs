//! `syncline import` and `syncline export`: files and directories copied between the host and an unmounted volume.
//!
//! One copier ([`Copier`]) works between two sides ([`Side`]): the host's files, and a volume opened in this process. What
//! is copied keeps its mode, owner, times, extended attributes, holes, and hard links among what is copied together;
//! symbolic links are copied, not followed. Each file grows beside its place and gets its name when it is whole, attributes
//! included, so that at no moment a name leads to half of a file. What exists already is refused, or with `--force` replaced. Of
//! a tree, what cannot be read (damaged, or not permitted) is told and left out, whole, so that a damaged volume can be emptied of
//! what it still has; the exit code is 1 then. A file that has lost only its extended attributes is left out too, since
//! an access list among them may be what keeps others from reading it; `syncline cat` prints its data.
//!
//! When a command returns successfully the copy is durable: the volume was closed, or the host's filesystem synced.

mod copier;
mod host;
mod side;
mod volume;

use crate::arguments::{ExportArguments, ImportArguments};
use crate::error::Failure;
use crate::output::{self, Form};
use crate::size::Size;
use copier::{Copied, Copier};
use host::Host;
use serde_json::json;
use side::{Reading, Side};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use syncline::{Error, Volume, VolumeOptions};
pub(crate) use volume::Inside;

/// How a copy is to be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// Replace what is there.
    pub(crate) force: bool,
    pub(crate) quiet: bool,
    pub(crate) form: Form,
}

/// Copies from the host into a volume.
pub(crate) fn import(arguments: &ImportArguments) -> Result<ExitCode, Failure> {
    let image = &arguments.path;
    let volume = open(image, false)?;
    let (host, inside) = (Host::without(image), Inside::new(image, volume.clone()));
    let manner =
        Manner { force: arguments.force, quiet: arguments.quiet, form: Form::json_if(arguments.json) };
    let copied = copy("importing", &host, &inside, &arguments.source, &arguments.target, manner);
    drop(inside);
    let closed = volume.close().map_err(|source| Failure::of_volume(image, source));
    let copied = copied?;
    closed?;
    report("imported", &copied, manner)
}

/// Copies out of a volume to the host.
pub(crate) fn export(arguments: &ExportArguments) -> Result<ExitCode, Failure> {
    let image = &arguments.path;
    let volume = open(image, true)?;
    let (host, inside) = (Host::without(image), Inside::new(image, volume));
    let manner =
        Manner { force: arguments.force, quiet: arguments.quiet, form: Form::json_if(arguments.json) };
    let copied = copy("exporting", &inside, &host, &arguments.source, &arguments.target, manner)?;
    report("exported", &copied, manner)
}

/// Opens an unmounted volume.
pub(crate) fn open(image: &Path, read_only: bool) -> Result<Volume, Failure> {
    let opened = VolumeOptions::new().background(!read_only).read_only(read_only).open(image);
    opened.map_err(|source| Failure::of_volume(image, source))
}

/// What came of a copy.
struct Done {
    copied: Copied,
    /// Files and directories that could not be read.
    unreadable: u64,
}

fn copy(
    what: &'static str,
    from: &dyn Side,
    to: &dyn Side,
    source: &Path,
    target: &Path,
    manner: Manner,
) -> Result<Done, Failure> {
    let bar = output::bytes_so_far(what, manner.quiet || manner.form == Form::Json);
    let mut copier = Copier::new(from, to, manner.force, bar.clone());
    let target = place(from, to, source, target)?;
    let copied = copier.copy(source, &target);
    bar.finish_and_clear();
    copied?;
    to.settle(&target).map_err(|error| Failure::Copy { what: to.show(&target), source: error })?;
    for path in copier.left_out() {
        output::tell(&format!("{path}: left out: this is the volume itself"));
    }
    Ok(Done { copied: copier.copied(), unreadable: copier.unreadable() })
}

/// Where the copy goes, as with cp(1): into a directory that exists under the source's name, or to the target's name.
/// A source that ends in `/.` means what is in the directory.
fn place(from: &dyn Side, to: &dyn Side, source: &Path, target: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::Copy { what: to.show(target), source: error };
    let is_directory = to.is_directory(target).map_err(failed)?;
    let written = source.as_os_str().as_encoded_bytes();
    let contents = written.ends_with(b"/.") || written == b"." || written == b"..";
    let name = match source.components().next_back() {
        Some(Component::Normal(name)) if !contents => Some(name),
        _ => None,
    };
    match name {
        Some(name) if is_directory => Ok(target.join(name)),
        None if !is_directory && from.is_directory(source).is_ok_and(|is| !is) => {
            Err(Failure::Copy { what: from.show(source), source: Error::NotDirectory.into() })
        }
        _ => Ok(target.to_owned()),
    }
}

fn report(done: &str, Done { copied, unreadable }: &Done, manner: Manner) -> Result<ExitCode, Failure> {
    if manner.form == Form::Json {
        let value = json!({
            "files": copied.files,
            "directories": copied.directories,
            "symbolic_links": copied.symlinks,
            "hard_links": copied.hard_links,
            "special_files": copied.special,
            "bytes": copied.bytes,
            "unreadable": unreadable,
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
    match unreadable {
        0 => Ok(ExitCode::SUCCESS),
        unreadable => Err(Failure::LeftOut { unreadable: *unreadable }),
    }
}

/// A name in the same directory for what is to replace `path`.
fn beside(path: &Path, attempt: u32) -> PathBuf {
    let mut name = std::ffi::OsString::from(format!(".syncline-{}-{attempt}-", std::process::id()));
    let full = path.file_name().unwrap_or_default().as_encoded_bytes();
    // The name need not be told apart by all of itself, and must not become too long.
    let short = &full[..full.len().min(64)];
    name.push(String::from_utf8_lossy(short).into_owned());
    path.with_file_name(name)
}

/// Bytes of a file copied at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Copies a file's data, leaving holes out; returns the bytes copied.
fn copy_data(
    size: u64,
    from: &mut dyn Reading,
    write: &mut dyn FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut copied = 0;
    let mut offset = 0;
    while let Some(run) = from.next_data(offset, size)? {
        let mut at = run.start;
        while at < run.end {
            let want = usize::try_from(run.end - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            let count = from.read_at(&mut buffer[..want], at)?;
            if count == 0 {
                // Cut off while it was read.
                return Ok(copied);
            }
            write(&buffer[..count], at)?;
            at += count as u64;
            copied += count as u64;
        }
        offset = run.end;
    }
    Ok(copied)
}
