//! `syncline mount`, `mount.syncline` and `mount.fuse.syncline`.

use crate::arguments::MountArguments;
use crate::error::Failure;
use crate::volume::{open_to_read, superblocks};
use std::process::ExitCode;
use syncline_fuse::{Mount, MountError, MountOptions};

/// How mount(8) wants it done.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// Ignore options that are not known.
    pub(crate) sloppy: bool,
    /// Do everything but mount.
    pub(crate) fake: bool,
}

/// Mounts; returns when the mount is live, or in the foreground when it has ended.
pub(crate) fn run(arguments: &MountArguments, manner: Manner) -> Result<ExitCode, Failure> {
    let mut options = options(&arguments.options, manner.sloppy)?;
    if arguments.take_over {
        options.apply("take_over").map_err(Failure::Mount)?;
    }
    if options.take_over && (options.read_only || options.snapshot.is_some()) {
        let expected = "a mount that writes: leave ro and snapshot= away";
        return Err(Failure::Mount(MountError::BadOption { option: "take_over".to_owned(), expected }));
    }
    if let Some(local) = &arguments.local {
        options.set_local(local);
    }
    let mount =
        Mount::of(arguments.path.clone(), arguments.directory.clone(), options).map_err(Failure::Mount)?;
    // What does not go together is wrong usage; the daemon would tell it as a failure.
    mount.options.replication().map_err(Failure::Mount)?;
    if manner.fake && mount.source == arguments.path && !mount.is_remote() {
        let device = open_to_read(&arguments.path)?;
        superblocks(&*device, &arguments.path)?.require(&arguments.path)?;
    }
    if manner.fake {
        return Ok(ExitCode::SUCCESS);
    }
    match arguments.foreground {
        true => mount.serve(|| {}),
        false => mount.serve_in_background(),
    }
    .map_err(Failure::Mount)?;
    Ok(ExitCode::SUCCESS)
}

fn options(lists: &[String], sloppy: bool) -> Result<MountOptions, Failure> {
    let mut options = MountOptions::default();
    for option in lists.iter().flat_map(|list| list.split(',')) {
        match options.apply(option) {
            Err(MountError::UnknownOption(_)) if sloppy => {}
            result => result.map_err(Failure::Mount)?,
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_that_the_help_explains_is_accepted() {
        let values = [
            ("SECONDS", "5"),
            ("auto|SIZE", "64M"),
            ("NUMBER", "1"),
            ("NAME", "before"),
            ("FILE", "/x"),
            ("[ADDRESS:]PORT|unix:PATH", "127.0.0.1:9464"),
            ("auto|dev|uring", "dev"),
            ("auto|usual", "usual"),
            ("auto|keep", "keep"),
            ("URL", "file:///x"),
            ("local|remote", "remote"),
            ("continue|slow|stop", "slow"),
            ("UUID", "0123456789abcdef0123456789abcdef"),
            ("IMAGE", "/x.img"),
            ("x-...", "x-y"),
        ];
        for (explained, _) in crate::arguments::MOUNT_OPTIONS {
            let given = values
                .iter()
                .fold(explained.replace(' ', ""), |text, (word, value)| text.replace(word, value));
            assert!(options(&[given], false).is_ok(), "{explained}");
        }
    }

    #[test]
    fn sloppy_mounts_ignore_unknown_options_and_no_others() {
        let lists = ["ro,frobnicate".to_owned(), "noatime".to_owned()];
        assert!(options(&lists, false).is_err());
        assert!(options(&lists, true).expect("ignored").read_only);
        assert!(options(&["commit=never".to_owned()], true).is_err());
    }
}
