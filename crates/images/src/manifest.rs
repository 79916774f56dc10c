//! What a reader finds on a volume, as text: one line per name, sorted, each followed by its extended attributes.
//!
//! `f 100644 0:0 links=1 size=5 blocks=8 time=1700000000.000001000 hash=... "path"`. Symbolic links end in `->
//! "target"`, device nodes have `rdev=`. Blocks of a file whose newest content is only in the journal appear with
//! recovery; the manifest leaves them out.
//!
//! Snapshots and other heads follow, each behind a line of its own: `snapshot "name"`, `head "name"`.

use std::fmt::Write;
use std::io;
use std::path::Path;
use syncline::{Metadata, Volume};
use syncline_format::checksum;
use syncline_format::item::{MODE_BLOCK, MODE_CHARACTER, MODE_FIFO, MODE_SOCKET, MODE_TYPE_MASK};

/// The whole volume: the head that is open, then each snapshot and each other head behind a line with its name.
pub fn of(volume: &Volume) -> io::Result<String> {
    let mut whole = of_tree(volume)?;
    for snapshot in volume.snapshots()? {
        let name = snapshot.name;
        whole += &format!("snapshot {name:?}\n{}", of_tree(&volume.at(&name)?)?);
    }
    for head in volume.heads()?.into_iter().filter(|head| !head.is_default) {
        let name = head.name;
        whole += &format!("head {name:?}\n{}", of_tree(&volume.head(&name)?)?);
    }
    Ok(whole)
}

/// What one tree shows.
pub fn of_tree(volume: &Volume) -> io::Result<String> {
    let mut lines = Vec::new();
    let mut pending = vec![std::path::PathBuf::from("/")];
    while let Some(path) = pending.pop() {
        let metadata = volume.symlink_metadata(&path)?;
        lines.push((path.clone(), entry(volume, &path, &metadata)?));
        if metadata.is_dir() {
            for found in volume.read_dir(&path)? {
                pending.push(found?.path());
            }
        }
    }
    lines.sort();
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

fn entry(volume: &Volume, path: &Path, metadata: &Metadata) -> io::Result<String> {
    let attr = metadata.attr();
    let letter = match attr.mode & MODE_TYPE_MASK {
        _ if metadata.is_dir() => 'd',
        _ if metadata.is_file() => 'f',
        _ if metadata.is_symlink() => 'l',
        MODE_FIFO => 'p',
        MODE_SOCKET => 's',
        MODE_CHARACTER => 'c',
        MODE_BLOCK => 'b',
        other => return Err(io::Error::other(format!("{}: type {other:o}", path.display()))),
    };
    let mut line = format!(
        "{letter} {:o} {}:{} links={} size={} time={}.{:09}",
        attr.mode,
        attr.uid,
        attr.gid,
        attr.nlink,
        attr.size,
        attr.modified.seconds,
        attr.modified.nanoseconds
    );
    match letter {
        'f' => line += &format!(" flags={:x} hash={:016x}", attr.flags, checksum(&volume.read(path)?)),
        'c' | 'b' => line += &format!(" rdev={:x}", attr.rdev),
        _ => {}
    }
    line += &format!(" {path:?}");
    if letter == 'l' {
        line += &format!(" -> {:?}", volume.read_link(path)?);
    }
    line.push('\n');
    if letter != 'l' {
        line += &xattrs(volume, path)?;
    }
    Ok(line)
}

fn xattrs(volume: &Volume, path: &Path) -> io::Result<String> {
    let mut names = volume.list_xattrs(path)?;
    names.sort();
    let mut lines = String::new();
    for name in names {
        let value = volume.xattr(path, &name)?.ok_or(io::ErrorKind::NotFound)?;
        writeln!(lines, "  {name:?} {} bytes hash={:016x}", value.len(), checksum(&value))
            .map_err(io::Error::other)?;
    }
    Ok(lines)
}
