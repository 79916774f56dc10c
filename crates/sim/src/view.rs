//! Reads everything that a volume shows, in the oracle's terms.

use crate::content::Content;
use crate::operation::Op;
use crate::oracle::{Kind, Model, Node, View};
use crate::times::Stamp;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use syncline_fs::{Attr, Context, Error, Fs, ObjectNo, OpenFlags, Timestamp};

/// Files are read in parts of so much.
const PART_BYTES: usize = 256 << 10;

fn stamp_of(attr: &Attr) -> Stamp {
    let time = |at: Timestamp| (at.seconds, at.nanoseconds);
    Stamp { modified: time(attr.modified), changed: time(attr.changed), created: time(attr.created) }
}

/// Has the model note the times that the running volume shows after an operation.
pub fn note_times(fs: &Fs, model: &mut Model, op: &Op) -> Result<(), Error> {
    let stamps =
        model.alive().into_iter().map(|ino| Ok((ino, stamp_of(&fs.attributes().getattr(ObjectNo(ino))?))));
    let shown = stamps.collect::<Result<Vec<_>, Error>>()?;
    model.note_times(op, &shown);
    Ok(())
}

/// Everything that a volume shows.
pub fn view(fs: &Fs) -> Result<View, Error> {
    let mut view = View::default();
    let mut stack = vec![ObjectNo::ROOT_DIR];
    while let Some(number) = stack.pop() {
        if view.names.contains_key(&number.0) {
            continue;
        }
        let attr = fs.attributes().getattr(number)?;
        let kind = match attr.mode & 0o170000 {
            0o040000 => {
                let children = list(fs, number)?;
                stack.extend(children.values().map(|ino| ObjectNo(*ino)));
                Kind::Directory(children)
            }
            0o120000 => Kind::Symlink(fs.attributes().readlink(number)?),
            0o020000 => Kind::Special,
            _ => {
                view.contents.insert(number.0, content(fs, number, attr.size)?);
                Kind::File
            }
        };
        let node = Node {
            kind,
            mode: attr.mode,
            owner: (attr.uid, attr.gid),
            nlink: attr.nlink,
            flags: fs.attributes().inode_flags(number)?,
            xattrs: xattrs(fs, number)?,
        };
        view.names.insert(number.0, Arc::new(node));
        view.stamps.insert(number.0, stamp_of(&attr));
    }
    Ok(view)
}

fn list(fs: &Fs, directory: ObjectNo) -> Result<BTreeMap<String, u64>, Error> {
    let handle = fs.files().opendir(directory)?;
    let mut children = BTreeMap::new();
    let mut twice = false;
    let result = fs.names().readdir(handle, 2, &mut |entry| {
        let name = String::from_utf8_lossy(entry.name).into_owned();
        twice |= children.insert(name, entry.inode.0).is_some();
        ControlFlow::Continue(())
    });
    fs.files().release(handle)?;
    result?;
    assert!(!twice, "a name is listed twice in directory {directory}");
    for (name, ino) in &children {
        let found = fs.names().lookup(directory, name.as_bytes())?.attr.inode.0;
        assert_eq!(found, *ino, "lookup and readdir disagree on '{name}' in directory {directory}");
    }
    Ok(children)
}

/// What a file holds.
pub fn content(fs: &Fs, number: ObjectNo, size: u64) -> Result<Content, Error> {
    let handle = fs.files().open_handle(&Context::root(), number, OpenFlags::READ)?;
    let mut content = Content::default();
    let mut part = vec![0; PART_BYTES];
    let mut result = Ok(());
    while content.size() < size && result.is_ok() {
        let done = content.size();
        let wanted = PART_BYTES.min((size - done) as usize);
        match fs.files().read(handle, done, &mut part[..wanted]) {
            Ok(0) => panic!("file {number} ends at {done}, before its size {size}"),
            Ok(count) => content.write(done, &part[..count]),
            Err(error) => result = Err(error),
        }
    }
    fs.files().release(handle)?;
    result.map(|()| content)
}

fn xattrs(fs: &Fs, number: ObjectNo) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let root = Context::root();
    let names = fs.attributes().list_xattrs(&root, number)?;
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            Ok((String::from_utf8_lossy(name).into_owned(), fs.attributes().xattr(&root, number, name)?))
        })
        .collect()
}
