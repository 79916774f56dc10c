//! `syncline mkfs` and `mkfs.syncline`.
//!
//! Everything that can be refused is refused before anything is written or created: the label, the UUID, the sizes,
//! and content that looks like somebody's data.

use crate::arguments::MkfsArguments;
use crate::error::Failure;
use crate::output;
use crate::size::Size;
use crate::volume::{LOCK_PATIENCE, open_to_read, superblocks, uuid_parse, uuid_text};
use serde_json::json;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use syncline::{MkfsOptions, SystemClock, SystemEntropy};
use syncline_device::{
    Device, FileDevice, OpenError, OpenOptions, OpenStep, Signature, device_holds_unknown_data,
    holds_unknown_data, probe, probe_device,
};
use syncline_format::layout::{Layout, VOLUME_BLOCKS_MAX, VOLUME_BLOCKS_MIN};
use syncline_fs::Fs;

/// Longest label, in bytes.
const LABEL_BYTES_MAX: usize = 64;

/// Makes a volume.
pub(crate) fn run(arguments: &MkfsArguments) -> Result<ExitCode, Failure> {
    if arguments.label.len() > LABEL_BYTES_MAX {
        return Err(Failure::Label { bytes: arguments.label.len() });
    }
    let uuid = match &arguments.uuid {
        Some(text) => uuid_parse(text)?,
        None => random_uuid()?,
    };
    let path = arguments.path.as_path();
    if syncline_source::is_address(path) {
        return run_at_address(arguments, uuid);
    }
    let existing = existing_size(path)?;
    if existing.is_some() && !arguments.force {
        refuse_foreign(path)?;
    }
    let layout = layout(arguments, existing)?;
    make(arguments, existing, &layout, uuid)?;
    report(arguments, &layout, &uuid)?;
    Ok(ExitCode::SUCCESS)
}

/// The same where no path leads: what is looked at is what is open.
fn run_at_address(arguments: &MkfsArguments, uuid: [u8; 16]) -> Result<ExitCode, Failure> {
    let path = arguments.path.as_path();
    let opened = syncline_source::open(path, &OpenOptions::default().wait_for_lock(LOCK_PATIENCE))?;
    let device = opened.device();
    if !arguments.force {
        let failed = |source| Failure::Device { path: path.to_owned(), source };
        let signature = probe_device(device).map_err(failed)?;
        let is_lost = signature.is_none() && superblocks(device, path)?.are_lost();
        let unknown = device_holds_unknown_data(device).map_err(failed)?;
        refuse(path, signature, is_lost, unknown)?;
    }
    let layout = layout(arguments, Some(Size::of_blocks(device.blocks())))?;
    format(arguments, device, &layout, uuid).map_err(|source| Failure::Volume {
        path: path.to_owned(),
        source,
        advice: NO_USABLE_VOLUME,
    })?;
    report(arguments, &layout, &uuid)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens or creates the image or device, and writes the volume.
fn make(
    arguments: &MkfsArguments,
    existing: Option<Size>,
    layout: &Layout,
    uuid: [u8; 16],
) -> Result<(), Failure> {
    let path = arguments.path.as_path();
    // A file that was made for it and is no volume is worth nothing. The failure that led to it is the one to tell.
    let take_back = || {
        if existing.is_none() {
            let _ = fs::remove_file(path);
        }
    };
    let device = match (arguments.size, existing) {
        (Some(size), Some(has)) if size <= has => {
            FileDevice::open(path, &OpenOptions::default().wait_for_lock(LOCK_PATIENCE))?
        }
        (Some(size), _) => FileDevice::create(path, size.0).map_err(|error| match error {
            OpenError::Io { step: OpenStep::Resize, errno, .. } => {
                take_back();
                let source = std::io::Error::from_raw_os_error(errno);
                Failure::ImageSize { path: path.to_owned(), size, source }
            }
            error => error.into(),
        })?,
        (None, _) => FileDevice::open(path, &OpenOptions::default().wait_for_lock(LOCK_PATIENCE))?,
    };
    if !device.direct() && !arguments.quiet {
        output::tell(&format!(
            "{}: the host refuses direct I/O here, its page cache is used instead",
            path.display()
        ));
    }
    format(arguments, &device, layout, uuid).map_err(|source| {
        take_back();
        let advice = match existing {
            Some(_) => NO_USABLE_VOLUME,
            None => "no volume was made",
        };
        Failure::Volume { path: path.to_owned(), source, advice }
    })
}

const NO_USABLE_VOLUME: &str = "the device holds no usable volume now";

/// Writes the volume.
fn format(
    arguments: &MkfsArguments,
    device: &dyn Device,
    layout: &Layout,
    uuid: [u8; 16],
) -> Result<(), syncline::Error> {
    let options = MkfsOptions::default()
        .uuid(uuid)
        .label(&arguments.label)
        .format(arguments.format)
        .journal_bytes(Size::of_blocks(layout.journal_blocks).0)
        .size_bytes(Size::of_blocks(layout.blocks).0)
        // An image made by a user is the user's, when it is mounted, too.
        .root_uid(rustix::process::geteuid().as_raw())
        .root_gid(rustix::process::getegid().as_raw());
    let bar = output::progress("writing the journal", arguments.quiet || arguments.json);
    let formatted = Fs::format(device, &options, &SystemClock, &SystemEntropy::default(), &mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    formatted
}

/// Bytes of what the path names; `None` if there is nothing.
fn existing_size(path: &Path) -> Result<Option<Size>, Failure> {
    use std::io::{Seek, SeekFrom};
    // Before it is opened, which waits for a writer where it is a pipe.
    let kind = fs::metadata(path).map(|metadata| metadata.file_type());
    if kind.is_ok_and(|kind| !kind.is_file() && !kind.is_block_device()) {
        return Err(OpenError::WrongType { path: path.to_owned() }.into());
    }
    match open_to_look(path) {
        // A device's metadata says 0; its end tells.
        Ok(mut file) => {
            let end = file.seek(SeekFrom::End(0));
            end.map(|bytes| Some(Size(bytes)))
                .map_err(Failure::io(format!("cannot inspect {}", path.display())))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io(format!("cannot open {}", path.display()))(error)),
    }
}

/// Opens what may have become a pipe since it was looked at; never waits for a writer.
fn open_to_look(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    File::options().read(true).custom_flags(flags.bits() as i32).open(path)
}

/// Refuses what another program may still need.
fn refuse_foreign(path: &Path) -> Result<(), Failure> {
    let signature = probe(path)?;
    let is_lost = signature.is_none() && superblocks(&*open_to_read(path)?, path)?.are_lost();
    refuse(path, signature, is_lost, holds_unknown_data(path)?)
}

fn refuse(path: &Path, signature: Option<Signature>, is_lost: bool, unknown: bool) -> Result<(), Failure> {
    let found = match signature {
        Some(signature) => format!("data already: {signature}"),
        None if is_lost => "a Syncline volume whose superblocks were overwritten".to_owned(),
        None if unknown => "data already, of an unknown kind".to_owned(),
        None => return Ok(()),
    };
    Err(Failure::Foreign { path: path.to_owned(), found })
}

/// The geometry asked for, or the sentence why it is impossible.
fn layout(arguments: &MkfsArguments, existing: Option<Size>) -> Result<Layout, Failure> {
    let path = || arguments.path.clone();
    let size = match (arguments.size, existing) {
        (None, None) => return Err(Failure::Missing { path: path() }),
        (None, Some(has)) => has,
        (Some(size), Some(has)) if size > has && !is_regular(&arguments.path) => {
            return Err(Failure::DeviceSmaller { path: path(), has, wanted: size });
        }
        (Some(size), _) => size,
    };
    if !(VOLUME_BLOCKS_MIN..=VOLUME_BLOCKS_MAX).contains(&size.blocks()) {
        return Err(Failure::VolumeSize { path: path(), size });
    }
    Layout::new(size.blocks(), arguments.journal_size.map(Size::blocks)).map_err(|_| Failure::JournalSize {
        path: path(),
        size: arguments.journal_size.unwrap_or(Size(0)),
        volume: size,
    })
}

fn is_regular(path: &Path) -> bool {
    !syncline_source::is_address(path) && fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// A random UUID (version 4, variant 1).
fn random_uuid() -> Result<[u8; 16], Failure> {
    let mut uuid = [0; 16];
    let random = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut uuid));
    random.map_err(Failure::io("cannot read /dev/urandom"))?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

fn report(arguments: &MkfsArguments, layout: &Layout, uuid: &[u8; 16]) -> Result<(), Failure> {
    let (size, journal) = (Size::of_blocks(layout.blocks), Size::of_blocks(layout.journal_blocks));
    let free = Size::of_blocks(layout.data_blocks());
    if arguments.json {
        let made = json!({
            "path": arguments.path.display().to_string(),
            "uuid": uuid_text(uuid),
            "label": arguments.label,
            "bytes": size.0,
            "journal_bytes": journal.0,
            "data_bytes": free.0,
        });
        return output::object(output::Form::Json, &made).map_err(Failure::io("cannot print"));
    }
    if !arguments.quiet {
        return output::line(&format!(
            "{}: a volume of {size}, {journal} of it journal; UUID {}",
            arguments.path.display(),
            uuid_text(uuid)
        ));
    }
    Ok(())
}
