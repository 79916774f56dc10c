//! What a manual page says beyond the options: exit codes, examples, and where else to look. The short help tells the
//! same exit codes.

/// Codes and what they mean.
pub type Codes = &'static [(u8, &'static str)];

/// What is said of a command beyond its options.
pub struct Page {
    /// `syncline-mkfs`, `mkfs.syncline` ...
    pub name: &'static str,
    pub exit_codes: Codes,
    /// What it does, and the command line.
    pub examples: &'static [(&'static str, &'static str)],
    /// Other programs' pages, with their sections.
    pub see_also: &'static [&'static str],
}

/// Of what has no convention of its own.
pub const PLAIN: Codes = &[(0, "done"), (1, "failed"), (2, "wrong usage")];
const INSPECTED: Codes = &[(0, "done"), (1, "failed, or damage was met"), (2, "wrong usage")];
const PROBED: Codes = &[(0, "a volume"), (1, "none, or not readable"), (2, "wrong usage")];
const EXPORTED: Codes = &[(0, "done"), (1, "failed, or not everything could be read"), (2, "wrong usage")];
const MADE: Codes = &[(0, "done"), (1, "failed or wrong usage")];
const MOUNTED: Codes = &[(0, "mounted"), (1, "wrong usage"), (32, "failed")];
const UNMOUNTED: Codes = &[(0, "unmounted and closed"), (1, "wrong usage"), (32, "failed")];
const CHECKED: Codes = &[
    (0, "no errors"),
    (1, "errors repaired"),
    (4, "errors left"),
    (8, "could not check"),
    (16, "wrong usage"),
];

/// All of them, in the order of the help.
pub const PAGES: &[Page] = &[
    Page {
        name: "syncline",
        exit_codes: PLAIN,
        examples: &[
            ("Make a volume of 10 GiB in an image file, and mount it:", "syncline mkfs --size 10G disk.img"),
            ("", "syncline mount disk.img /mnt"),
            ("What a sync costs there, and the end of it:", "syncline stats /mnt"),
            ("", "syncline umount /mnt"),
        ],
        see_also: &["fuse(4)", "fusermount3(1)", "fstrim(8)"],
    },
    Page {
        name: "syncline-mkfs",
        exit_codes: PLAIN,
        examples: &[
            ("A new image file:", "syncline mkfs --size 10G disk.img"),
            (
                "A whole partition, with a name and a journal of 256 MiB:",
                "syncline mkfs -L data --journal-size 256M /dev/sdx1",
            ),
            ("Over a volume that is there already:", "syncline mkfs -f disk.img"),
        ],
        see_also: &["mkfs(8)"],
    },
    Page {
        name: "syncline-mount",
        exit_codes: MOUNTED,
        examples: &[
            ("With the usual options:", "syncline mount disk.img /mnt"),
            (
                "Without changes of access times, and with un-synced changes durable after 5 seconds:",
                "syncline mount -o noatime,commit=5 disk.img /mnt",
            ),
            ("With metrics for Prometheus:", "syncline mount -o metrics=9464 disk.img /mnt"),
            (
                "Make it read-only, with everything durable, and writable again:",
                "syncline mount -o remount,ro disk.img /mnt",
            ),
            ("", "syncline mount -o remount,rw disk.img /mnt"),
        ],
        see_also: &["mount(8)", "fstab(5)", "fuse(4)", "fusermount3(1)"],
    },
    Page {
        name: "syncline-umount",
        exit_codes: PLAIN,
        examples: &[
            ("Unmount; the image may be copied when it returns:", "syncline umount /mnt"),
            ("Take a volume that is in use out of the tree:", "syncline umount --lazy /mnt"),
        ],
        see_also: &["umount(8)", "fuser(1)"],
    },
    Page {
        name: "syncline-check",
        exit_codes: CHECKED,
        examples: &[
            ("Look at everything and change nothing:", "syncline check disk.img"),
            ("The structure only, for a program:", "syncline check --skip-data --json disk.img"),
            ("The data of one directory's files alone:", "syncline check disk.img /project/src"),
            ("Names and links in each snapshot too:", "syncline check --all disk.img"),
            ("Repair what can be repaired without guessing:", "syncline check --repair disk.img"),
        ],
        see_also: &["fsck(8)"],
    },
    Page {
        name: "syncline-inspect",
        exit_codes: INSPECTED,
        examples: &[
            ("The superblocks:", "syncline inspect super disk.img"),
            ("One file, by its path or by its number:", "syncline inspect inode disk.img /project/notes"),
            ("", "syncline inspect inode -i 17 disk.img"),
            ("Heads and snapshots, and how much each holds:", "syncline inspect trees disk.img"),
            ("Where its data lies:", "syncline inspect extents disk.img /project/notes"),
            (
                "Every operation in the journal, and those of one file:",
                "syncline inspect journal --items disk.img",
            ),
            ("", "syncline inspect journal --items disk.img /project/notes"),
        ],
        see_also: &[],
    },
    Page {
        name: "syncline-probe",
        exit_codes: PROBED,
        examples: &[("What udev's rule asks:", "syncline probe /dev/sdx1")],
        see_also: &["blkid(8)", "udev(7)"],
    },
    Page {
        name: "syncline-import",
        exit_codes: PLAIN,
        examples: &[
            ("A directory into the volume's root:", "syncline import disk.img ~/project /"),
            (
                "What is in it, over what is there already:",
                "syncline import -f disk.img ~/project/. /project",
            ),
        ],
        see_also: &["cp(1)"],
    },
    Page {
        name: "syncline-export",
        exit_codes: EXPORTED,
        examples: &[
            ("A directory of the volume:", "syncline export disk.img /project ./back"),
            ("Everything that is readable:", "syncline export --partial disk.img / ./rescued"),
        ],
        see_also: &["cp(1)"],
    },
    Page {
        name: "syncline-ls",
        exit_codes: PLAIN,
        examples: &[
            ("Everything, with the numbers of the inodes:", "syncline ls -liR disk.img"),
            ("One directory, for a program:", "syncline ls --json disk.img /project"),
        ],
        see_also: &["ls(1)"],
    },
    Page {
        name: "syncline-cat",
        exit_codes: PLAIN,
        examples: &[("Two files:", "syncline cat disk.img /project/notes /project/todo")],
        see_also: &["cat(1)"],
    },
    Page {
        name: "syncline-replica",
        exit_codes: PLAIN,
        examples: &[
            (
                "Begin a replica, and ship the volume from then on:",
                "syncline replica init s3://backups/notes disk.img",
            ),
            ("", "syncline mount -o replica=s3://backups/notes disk.img /mnt"),
            ("How far it is, here and in the store:", "syncline stats /mnt"),
            ("", "syncline replica status s3://backups/notes"),
            (
                "On another machine, when this one is lost:",
                "syncline replica restore --take-over s3://backups/notes disk.img",
            ),
            (
                "As it was at a quarter past eight:",
                "syncline replica restore --at 2026-11-23T20:15:00Z s3://backups/notes old.img",
            ),
            ("What would be deleted:", "syncline replica prune --dry-run s3://backups/notes"),
            (
                "Keep an hour of everything, and a month of days:",
                "syncline replica prune --keep=1h@1s,30d@1d s3://backups/notes",
            ),
        ],
        see_also: &[],
    },
    Page {
        name: "syncline-sync",
        exit_codes: PLAIN,
        examples: &[
            ("Many files, which share writes and flushes:", "syncline sync --async /mnt/a /mnt/b /mnt/c"),
            ("The second MiB of one:", "syncline sync --range 1M:1M /mnt/a"),
        ],
        see_also: &["sync(1)", "fsync(2)"],
    },
    Page {
        name: "syncline-stats",
        exit_codes: PLAIN,
        examples: &[
            ("For people:", "syncline stats /mnt"),
            ("For programs, in bytes and microseconds:", "syncline stats --json /mnt"),
            ("A line for each five seconds:", "syncline stats --watch=5 /mnt"),
        ],
        see_also: &["vmstat(8)"],
    },
    #[cfg(feature = "top")]
    Page {
        name: "syncline-top",
        exit_codes: PLAIN,
        examples: &[
            ("Two mounts, until q is pressed:", "syncline top /mnt /data"),
            ("One screen for a pipe, of the last ten seconds:", "syncline top --once --interval 10 /mnt"),
        ],
        see_also: &["top(1)"],
    },
    Page {
        name: "syncline-snapshot",
        exit_codes: PLAIN,
        examples: &[
            ("Of a mounted volume:", "syncline snapshot create /mnt monday"),
            ("", "syncline snapshot list /mnt"),
            (
                "What is in it, when the volume is unmounted:",
                "syncline ls --snapshot monday disk.img /project",
            ),
            (
                "How much comes back if it goes, and keep it from going:",
                "syncline snapshot usage /mnt monday",
            ),
            ("", "syncline snapshot hold /mnt monday"),
            ("Give its space back:", "syncline snapshot release /mnt monday"),
            ("", "syncline snapshot delete /mnt monday"),
            ("Try something in a branch:", "syncline snapshot clone disk.img monday attempt"),
            ("", "syncline mount -o head=attempt disk.img /mnt"),
            ("See what that has changed, mounted or not:", "syncline snapshot diff disk.img monday attempt"),
            ("Go back, and keep what is there:", "syncline snapshot rollback --keep tuesday disk.img monday"),
            (
                "Have snapshots made and deleted, by whoever has the volume open:",
                "syncline snapshot schedule set --hourly 24 --daily 7 --keep-free 10% /mnt",
            ),
            ("", "syncline snapshot schedule show /mnt"),
            ("One that goes by itself:", "syncline snapshot create --expires 7d /mnt trial"),
        ],
        see_also: &[],
    },
    Page {
        name: "syncline-upgrade",
        exit_codes: PLAIN,
        examples: &[(
            "Snapshots for a volume that has version 1 of the format:",
            "syncline upgrade disk.img",
        )],
        see_also: &[],
    },
    Page {
        name: "mkfs.syncline",
        exit_codes: MADE,
        examples: &[
            ("By its own name, and by that of mkfs(8):", "mkfs.syncline --size 10G disk.img"),
            ("", "mkfs -t syncline /dev/sdx1"),
        ],
        see_also: &["mkfs(8)"],
    },
    Page {
        name: "fsck.syncline",
        exit_codes: CHECKED,
        examples: &[
            ("As at boot: nothing to do if it was closed properly:", "fsck.syncline -a /dev/sdx1"),
            ("Look, and change nothing:", "fsck.syncline -n -f /dev/sdx1"),
        ],
        see_also: &["fsck(8)"],
    },
    Page {
        name: "mount.syncline",
        exit_codes: MOUNTED,
        examples: &[
            (
                "By the name of mount(8), which finds this one:",
                "mount -t syncline -o noatime /dev/sdx1 /data",
            ),
            ("An image file:", "mount -t syncline disk.img /mnt"),
            ("A line of /etc/fstab:", "/dev/sdx1  /data  syncline  noatime,commit=5  0  2"),
        ],
        see_also: &["mount(8)", "fstab(5)", "fuse(4)"],
    },
    Page {
        name: "umount.syncline",
        exit_codes: UNMOUNTED,
        examples: &[
            (
                "As systemd and \"umount -a\" have it called, by the type in the table of mounts:",
                "umount -c /mnt",
            ),
            ("In use: read-only instead, as before a reboot:", "umount.syncline /mnt -r"),
        ],
        see_also: &["umount(8)", "fuser(1)"],
    },
];

/// What is said of the command of a page.
///
/// Panics if there is none: each command has one, as a test says.
fn page(name: &str) -> &'static Page {
    PAGES.iter().find(|page| page.name == name).unwrap_or_else(|| panic!("{name} has no page"))
}

/// The exit codes of a page in one line, for the help.
pub(crate) fn exit_codes(name: &str) -> String {
    let codes: Vec<_> =
        page(name).exit_codes.iter().map(|(code, meaning)| format!("{code} {meaning}")).collect();
    format!("Exit codes: {}.", codes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn each_command_has_a_page_and_each_page_a_command() {
        let main = crate::command();
        // The companions tell what they do themselves.
        let own = main.get_subcommands().filter(|command| !["demo", "bench"].contains(&command.get_name()));
        let mut names: Vec<String> = own.map(|command| format!("syncline-{}", command.get_name())).collect();
        names.push("syncline".to_owned());
        names.extend(crate::named_commands().iter().map(|(name, _)| (*name).to_owned()));
        names.sort();
        let mut pages: Vec<_> = PAGES.iter().map(|page| page.name.to_owned()).collect();
        pages.sort();
        assert_eq!(names, pages);
    }

    #[test]
    fn examples_are_command_lines_that_are_understood() {
        for page in PAGES {
            assert!(!page.examples.is_empty(), "{}", page.name);
            for (_, line) in page.examples {
                let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
                let is_ours =
                    ["syncline", "mkfs.syncline", "fsck.syncline", "mount.syncline", "umount.syncline"]
                        .iter()
                        .any(|name| words[0] == *name);
                assert!(is_ours || line.contains("syncline") || line.starts_with("umount "), "{line}");
                if is_ours {
                    assert!(crate::names::parse(words).is_ok(), "{line}");
                }
            }
        }
    }

    #[test]
    fn exit_codes_are_told_in_one_line() {
        assert_eq!(exit_codes("syncline-mount"), "Exit codes: 0 mounted, 1 wrong usage, 32 failed.");
    }
}
