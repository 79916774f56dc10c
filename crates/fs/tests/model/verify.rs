//! Comparing the volume with the model: while it runs, and after a power cut.

use crate::model::{Cause, File, Kind, Names, Node, Number, PAGE, Version};
use crate::{Run, options};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use syncline_check::{CheckOptions, Severity, check};
use syncline_fs::{Context, Fs, ObjectNo, OpenFlags};

/// Everything below a directory as the volume has it.
pub fn read_names(fs: &Fs, root: Number) -> Names {
    let mut names = Names::default();
    let mut stack = vec![root];
    let mut parents = BTreeMap::from([(root, root)]);
    while let Some(number) = stack.pop() {
        let attr = fs
            .attributes()
            .getattr(ObjectNo(number))
            .unwrap_or_else(|error| panic!("inode {number}: {error}"));
        let kind = match attr.mode & 0o170000 {
            0o040000 => {
                let entries = read_directory(fs, number);
                assert_eq!(attr.size, 32 * entries.len() as u64, "entries of directory {number}");
                let up = fs.names().lookup(ObjectNo(number), b"..").expect("..").attr.inode.0;
                let parent = parents[&number];
                assert!(up == parent || number == root, "parent of directory {number} is {up}");
                for (name, &entry) in &entries {
                    let found = fs.names().lookup(ObjectNo(number), name.as_bytes()).expect("a listed name");
                    assert_eq!(found.attr.inode.0, entry);
                    if found.attr.mode & 0o170000 == 0o040000 {
                        assert_eq!(parents.insert(entry, number), None, "a directory has two names");
                        stack.push(entry);
                    } else if !names.nodes.contains_key(&entry) {
                        stack.push(entry);
                    }
                }
                Kind::Directory { parent, entries }
            }
            0o100000 => Kind::File,
            0o120000 => Kind::Symlink(fs.attributes().readlink(ObjectNo(number)).expect("a link's target")),
            _ => Kind::Other,
        };
        let xattrs = read_xattrs(fs, number);
        names.nodes.insert(number, Node { mode: attr.mode, nlink: attr.nlink, xattrs, kind });
    }
    names
}

fn read_directory(fs: &Fs, number: Number) -> BTreeMap<String, Number> {
    let handle = fs.files().opendir(ObjectNo(number)).expect("opendir");
    let mut entries = BTreeMap::new();
    fs.names()
        .readdir(handle, 2, &mut |entry| {
            let name = String::from_utf8(entry.name.to_vec()).expect("UTF-8");
            assert_eq!(entries.insert(name, entry.inode.0), None, "a name is listed twice");
            ControlFlow::Continue(())
        })
        .expect("readdir");
    fs.files().release(handle).expect("release");
    entries
}

fn read_xattrs(fs: &Fs, number: Number) -> BTreeMap<String, Vec<u8>> {
    let root = Context::root();
    let list = fs.attributes().list_xattrs(&root, ObjectNo(number)).expect("a list of attributes");
    let names = list.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let value =
        |name: &[u8]| fs.attributes().xattr(&root, ObjectNo(number), name).expect("a listed attribute");
    names.map(|name| (String::from_utf8_lossy(name).into_owned(), value(name))).collect()
}

pub fn read_content(fs: &Fs, number: Number) -> Vec<u8> {
    let handle = fs.files().open_handle(&Context::root(), ObjectNo(number), OpenFlags::READ).expect("open");
    let size = fs.files().handle_attr(handle).expect("attributes").size;
    let mut bytes = vec![0xEE; size as usize];
    assert_eq!(fs.files().read(handle, 0, &mut bytes).expect("read"), bytes.len(), "inode {number}");
    fs.files().release(handle).expect("release");
    bytes
}

impl Run {
    /// The running volume shows what the model says.
    pub fn compare_all(&self) {
        assert_names(&read_names(&self.fs, self.root), &self.names);
        for number in self.live_files() {
            self.compare_file(number);
        }
    }

    pub fn live_files(&self) -> Vec<Number> {
        let is_file = |node: &Node| node.kind == Kind::File;
        self.names.nodes.iter().filter(|(_, node)| is_file(node)).map(|(&number, _)| number).collect()
    }

    pub fn compare_file(&self, number: Number) {
        let found = read_content(&self.fs, number);
        let want = self.files[&number].now().content();
        assert_eq!(found.len(), want.len(), "size of {number}");
        let differs = found.iter().zip(&want).position(|(a, b)| a != b);
        assert_eq!(differs, None, "content of {number} of {} bytes", want.len());
    }

    /// What the offline check has to say about the device.
    pub fn check(&self, when: &str) {
        let report = check(&*self.device, CheckOptions::default().data(true));
        let report = report.unwrap_or_else(|error| panic!("{when}: {error}"));
        let bad: Vec<_> =
            report.findings.iter().filter(|finding| finding.severity > Severity::Info).collect();
        assert!(bad.is_empty(), "{when}: {bad:#?}");
    }

    /// Cuts the power and opens the volume again, now and then with another power cut during recovery.
    pub fn recover(&mut self) {
        self.log.push(format!("--- crash (off: {})", self.device.is_off()));
        self.fs.shut_down();
        loop {
            self.device = self.device.crash(&mut self.random);
            self.check("after a power cut");
            let again = self.random.one_in(4);
            if again {
                self.device.power_off_after(self.random.below(30));
            }
            self.open();
            if !again || !self.device.is_off() {
                self.device.power_off_after(u64::MAX);
                break;
            }
            self.fs.shut_down();
        }
    }

    /// Recovers, and compares.
    pub fn crash(&mut self) {
        self.recover();
        self.settle();
        for number in self.live_files() {
            if self.random.one_in(2) {
                self.extend(number);
            }
        }
        self.compare_all();
        self.fs.sync_metadata().expect("sync");
        self.names_are_durable();
    }

    /// After a failure of the device: the last operation may have been done, half done or not done in memory.
    pub fn adopt_what_is_there(&mut self) {
        self.names = read_names(&self.fs, self.root);
        self.history.insert(self.step, self.names.clone());
        for number in self.live_files() {
            let content = read_content(&self.fs, number);
            let step = self.step;
            let file = self.files.entry(number).or_insert_with(|| File::new(step));
            let (old, new) = (file.now().size, content.len() as u64);
            let cause = if new < old { Cause::Resize { first: new / PAGE } } else { Cause::Data };
            file.change(step, cause, |version| {
                version.resize(new);
                version.write(0, &content);
            });
        }
    }

    /// What was done, and how to do it again.
    pub fn tell(&self, seed: u64) {
        let from = self.log.len().saturating_sub(400);
        eprintln!("{}", self.log[from..].join("\n"));
        let end = seed + 1;
        eprintln!("to repeat: SYNCLINE_MODEL_SEEDS={seed}..{end} cargo test -p syncline-fs --test model");
    }

    fn open(&mut self) {
        let fs = Fs::open(self.device.clone(), options(), self.clock.clone(), &self.entropy);
        self.fs = fs.expect("recovery");
    }

    /// Ends with everything deleted, and the volume closed: nothing may be left behind.
    pub fn finish(&mut self) {
        self.log.push("--- finish".into());
        self.fs.close().expect("close");
        self.device = self.device.crash(&mut self.random);
        self.check("after close");
        self.open();
        self.compare_all();
        remove_all(&self.fs, self.root);
        self.fs.checkpoint().expect("checkpoint");
        let space = self.fs.statfs();
        let used = space.blocks - space.blocks_free;
        assert!(used < 64, "{used} blocks are in use by an empty volume");
        self.fs.close().expect("close");
        self.check("after everything was removed");
    }

    /// Takes what recovery made of the volume as the new beginning, if the contract allows it.
    pub fn settle(&mut self) {
        let found = read_names(&self.fs, self.root);
        let contents: BTreeMap<Number, Vec<u8>> = found
            .nodes
            .iter()
            .filter(|(_, node)| node.kind == Kind::File)
            .map(|(&number, _)| (number, read_content(&self.fs, number)))
            .collect();
        let mut reasons = Vec::new();
        let mut accepted = false;
        for (&step, names) in self.history.range(self.durable..).rev() {
            if *names != found {
                continue;
            }
            let wrong: Vec<String> = contents
                .iter()
                .filter_map(|(number, content)| {
                    let reason = self.files[number].explain(step, content).err()?;
                    Some(format!("as of step {step}, file {number}: {reason}"))
                })
                .collect();
            accepted |= wrong.is_empty();
            reasons.extend(wrong);
        }
        if !accepted && reasons.is_empty() {
            let (step, last) = self.history.last_key_value().expect("history");
            for (at, names) in &self.history {
                if *names == found {
                    eprintln!("names are those of step {at}");
                }
            }
            eprintln!("durable {}, last step {step}", self.durable);
            assert_names(&found, last);
        }
        assert!(accepted, "{}", reasons.join("\n"));
        self.names = found;
        self.handles.clear();
        self.files = contents
            .into_iter()
            .map(|(number, content)| {
                let version = Version::of_content(self.step, &content, Cause::Logged);
                (number, File { versions: vec![version], synced: 0 })
            })
            .collect();
        self.names_are_durable();
    }

    fn names_are_durable(&mut self) {
        self.step += 1;
        self.history = [(self.step, self.names.clone())].into();
        self.durable = self.step;
    }
}

fn remove_all(fs: &Fs, directory: Number) {
    for (name, number) in read_directory(fs, directory) {
        if fs.attributes().getattr(ObjectNo(number)).expect("attributes").mode & 0o170000 == 0o040000 {
            remove_all(fs, number);
            fs.names().rmdir(ObjectNo(directory), name.as_bytes()).expect("rmdir");
        } else {
            fs.names().unlink(ObjectNo(directory), name.as_bytes()).expect("unlink");
        }
    }
}

fn assert_names(found: &Names, want: &Names) {
    for (number, node) in &want.nodes {
        assert_eq!(found.nodes.get(number), Some(node), "inode {number}");
    }
    let more: Vec<_> = found.nodes.keys().filter(|number| !want.nodes.contains_key(number)).collect();
    assert!(more.is_empty(), "inodes {more:?} should not be there");
}
