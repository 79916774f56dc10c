//! Threads that do everything to the same few names and files. What each call answers depends on the others, but it is
//! never an I/O error; nobody waits for ever, content read is content somebody wrote, and the volume stays sound.

use crate::Run;
use crate::device::Random;
use crate::model::Kind;
use crate::verify::{read_content, read_names};
use std::ops::ControlFlow;
use syncline_fs::{
    Clock, Context, Error, FallocateMode, Fs, ObjectNo, OpenFlags, RenameFlags, Result, SeekWhat, SetAttr,
    SetXattr, SyncScope,
};

const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
const OPERATIONS: usize = 150;

struct Racer<'a> {
    fs: &'a Fs,
    random: Random,
    context: Context,
}

impl Racer<'_> {
    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn name(&mut self) -> &'static [u8] {
        NAMES[self.below(NAMES.len() as u64) as usize]
    }

    fn directory(&mut self) -> ObjectNo {
        let root = ObjectNo::ROOT_DIR;
        if self.random.one_in(2) {
            return root;
        }
        let found = self.fs.names().lookup(root, self.name());
        found
            .ok()
            .filter(|entry| entry.attr.mode & 0o170000 == 0o040000)
            .map_or(root, |entry| entry.attr.inode)
    }

    fn names(&mut self) -> Result<()> {
        let (directory, name) = (self.directory(), self.name());
        let (other, new_name) = (self.directory(), self.name());
        let (fs, context) = (self.fs, self.context.clone());
        match self.below(9) {
            0 => fs.names().mkdir(&context, directory, name, 0o755).map(drop),
            1 => fs.names().rmdir(directory, name),
            2 | 3 => fs.names().unlink(directory, name),
            4 => fs.names().link(fs.names().lookup(directory, name)?.attr.inode, other, new_name).map(drop),
            5 => {
                let handle = fs.files().opendir(directory)?;
                let listed = fs.names().readdir_plus(handle, 0, &mut |_, _| ControlFlow::Continue(()));
                fs.files().release(handle)?;
                listed
            }
            6 => fs.names().symlink(&context, directory, name, b"target").map(drop),
            which => {
                let flags = RenameFlags { exchange: which == 7, ..RenameFlags::default() };
                fs.names().rename(&context, directory, name, other, new_name, flags)
            }
        }
    }

    fn content(&mut self) -> Result<()> {
        let (directory, name) = (self.directory(), self.name());
        let (fs, context) = (self.fs, self.context.clone());
        let flags = OpenFlags { append: self.random.one_in(5), ..OpenFlags::READ_WRITE };
        let made = fs.names().create(&context, directory, name, 0o644, flags).map(|(_, handle)| handle);
        let handle = match made {
            Err(Error::Exists) => {
                fs.files().open_handle(&context, fs.names().lookup(directory, name)?.attr.inode, flags)?
            }
            made => made?,
        };
        let mut result = Ok(());
        for _ in 0..1 + self.below(6) {
            result = result.and(self.change(handle));
        }
        fs.files().release(handle)?;
        result
    }

    fn change(&mut self, handle: syncline_fs::HandleId) -> Result<()> {
        let (fs, context) = (self.fs, self.context.clone());
        let (offset, len) = (self.below(150_000), 1 + self.below(40_000));
        let whole = |at: u64| at / 4096 * 4096;
        let inode = fs.files().handle_inode(handle)?;
        match self.below(14) {
            0..4 => fs.files().write(&context, handle, offset, &vec![b'x'; len as usize]).map(drop),
            4 | 5 => {
                let mut bytes = vec![1; len as usize];
                let count = fs.files().read(handle, offset, &mut bytes)?;
                assert!(bytes[..count].iter().all(|&byte| byte == 0 || byte == b'x'), "bytes nobody wrote");
                Ok(())
            }
            6 => {
                let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                fs.attributes().setattr(&context, inode, &set, None).map(drop)
            }
            7 => fs.files().sync_handle(handle, SyncScope::All),
            8 => fs.files().fallocate(&context, handle, FallocateMode::PunchHole, offset, len),
            9 => fs.files().fallocate(
                &context,
                handle,
                FallocateMode::ZeroRange { keep_size: true },
                offset,
                len,
            ),
            10 => fs.files().fallocate(
                &context,
                handle,
                FallocateMode::CollapseRange,
                whole(offset),
                whole(len) + 4096,
            ),
            11 => fs.files().fallocate(
                &context,
                handle,
                FallocateMode::InsertRange,
                whole(offset),
                whole(len) + 4096,
            ),
            12 => fs
                .files()
                .seek(handle, offset, if len % 2 == 0 { SeekWhat::Data } else { SeekWhat::Hole })
                .map(drop),
            _ => fs.attributes().set_xattr(
                &context,
                inode,
                b"user.x",
                &vec![7; offset as usize / 20],
                SetXattr::Any,
            ),
        }
    }
}

/// One run; it ends with a power cut.
pub fn run(seed: u64) {
    let mut base = Run::new(seed, u64::MAX);
    let seeds: Vec<u64> = (0..4).map(|_| base.random.next()).collect();
    let fs = base.fs.clone();
    if base.random.one_in(2) {
        base.device.power_off_after(base.random.below(800));
    }
    std::thread::scope(|scope| {
        for seed in seeds {
            let (fs, clock) = (&fs, &base.clock);
            scope.spawn(move || {
                let mut racer = Racer { fs, random: Random(seed), context: Context::root() };
                for _ in 0..OPERATIONS {
                    let result = match racer.below(20) {
                        0 => fs.sync_all(),
                        1 => fs.checkpoint(),
                        2 | 3 => fs.maintain(clock.now(), 2).map(drop),
                        4..12 => racer.names(),
                        _ => racer.content(),
                    };
                    if let Err(error) = result {
                        assert_ne!(error.errno(), 5, "{error:?}");
                        assert_ne!(error.errno(), 28, "{error:?}");
                    }
                }
            });
        }
    });
    drop(fs);
    if base.random.one_in(2) {
        base.fs.sync_all().expect("sync");
    }
    base.recover();
    let names = read_names(&base.fs, base.root);
    for (&number, _) in names.nodes.iter().filter(|(_, node)| node.kind == Kind::File) {
        nothing_lies_beyond_the_end(&base.fs, number);
    }
    base.fs.close().expect("close");
    base.check("after close");
}

/// One thread lets a file grow and syncs it, another writes to the pages that are on their way.
pub fn grow(seed: u64) {
    let mut base = Run::new(seed, u64::MAX);
    let context = Context::root();
    let flags = OpenFlags::READ_WRITE;
    let root = ObjectNo::ROOT_DIR;
    let (_, handle) = base.fs.names().create(&context, root, b"file", 0o644, flags).expect("create");
    let fs = base.fs.clone();
    base.device.power_off_after(base.random.below(60));
    let ended = std::sync::atomic::AtomicBool::new(false);
    let mut random = Random(base.random.next());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                let size = fs.files().handle_attr(handle).expect("attributes").size;
                fs.files().write(&context, handle, size, &vec![b'x'; 9_000_000]).expect("write");
                fs.files().sync_handle(handle, SyncScope::Data).expect("sync");
                let set = SetAttr { size: Some(0), ..SetAttr::default() };
                fs.attributes()
                    .setattr(&context, fs.files().handle_inode(handle).expect("inode"), &set, None)
                    .expect("truncate");
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                let size = fs.files().handle_attr(handle).expect("attributes").size;
                if size > 0 {
                    // Often the same page, so that it is on its way when it is written to.
                    fs.files()
                        .write(&context, handle, size - 1 - random.below(size.min(9_000_000)), b"x")
                        .expect("write");
                }
            }
        });
    });
    drop(fs);
    base.recover();
    if let Ok(entry) = base.fs.names().lookup(root, b"file") {
        nothing_lies_beyond_the_end(&base.fs, entry.attr.inode.0);
    }
    base.fs.close().expect("close");
    base.check("after close");
}

/// What a crash cut off of a file does not show when the file grows.
fn nothing_lies_beyond_the_end(fs: &Fs, number: u64) {
    let size = fs.attributes().getattr(ObjectNo(number)).expect("attributes").size;
    let set = SetAttr { size: Some(size + 400_000), ..SetAttr::default() };
    fs.attributes().setattr(&Context::root(), ObjectNo(number), &set, None).expect("extend");
    let content = read_content(fs, number);
    let found = content[size as usize..].iter().position(|&byte| byte != 0);
    assert_eq!(found, None, "file {number} of {size} bytes has content beyond its end");
}
