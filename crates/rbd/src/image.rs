//! A cluster that is connected, and an image of it that is open: what has to be closed, in the order in which it is.
#![allow(unsafe_code)]

use crate::address::c_string;
use crate::api::{self, Api, EXCLUSIVE, FEATURE_EXCLUSIVE_LOCK, Handle, ImageInfo, Watcher};
use crate::{Address, RbdError};
use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};
use syncline_device::OpenOptions;

/// Pause between two tries for the lock.
const PAUSE: Duration = Duration::from_millis(200);
/// Tries to take over: others may take the lock meanwhile.
const TAKE_OVERS_MAX: usize = 8;
/// Watchers that are told.
const WATCHERS_MAX: usize = 64;
/// Bytes of what is told of owners, of which there is one.
const TOLD_BYTES_MAX: usize = 4096;
/// A machine that was taken over from stays shut out for so long, and not for the cluster's hour: it may have been
/// asleep for longer, and nothing but this keeps its writes from the pool. The setting of librbd that is made for it,
/// `rbd_blocklist_expire_seconds`, lets every break of a lock fail (EINVAL, seen with 16.2).
const SHUT_OUT_SECONDS: u64 = 30 * 86_400;

/// What is not left to a configuration: a second cache would only hold back what is flushed at once.
const FIXED: [(&CStr, &CStr); 2] =
    [(c"rbd_cache", c"false"), (c"rbd_auto_exclusive_lock_until_manual_request", c"true")];
/// What a configuration may say otherwise. The library keeps to itself what it has to say.
const USUAL: [(&CStr, &CStr); 3] =
    [(c"client_mount_timeout", c"30"), (c"log_to_stderr", c"false"), (c"err_to_stderr", c"false")];

pub(crate) struct Image {
    pub(crate) api: &'static Api,
    cluster: Handle,
    pool: Handle,
    pub(crate) image: Handle,
    pub(crate) bytes: u64,
    pub(crate) object_bytes: u64,
}

// SAFETY: the libraries let any thread use their handles, several at a time.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Drop for Image {
    /// Gives the lock back, if there is one. All requests have ended by now.
    fn drop(&mut self) {
        // SAFETY: each handle is null or open, and is not used after.
        unsafe {
            if !self.image.is_null() {
                // What cannot be closed properly is left to the cluster, which notices.
                let _ = (self.api.rbd_close)(self.image);
            }
            if !self.pool.is_null() {
                (self.api.rados_ioctx_destroy)(self.pool);
            }
            if !self.cluster.is_null() {
                (self.api.rados_shutdown)(self.cluster);
            }
        }
    }
}

/// An errno, from what a function has returned.
fn checked(result: c_int) -> Result<(), i32> {
    if result < 0 { Err(-result) } else { Ok(()) }
}

impl Image {
    /// Connects, opens the image, and takes its lock for who writes.
    pub(crate) fn open(address: &Address, options: &OpenOptions) -> Result<Image, RbdError> {
        let url = || address.to_string();
        let api = api::api().map_err(|why| RbdError::Library { url: url(), why })?;
        let mut image = Image {
            api,
            cluster: null_mut(),
            pool: null_mut(),
            image: null_mut(),
            bytes: 0,
            object_bytes: 0,
        };
        image.connect(address)?;
        image.enter_pool(address)?;
        let name = c_string(&address.image);
        let open = if options.read_only { api.rbd_open_read_only } else { api.rbd_open };
        // SAFETY: the pool is open, the name is a string, and the handle is written to.
        let opened = checked(unsafe { open(image.pool, name.as_ptr(), &mut image.image, null()) });
        opened.map_err(|errno| {
            image.image = null_mut();
            match errno {
                libc::ENOENT => RbdError::NoImage { url: url() },
                errno => RbdError::Step { url: url(), doing: "open the image", errno },
            }
        })?;
        image.measure(address)?;
        match options.read_only {
            true => image.look_for_writers(address, options)?,
            false => image.lock(address, options)?,
        }
        Ok(image)
    }

    fn connect(&mut self, address: &Address) -> Result<(), RbdError> {
        let api = self.api;
        let user = address.user();
        let failed = |errno| RbdError::Connect { url: address.to_string(), user: user.clone(), errno };
        let (cluster, name) = (c"ceph", c_string(&user));
        // SAFETY: strings, and a handle that is written to.
        let made = unsafe { (api.rados_create2)(&mut self.cluster, cluster.as_ptr(), name.as_ptr(), 0) };
        checked(made).map_err(|errno| {
            self.cluster = null_mut();
            failed(errno)
        })?;
        let conf = address.conf.as_deref().map(c_string);
        let set = |list: &[(&CStr, &CStr)]| {
            for (key, value) in list {
                // SAFETY: the cluster is made, and both are strings. A version that does not know one goes without.
                let _ = unsafe { (api.rados_conf_set)(self.cluster, key.as_ptr(), value.as_ptr()) };
            }
        };
        set(&USUAL);
        // SAFETY: the cluster is made; the path is a string, or null for where Ceph looks itself.
        let read = unsafe {
            (api.rados_conf_read_file)(self.cluster, conf.as_ref().map_or(null(), |conf| conf.as_ptr()))
        };
        match checked(read) {
            Ok(()) => {}
            Err(libc::ENOENT) => return Err(RbdError::NoConf { url: address.to_string() }),
            Err(errno) => {
                let doing = "read the cluster's configuration";
                return Err(RbdError::Step { url: address.to_string(), doing, errno });
            }
        }
        // SAFETY: the cluster is made; without a name the variable is CEPH_ARGS. What it says wrongly is left out.
        let _ = unsafe { (api.rados_conf_parse_env)(self.cluster, null()) };
        set(&FIXED);
        // SAFETY: the cluster is made.
        checked(unsafe { (api.rados_connect)(self.cluster) }).map_err(failed)
    }

    fn enter_pool(&mut self, address: &Address) -> Result<(), RbdError> {
        let name = c_string(&address.pool);
        // SAFETY: the cluster is connected, the name is a string, and the handle is written to.
        let entered =
            checked(unsafe { (self.api.rados_ioctx_create)(self.cluster, name.as_ptr(), &mut self.pool) });
        entered.map_err(|errno| {
            self.pool = null_mut();
            match errno {
                libc::ENOENT => RbdError::NoPool { url: address.to_string(), pool: address.pool.clone() },
                errno => RbdError::Step { url: address.to_string(), doing: "enter the pool", errno },
            }
        })?;
        if !address.namespace.is_empty() {
            let namespace = c_string(&address.namespace);
            // SAFETY: the pool is open, and the name is a string.
            unsafe { (self.api.rados_ioctx_set_namespace)(self.pool, namespace.as_ptr()) };
        }
        Ok(())
    }

    fn measure(&mut self, address: &Address) -> Result<(), RbdError> {
        let failed = |errno| RbdError::Step { url: address.to_string(), doing: "look at the image", errno };
        let mut info = MaybeUninit::<ImageInfo>::zeroed();
        // SAFETY: the image is open, and the structure has the size that is told.
        checked(unsafe { (self.api.rbd_stat)(self.image, info.as_mut_ptr(), size_of::<ImageInfo>()) })
            .map_err(failed)?;
        // SAFETY: it was zeroed, which is a valid one, and then filled.
        let info = unsafe { info.assume_init() };
        (self.bytes, self.object_bytes) = (info.size, info.object_size);
        if self.bytes == 0 || !self.bytes.is_multiple_of(4096) {
            return Err(RbdError::Size { url: address.to_string(), bytes: self.bytes });
        }
        let mut features = 0;
        // SAFETY: the image is open, and the number is written to.
        checked(unsafe { (self.api.rbd_get_features)(self.image, &mut features) }).map_err(failed)?;
        match features & FEATURE_EXCLUSIVE_LOCK {
            0 => Err(RbdError::NoLock { url: address.to_string() }),
            _ => Ok(()),
        }
    }

    /// Takes the lock, for as long as the image is open. One of a dead owner ends by itself: the library breaks it when
    /// the owner has given no sign of life for half a minute, and so this may take as long.
    fn lock(&self, address: &Address, options: &OpenOptions) -> Result<(), RbdError> {
        let deadline = Instant::now() + options.wait_for_lock.unwrap_or_default();
        let mut take_overs = 0;
        loop {
            let owners = self.owners(address)?;
            let alive = if owners.is_empty() { Vec::new() } else { self.watchers(address)? };
            // The library shuts a dead owner out for an hour. An entry that is there it leaves as it is.
            let mut dead = owners.iter().filter(|owner| !alive.contains(owner));
            dead.try_for_each(|owner| self.shut_out(address, owner))?;
            // Who takes over asks nobody: one that stands still would be waited for.
            if options.take_over && take_overs == 0 && !owners.is_empty() {
                take_overs += 1;
                self.break_locks(address, &owners)?;
            }
            // SAFETY: the image is open.
            match checked(unsafe { (self.api.rbd_lock_acquire)(self.image, EXCLUSIVE) }) {
                Ok(()) => return Ok(()),
                Err(libc::EROFS | libc::EBUSY | libc::EAGAIN) => {}
                Err(errno) => return Err(self.failed_to_lock(address, errno)),
            }
            let owners = self.owners(address)?;
            if options.take_over && take_overs < TAKE_OVERS_MAX {
                take_overs += 1;
                self.break_locks(address, &owners)?;
            } else if Instant::now() >= deadline {
                let owners = if owners.is_empty() { "another one".to_owned() } else { owners.join(", ") };
                return Err(RbdError::InUse { url: address.to_string(), owners });
            } else {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn failed_to_lock(&self, address: &Address, errno: i32) -> RbdError {
        match errno {
            libc::EACCES | libc::EPERM => RbdError::NotWritable { url: address.to_string(), errno },
            errno => RbdError::Step { url: address.to_string(), doing: "take the lock", errno },
        }
    }

    fn break_locks(&self, address: &Address, owners: &[String]) -> Result<(), RbdError> {
        for owner in owners {
            // Before the library does, which would say an hour: an entry that is there is not changed by another one.
            self.shut_out(address, owner)?;
            let name = c_string(owner);
            // SAFETY: the image is open, and the name is a string.
            match checked(unsafe { (self.api.rbd_lock_break)(self.image, EXCLUSIVE, name.as_ptr()) }) {
                Ok(()) => {
                    tracing::warn!(owner, "the lock was broken, and its owner is shut out of the cluster")
                }
                // It has given it back, or somebody else has it by now.
                Err(libc::ENOENT | libc::EBUSY) => {}
                Err(errno) => {
                    let doing = "break the lock (the user needs \"profile rbd\" for the monitors)";
                    return Err(RbdError::Step { url: address.to_string(), doing, errno });
                }
            }
        }
        Ok(())
    }

    /// Gives the lock back. Errors: an errno.
    pub(crate) fn unlock(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        checked(unsafe { (self.api.rbd_lock_release)(self.image) })
    }

    /// Puts an address on the cluster's blocklist.
    fn shut_out(&self, address: &Address, owner: &str) -> Result<(), RbdError> {
        let command = format!(
            "{{\"prefix\":\"osd blocklist\",\"blocklistop\":\"add\",\"addr\":\"{owner}\",\"expire\":{SHUT_OUT_SECONDS}.0}}"
        );
        let command = c_string(&command);
        let commands = [command.as_ptr()];
        // SAFETY: the cluster is connected; there is one command, nothing goes with it, and no answer is wanted.
        let told = checked(unsafe {
            (self.api.rados_mon_command)(
                self.cluster,
                commands.as_ptr(),
                commands.len(),
                null(),
                0,
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
            )
        });
        let doing = "shut the old owner out (the user needs \"profile rbd\" for the monitors)";
        told.map_err(|errno| RbdError::Step { url: address.to_string(), doing, errno })
    }

    /// Who reads what another one writes sees nothing that holds together.
    fn look_for_writers(&self, address: &Address, options: &OpenOptions) -> Result<(), RbdError> {
        let deadline = Instant::now() + options.wait_for_lock.unwrap_or_default();
        loop {
            let alive = self.watchers(address)?;
            // A dead owner's lock is there until somebody wants to write.
            let mut owners = self.owners(address)?;
            owners.retain(|owner| alive.contains(owner));
            if owners.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(RbdError::InUse { url: address.to_string(), owners: owners.join(", ") });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The addresses of those that have the lock: one, or none.
    fn owners(&self, address: &Address) -> Result<Vec<String>, RbdError> {
        let mut told = [[0 as c_char; TOLD_BYTES_MAX]; 4];
        let mut sizes = [TOLD_BYTES_MAX; 4];
        let mut exclusive = 0;
        let [tag, clients, cookies, addresses] = &mut told;
        let [tag_size, clients_size, cookies_size, addresses_size] = &mut sizes;
        // SAFETY: the image is open; each text has as much room as is told, and the numbers are written to.
        let count = unsafe {
            (self.api.rbd_list_lockers)(
                self.image,
                &mut exclusive,
                tag.as_mut_ptr(),
                tag_size,
                clients.as_mut_ptr(),
                clients_size,
                cookies.as_mut_ptr(),
                cookies_size,
                addresses.as_mut_ptr(),
                addresses_size,
            )
        };
        match count {
            count if count < 0 => {
                let errno = i32::try_from(-count).unwrap_or(libc::EIO);
                Err(RbdError::Step { url: address.to_string(), doing: "ask who has it", errno })
            }
            count => {
                // One after another, each with a NUL behind it.
                let bytes = addresses.map(|byte| byte.to_ne_bytes()[0]);
                let texts = bytes.split(|byte| *byte == 0).take(count.cast_unsigned());
                Ok(texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect())
            }
        }
    }

    /// The addresses of those that have the image open and have given a sign of life lately.
    fn watchers(&self, address: &Address) -> Result<Vec<String>, RbdError> {
        let mut watchers = [const { MaybeUninit::<Watcher>::zeroed() }; WATCHERS_MAX];
        let mut count = watchers.len();
        let first = watchers.as_mut_ptr().cast::<Watcher>();
        // SAFETY: the image is open, and there is room for as many as is told.
        let asked = checked(unsafe { (self.api.rbd_watchers_list)(self.image, first, &mut count) });
        asked.map_err(|errno| RbdError::Step {
            url: address.to_string(),
            doing: "ask who watches it",
            errno,
        })?;
        let count = count.min(WATCHERS_MAX);
        // SAFETY: so many were filled; the others are zeroed, and not looked at.
        let told = watchers[..count].iter().map(|watcher| text(unsafe { watcher.assume_init_ref() }.address));
        let told = told.collect();
        // SAFETY: they were given by the function that this one belongs to, once.
        unsafe { (self.api.rbd_watchers_list_cleanup)(first, count) };
        Ok(told)
    }
}

fn text(given: *const c_char) -> String {
    if given.is_null() {
        return String::new();
    }
    // SAFETY: the library gives strings that end with NUL.
    unsafe { CStr::from_ptr(given) }.to_string_lossy().into_owned()
}
