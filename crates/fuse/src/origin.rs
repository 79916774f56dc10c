//! Where a mounted volume comes from: an image or a device, a replica that is read, or a replica from which it is
//! fetched while it is used.

use crate::{Mount, MountError, MountOptions};
use fusering::may_mount;
use std::path::{Path, PathBuf};

/// Schemes of replicas' addresses.
const SCHEMES: [&str; 4] = ["file", "s3", "gs", "az"];

/// The address of a replica, if it is one.
fn replica(source: &Path) -> Option<&str> {
    let text = source.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    SCHEMES.contains(&scheme).then_some(text)
}

impl Mount {
    /// Whether a replica is read.
    pub fn is_remote(&self) -> bool {
        self.options.remote
    }

    /// What to mount where. A replica as the source becomes a volume that is read from there (`ro`), or an image
    /// (`local=`) that is fetched from there, and shipped there.
    ///
    /// # Errors
    /// The options do not go together.
    pub fn of(source: PathBuf, directory: PathBuf, options: MountOptions) -> Result<Mount, MountError> {
        let mut mount = Mount { source, directory, options };
        let Some(url) = replica(&mount.source).map(str::to_owned) else {
            let given = [
                ("local", mount.options.local.is_some()),
                ("follow", mount.options.follow.is_some()),
                ("volume", mount.options.volume.is_some()),
            ];
            let given = given.iter().find(|(_, is_given)| *is_given);
            return match given {
                Some((option, _)) => Err(MountError::NotFromReplica { option, source_path: mount.source }),
                None => Ok(mount),
            };
        };
        let options = &mut mount.options;
        if options.replica.as_ref().is_some_and(|replica| *replica != url) {
            return Err(MountError::TwoReplicas);
        }
        if let Some(local) = options.local.clone() {
            if options.follow.is_some() {
                return Err(MountError::FollowsNothing);
            }
            options.replica = Some(url);
            mount.source = local;
            return Ok(mount);
        }
        if !options.is_read_only() {
            return Err(MountError::ReplicaAsSource(url));
        }
        if options.follow.is_some() && !may_mount() {
            return Err(MountError::FollowNeedsRoot);
        }
        options.remote = true;
        Ok(mount)
    }
}

#[cfg(feature = "replica")]
mod fetched {
    use super::*;
    use crate::volume::open_file;
    use std::sync::Arc;
    use syncline_device::{Device, OpenOptions};
    use syncline_replica_store::{Address, Error, Filler, Lazy, Local, Reading, Target, image, remote};

    fn refused(error: Error) -> MountError {
        MountError::Replica(error.to_string())
    }

    fn volume(options: &MountOptions) -> Result<Option<[u8; 16]>, MountError> {
        let bad = |text: &String| MountError::BadOption {
            option: format!("volume={text}"),
            expected: "a UUID of 32 hexadecimal digits",
        };
        options.volume.as_ref().map(|text| image::parse_uuid(text).ok_or_else(|| bad(text))).transpose()
    }

    /// A replica's newest state, to be read.
    pub(crate) fn read(url: &str, options: &MountOptions) -> Result<Reading, MountError> {
        let address = Address::parse(url).map_err(refused)?;
        Reading::open(&address, volume(options)?, Target::Newest).map_err(refused)
    }

    /// A volume on this machine of which a part may be in its replica still.
    pub(crate) struct Fetched {
        pub(crate) device: Arc<dyn Device>,
        pub(crate) lazy: Option<Lazy>,
    }

    impl Fetched {
        /// Begins the image, or goes on with it.
        pub(crate) fn open(path: &Path, options: &MountOptions) -> Result<Fetched, MountError> {
            let url = options.replica.as_deref().unwrap_or_default();
            let address = Address::parse(url).map_err(refused)?;
            let volume = volume(options)?;
            if path.symlink_metadata().is_err() {
                let lazy = remote::begin(&address, volume, path).map_err(refused)?;
                lazy.file.hold_for_mount();
                tracing::info!(url, absent = lazy.device.absent(), "the volume is fetched while it is used");
                return Ok(Fetched::from(lazy));
            }
            let file = Arc::new(open_file(path, &OpenOptions::default())?);
            match remote::go_on(&address, volume, file).map_err(refused)? {
                Local::Whole(file) => Ok(Fetched { device: file, lazy: None }),
                Local::Lazy(lazy) => {
                    tracing::info!(url, absent = lazy.device.absent(), "the volume goes on being fetched");
                    Ok(Fetched::from(lazy))
                }
            }
        }
    }

    impl From<Lazy> for Fetched {
        fn from(lazy: Lazy) -> Fetched {
            Fetched { device: Arc::clone(&lazy.device) as Arc<dyn Device>, lazy: Some(lazy) }
        }
    }

    impl Fetched {
        /// Fetches the rest in the background, for as long as what it returns lives.
        pub(crate) fn fill(&self) -> Result<Option<Filler>, MountError> {
            let filler = self.lazy.as_ref().map(Filler::start).transpose();
            filler.map_err(|source| MountError::System { what: "starting a thread", source })
        }
    }
}

#[cfg(feature = "replica")]
pub(crate) use fetched::{Fetched, read};

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(source: &str, list: &str) -> Result<Mount, MountError> {
        Mount::of(source.into(), "/mnt".into(), MountOptions::parse(list).expect("options"))
    }

    #[test]
    fn a_replica_is_read_or_fetched_as_the_options_say() {
        let read = mount("s3://bucket/notes", "ro").expect("read");
        assert!(read.options.remote && read.source == Path::new("s3://bucket/notes"));
        let fetched = mount("s3://bucket/notes", "local=/var/notes.img").expect("fetched");
        assert_eq!(fetched.source, Path::new("/var/notes.img"));
        assert_eq!(fetched.options.replica.as_deref(), Some("s3://bucket/notes"));
        assert!(!mount("/a/disk.img", "ro").expect("an image").options.remote);
    }

    #[test]
    fn what_does_not_go_together_is_told() {
        let told = |source: &str, list: &str| mount(source, list).unwrap_err().to_string();
        assert!(told("file:///x", "").contains("add -o ro to read it"));
        assert!(told("/a/disk.img", "local=/b").contains("option local= goes with a replica"));
        assert!(told("/a/disk.img", "ro,follow=1").contains("option follow= goes with a replica"));
        assert!(told("file:///x", "local=/b,follow=1").contains("follow= is for a replica that is read"));
        assert!(told("file:///x", "local=/b,replica=file:///y").contains("leave it away"));
        for wrong in ["local", "local=", "volume", "follow", "follow=0", "follow=x"] {
            assert!(MountOptions::parse(wrong).is_err(), "{wrong}");
        }
    }
}
