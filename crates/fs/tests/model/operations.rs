//! One random operation, on the volume and on the model; those on names and attributes.

use crate::Run;
use crate::model::{Cause, File, Kind, Node, Number};
use std::collections::BTreeMap;
use syncline_fs::{Context, Error, ObjectNo, OpenFlags, RenameFlags, SetAttr, SetXattr};

const NAMES: [&str; 8] =
    ["a", "b", "c", "d", "e", "f", "g", "a-name-that-is-a-little-longer-than-the-others"];
pub const NO_SPACE: i32 = 28;

fn file_node(mode: u32) -> Node {
    Node { mode, nlink: 1, xattrs: BTreeMap::new(), kind: Kind::File }
}

pub fn errno<T>(result: Result<T, Error>) -> Result<T, i32> {
    result.map_err(|error| {
        if error.errno() == 5 {
            eprintln!("{error:?}");
        }
        error.errno()
    })
}

impl Run {
    pub fn say(&mut self, what: String) {
        self.log.push(format!("{:4} {what}", self.step));
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.random.below(NAMES.len() as u64) as usize]
    }

    pub fn directory(&mut self) -> Number {
        let all: Vec<Number> =
            self.names.nodes.keys().copied().filter(|&number| self.names.is_directory(number)).collect();
        if self.random.one_in(2) { self.root } else { all[self.random.below(all.len() as u64) as usize] }
    }

    /// A random entry.
    fn entry(&mut self) -> Option<(Number, String, Number)> {
        let all: Vec<(Number, String, Number)> = self
            .names
            .nodes
            .keys()
            .filter(|&&number| self.names.is_directory(number))
            .flat_map(|&number| {
                self.names.entries(number).iter().map(move |(name, &to)| (number, name.clone(), to))
            })
            .collect();
        if all.is_empty() { None } else { Some(all[self.random.below(all.len() as u64) as usize].clone()) }
    }

    pub fn file(&mut self) -> Option<Number> {
        let all = self.live_files();
        if all.is_empty() { None } else { Some(all[self.random.below(all.len() as u64) as usize]) }
    }

    /// A change of names that says how far the log got.
    pub fn mark(&mut self) {
        let value = self.step.to_string().into_bytes();
        match self.fs.attributes().set_xattr(
            &Context::root(),
            ObjectNo(self.root),
            b"user.step",
            &value,
            SetXattr::Any,
        ) {
            Ok(()) => {
                let node = self.names.nodes.get_mut(&self.root).expect("root");
                node.xattrs.insert("user.step".into(), value);
            }
            Err(error) => assert_eq!(error.errno(), NO_SPACE),
        }
        self.history.insert(self.step, self.names.clone());
        self.step += 1;
    }

    pub fn operation(&mut self) {
        match self.random.below(40) {
            0..4 => self.create(),
            4 | 5 => self.make_other(),
            6 | 7 => self.unlink(),
            8 => self.rmdir(),
            9 => self.link(),
            10..13 => self.rename(),
            13 => self.attributes(),
            14 => self.temporary(),
            15..22 => self.write(),
            22 | 23 => self.append(),
            24..26 => self.truncate(),
            26..29 => self.allocate(),
            29..33 => self.sync(),
            33 => self.sync_all(),
            34 | 35 => self.maintain(),
            36 => self.checkpoint(),
            37 => self.handle(),
            38 => self.copy(),
            _ => self.other_change(),
        }
    }

    fn create(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        self.say(format!("create {parent}/{name}"));
        let result = self.fs.names().create(
            &Context::root(),
            ObjectNo(parent),
            name.as_bytes(),
            0o644,
            OpenFlags::READ_WRITE,
        );
        if self.names.entries(parent).contains_key(name) {
            assert!(matches!(errno(result), Err(17 | NO_SPACE)));
            return;
        }
        match errno(result) {
            Ok((entry, handle)) => {
                let number = entry.attr.inode.0;
                self.names.add(parent, name, number, file_node(0o100644));
                self.files.insert(number, File::new(self.step));
                if self.random.one_in(2) {
                    self.write_at(handle, number, None);
                }
                self.fs.files().release(handle).expect("release");
            }
            Err(error) => assert_eq!(error, NO_SPACE),
        }
    }

    fn make_other(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        let root = Context::root();
        let directory = ObjectNo(parent);
        let which = self.random.below(5);
        self.say(format!("make other {which} {parent}/{name}"));
        let (result, mode, nlink, kind) = match which {
            0 => {
                let target = vec![b'x'; 1 + self.random.below(3000) as usize];
                let result = self.fs.names().symlink(&root, directory, name.as_bytes(), &target);
                (result, 0o120777, 1, Kind::Symlink(target))
            }
            1 => {
                let result = self.fs.names().mknod(&root, directory, name.as_bytes(), 0o010600, 0);
                (result, 0o010600, 1, Kind::Other)
            }
            _ => {
                let result = self.fs.names().mkdir(&root, directory, name.as_bytes(), 0o755);
                (result, 0o040755, 2, Kind::Directory { parent, entries: BTreeMap::new() })
            }
        };
        if self.names.entries(parent).contains_key(name) {
            assert!(matches!(errno(result), Err(17 | NO_SPACE)));
            return;
        }
        match errno(result) {
            Ok(entry) => {
                let node = Node { mode, nlink, xattrs: BTreeMap::new(), kind };
                self.names.add(parent, name, entry.attr.inode.0, node);
            }
            Err(error) => assert_eq!(error, NO_SPACE),
        }
    }

    fn unlink(&mut self) {
        let Some((parent, name, number)) = self.entry() else { return };
        self.say(format!("unlink {parent}/{name} ({number})"));
        let result = errno(self.fs.names().unlink(ObjectNo(parent), name.as_bytes()));
        if self.names.is_directory(number) {
            assert_eq!(result, Err(21));
            return;
        }
        // Removing must be possible on a full volume.
        assert_eq!(result, Ok(()));
        self.names.entries_mut(parent).remove(&name);
        self.names.unlink(number);
    }

    fn rmdir(&mut self) {
        let Some((parent, name, number)) = self.entry() else { return };
        self.say(format!("rmdir {parent}/{name} ({number})"));
        let result = errno(self.fs.names().rmdir(ObjectNo(parent), name.as_bytes()));
        if !self.names.is_directory(number) {
            assert_eq!(result, Err(20));
        } else if !self.names.entries(number).is_empty() {
            assert_eq!(result, Err(39));
        } else {
            assert_eq!(result, Ok(()));
            self.names.entries_mut(parent).remove(&name);
            self.names.unlink(number);
        }
    }

    fn link(&mut self) {
        let Some((_, _, number)) = self.entry() else { return };
        let (parent, name) = (self.directory(), self.name());
        self.say(format!("link {number} {parent}/{name}"));
        let result = errno(self.fs.names().link(ObjectNo(number), ObjectNo(parent), name.as_bytes()));
        if self.names.entries(parent).contains_key(name) {
            assert!(matches!(result, Err(17 | 1 | NO_SPACE)), "{result:?}");
        } else if self.names.is_directory(number) {
            assert!(matches!(result, Err(1 | NO_SPACE)));
        } else if result.is_ok() {
            self.names.nodes.get_mut(&number).expect("a node").nlink += 1;
            self.names.entries_mut(parent).insert(name.to_owned(), number);
        } else {
            assert_eq!(result.map(drop), Err(NO_SPACE));
        }
    }

    fn rename(&mut self) {
        let Some((parent, name, number)) = self.entry() else { return };
        let (new_parent, new_name) = match self.random.below(2) {
            0 => self.entry().map(|(parent, name, _)| (parent, name)).expect("there is one"),
            _ => (self.directory(), self.name().to_owned()),
        };
        let which = self.random.below(8);
        let flags =
            RenameFlags { no_replace: which == 0, exchange: which == 1 || which == 2, whiteout: which == 3 };
        self.say(format!("rename {parent}/{name} ({number}) {new_parent}/{new_name} {flags:?}"));
        let mut names = self.names.clone();
        let target = names.entries(new_parent).get(&new_name).copied();
        let want = names.rename((parent, &name), (new_parent, &new_name), flags.no_replace, flags.exchange);
        let result = errno(self.fs.names().rename(
            &Context::root(),
            ObjectNo(parent),
            name.as_bytes(),
            ObjectNo(new_parent),
            new_name.as_bytes(),
            flags,
        ));
        if result == Err(NO_SPACE) {
            return;
        }
        assert_eq!(result, want);
        if result.is_err() || target == Some(number) {
            return;
        }
        if flags.whiteout {
            let entry = self.fs.names().lookup(ObjectNo(parent), name.as_bytes()).expect("a whiteout");
            let node = Node { mode: 0o020000, nlink: 1, xattrs: BTreeMap::new(), kind: Kind::Other };
            names.add(parent, &name, entry.attr.inode.0, node);
        }
        self.names = names;
        let step = self.step;
        // What replaces something has its data logged before (C3).
        for replaced in
            target.map(|target| [number, if flags.exchange { target } else { number }]).iter().flatten()
        {
            if let Some(file) = self.files.get_mut(replaced) {
                file.change(step, Cause::Logged, |_| ());
            }
        }
    }

    fn attributes(&mut self) {
        let Some((_, _, number)) = self.entry() else { return };
        let mode = self.random.below(0o1000) as u32;
        self.say(format!("chmod {number} {mode:o}"));
        let set = SetAttr { mode: Some(mode), uid: Some(7), ..SetAttr::default() };
        let result = errno(self.fs.attributes().setattr(&Context::root(), ObjectNo(number), &set, None));
        let node = self.names.nodes.get_mut(&number).expect("a node");
        match (&node.kind, result) {
            (Kind::Symlink(_), result) => assert!(matches!(result, Err(95 | NO_SPACE))),
            (_, Ok(_)) => node.mode = node.mode & !0o7777 | mode,
            (_, Err(error)) => assert_eq!(error, NO_SPACE),
        }
    }

    fn other_change(&mut self) {
        let Some((_, _, number)) = self.entry() else { return };
        if !matches!(self.names.nodes[&number].kind, Kind::File | Kind::Directory { .. }) {
            return;
        }
        let value = vec![self.random.next() as u8; self.random.below(9000) as usize];
        let remove = self.random.one_in(3);
        self.say(format!("xattr {number} {} {remove}", value.len()));
        let root = Context::root();
        let result = match remove {
            true => self.fs.attributes().remove_xattr(&root, ObjectNo(number), b"user.x"),
            false => {
                self.fs.attributes().set_xattr(&root, ObjectNo(number), b"user.x", &value, SetXattr::Any)
            }
        };
        let xattrs = &mut self.names.nodes.get_mut(&number).expect("a node").xattrs;
        match (errno(result), remove) {
            (Ok(()), false) => drop(xattrs.insert("user.x".into(), value)),
            (Ok(()), true) => assert!(xattrs.remove("user.x").is_some()),
            (Err(61), true) => assert!(!xattrs.contains_key("user.x")),
            (Err(error), _) => assert_eq!(error, NO_SPACE),
        }
    }

    fn temporary(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        self.say(format!("tmpfile {parent}/{name}"));
        let directory = ObjectNo(parent);
        let made = self.fs.names().tmpfile(&Context::root(), directory, 0o600, OpenFlags::READ_WRITE, false);
        let Ok((entry, handle)) = made else {
            return assert_eq!(errno(made).map(drop), Err(NO_SPACE));
        };
        let number = entry.attr.inode.0;
        self.files.insert(number, File::new(self.step));
        self.write_at(handle, number, None);
        if self.random.one_in(3) {
            let size = self.random.below(10_000);
            self.set_size(handle, number, size);
        }
        if self.random.one_in(2) && !self.names.entries(parent).contains_key(name) {
            // Linking is a change of its own.
            self.history.insert(self.step, self.names.clone());
            self.step += 1;
            match errno(self.fs.names().link(ObjectNo(number), directory, name.as_bytes())) {
                Ok(_) => self.names.add(parent, name, number, file_node(0o100600)),
                Err(error) => assert_eq!(error, NO_SPACE),
            }
        }
        if self.random.one_in(2) {
            self.handles.push((handle, number));
        } else {
            self.fs.files().release(handle).expect("release");
        }
    }
}
