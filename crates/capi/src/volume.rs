//! Volumes: making, opening, closing, and what concerns all of one.

use crate::abi::{
    Out, SYNCLINE_OPEN_OWNER, SYNCLINE_OPEN_READ_ONLY, give, many, offset, out_handle, path, read_sized,
    syncline_create_options, syncline_file, syncline_open_options, syncline_statvfs, syncline_volume, text,
};
use crate::error::{Failure, Result, call};
use crate::handles::{self, Object, WholeVolume};
use crate::opened::OpenVolume;
use crate::snapshot::name;
use libc::c_int;
use std::ffi::{c_char, c_void};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use syncline::{AccessTimes, Context, File, MkfsOptions, Volume, VolumeOptions};

/// Longest label; the engine knows the same.
const LABEL_BYTES_MAX: usize = 64;
/// A wait that is meant to be for ever.
const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// # Safety
/// As for [`read_sized`]; the head is a string or NULL.
unsafe fn open_options(pointer: *const syncline_open_options) -> Result<VolumeOptions> {
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { read_sized(pointer, "the options of opening")? }) else {
        return Ok(VolumeOptions::new());
    };
    if given.flags & !(SYNCLINE_OPEN_READ_ONLY | SYNCLINE_OPEN_OWNER) != 0 || given.reserved != 0 {
        return Err(Failure::invalid("the options of opening have a flag that this version does not know"));
    }
    let mut options = VolumeOptions::new().read_only(given.flags & SYNCLINE_OPEN_READ_ONLY != 0);
    options = options.access_times(match given.access_times {
        0 => AccessTimes::Relative,
        1 => AccessTimes::Never,
        2 => AccessTimes::Always,
        _ => return Err(Failure::invalid("access_times is 0, 1 or 2")),
    });
    if given.wait_for_lock_ms > 0 {
        options = options.wait_for_lock(Duration::from_millis(given.wait_for_lock_ms).min(WAIT_MAX));
    }
    if given.commit_interval_ms > 0 {
        options = options.commit_interval(Duration::from_millis(given.commit_interval_ms).min(WAIT_MAX));
    }
    if given.memory_bytes_max > 0 {
        let bytes = usize::try_from(given.memory_bytes_max).unwrap_or(usize::MAX);
        options = options.memory_bytes_max(bytes);
    }
    if given.flags & SYNCLINE_OPEN_OWNER != 0 {
        if given.umask & !0o777 != 0 {
            return Err(Failure::invalid("the umask has bits beyond 0777"));
        }
        let (uid, gid, umask) = (given.uid, given.gid, given.umask);
        options = options.context(Context { uid, gid, umask, ..Context::root() });
    }
    if !given.head.is_null() {
        // SAFETY: the caller's promise.
        options = options.head(unsafe { name(given.head)? });
    }
    Ok(options)
}

/// # Safety
/// As for [`read_sized`]; the label is a string and the UUID 16 bytes, or NULL.
unsafe fn create_options(pointer: *const syncline_create_options) -> Result<MkfsOptions> {
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { read_sized(pointer, "the options of creation")? }) else {
        return Ok(MkfsOptions::default());
    };
    if given.root_mode & !0o7777 != 0 {
        return Err(Failure::invalid("the options of creation have a bit that this version does not know"));
    }
    let given_or_none = |bytes: u64| (bytes > 0).then_some(bytes);
    let mut options = MkfsOptions::default()
        .size_bytes(given_or_none(given.volume_bytes))
        .journal_bytes(given_or_none(given.journal_bytes))
        .root_uid(given.root_uid)
        .root_gid(given.root_gid);
    match given.format {
        0 => {}
        format @ 1..=2 => options = options.format(format),
        _ => return Err(Failure::invalid("the format's version is 1 or 2; 0 is the default")),
    }
    if given.root_mode != 0 {
        options = options.root_mode(given.root_mode);
    }
    if !given.label.is_null() {
        // SAFETY: the caller's promise.
        let label = unsafe { text(given.label, LABEL_BYTES_MAX, "the label")? };
        let label = std::str::from_utf8(label).map_err(|_| Failure::invalid("the label is not UTF-8"))?;
        options = options.label(label);
    }
    if !given.uuid.is_null() {
        // SAFETY: the caller's promise: 16 bytes, of any alignment.
        options = options.uuid(unsafe { given.uuid.cast::<[u8; 16]>().read_unaligned() });
    }
    Ok(options)
}

/// # Safety
/// As for [`out_handle`].
unsafe fn hand_out(out: *mut *mut syncline_volume, open: impl FnOnce() -> Result<Volume>) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let out = unsafe { out_handle(out, "where the volume goes")? };
    let handle = adopt(open()?)?;
    // SAFETY: as above.
    unsafe { out.put(handle) };
    Ok(0)
}

/// A handle of a volume that Rust code has opened, on whatever device.
pub fn adopt_volume(volume: Volume) -> std::result::Result<*mut syncline_volume, c_int> {
    adopt(volume).map_err(|failure| failure.code())
}

fn adopt(volume: Volume) -> Result<*mut syncline_volume> {
    handles::insert::<WholeVolume, _>(&OpenVolume::new(volume), Object::Volume)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_volume_create(
    image: *const c_char,
    create: *const syncline_create_options,
    open: *const syncline_open_options,
    volume: *mut *mut syncline_volume,
) -> c_int {
    call("syncline_volume_create", || {
        // SAFETY: the caller's promise.
        unsafe {
            hand_out(volume, || {
                let image = path(image, "the image's path")?;
                let create = create_options(create)?;
                Ok(open_options(open)?.create(image, &create)?)
            })
        }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_volume_create_in_memory(
    bytes: u64,
    create: *const syncline_create_options,
    open: *const syncline_open_options,
    volume: *mut *mut syncline_volume,
) -> c_int {
    call("syncline_volume_create_in_memory", || {
        // SAFETY: the caller's promise.
        unsafe {
            hand_out(volume, || {
                let create = create_options(create)?;
                Ok(open_options(open)?.create_in_memory(bytes, &create)?)
            })
        }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_volume_open(
    image: *const c_char,
    open: *const syncline_open_options,
    volume: *mut *mut syncline_volume,
) -> c_int {
    call("syncline_volume_open", || {
        // SAFETY: the caller's promise.
        unsafe {
            hand_out(volume, || {
                let image = path(image, "the image's path")?;
                Ok(open_options(open)?.open(image)?)
            })
        }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_volume_open_fd(
    descriptor: c_int,
    open: *const syncline_open_options,
    volume: *mut *mut syncline_volume,
) -> c_int {
    call("syncline_volume_open_fd", || {
        // SAFETY: the caller's promise.
        unsafe {
            hand_out(volume, || {
                let options = open_options(open)?;
                Ok(options.open_fd(descriptor_of(descriptor)?)?)
            })
        }
    })
}

/// A descriptor of the caller's, which is open. Errors: EBADF.
pub(crate) fn descriptor_of<'a>(descriptor: c_int) -> Result<BorrowedFd<'a>> {
    // SAFETY: any number can be asked for.
    if descriptor < 0 || unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
        return Err(Failure::new(libc::EBADF, format!("{descriptor} is no open descriptor")));
    }
    // SAFETY: it is open, and the header says that it stays so during the call.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_volume_close(volume: *mut syncline_volume) -> c_int {
    call("syncline_volume_close", || {
        let opened =
            handles::take_volume(volume.cast_const(), |opened| match opened.notifier().is_current() {
                true => Err(Failure::new(libc::EDEADLK, "a callback cannot close the volume that called it")),
                false => Ok(()),
            })?;
        handles::take_all_of(&opened);
        opened.close()?;
        Ok(0)
    })
}

pub(crate) fn on_volume<T>(
    volume: *mut syncline_volume,
    act: impl FnOnce(&Volume) -> Result<T>,
) -> Result<T> {
    handles::with(volume.cast_const(), |opened, _: &WholeVolume| act(opened.volume()))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_volume_sync(volume: *mut syncline_volume) -> c_int {
    call("syncline_volume_sync", || {
        on_volume(volume, |volume| Ok(volume.sync_all()?))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_volume_sync_files(
    volume: *mut syncline_volume,
    files: *const *mut syncline_file,
    count: usize,
) -> c_int {
    call("syncline_volume_sync_files", || {
        // SAFETY: the caller's promise.
        let files = unsafe { many(files, count)? };
        on_volume(volume, |volume| {
            let held = handles::hold::<File, _>(files)?;
            Ok(volume.sync_many(held.iter().map(|(_, file)| file.object()))?)
        })?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_volume_checkpoint(volume: *mut syncline_volume) -> c_int {
    call("syncline_volume_checkpoint", || {
        on_volume(volume, |volume| Ok(volume.checkpoint()?))?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_volume_trim(
    volume: *mut syncline_volume,
    start: i64,
    length: i64,
    length_min: i64,
) -> i64 {
    call("syncline_volume_trim", || {
        let (start, length) = (offset(start, "the offset")?, offset(length, "the length")?);
        let length_min = offset(length_min, "the least length")?;
        let end = if length == 0 { u64::MAX } else { start.saturating_add(length) };
        let trimmed = on_volume(volume, |volume| Ok(volume.trim(start..end, length_min)?))?;
        Ok(i64::try_from(trimmed).unwrap_or(i64::MAX))
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_volume_statvfs(
    volume: *mut syncline_volume,
    space: *mut syncline_statvfs,
) -> c_int {
    call("syncline_volume_statvfs", || {
        let out = Out::new(space, "where the figures go")?;
        let space = on_volume(volume, |volume| Ok(volume.statfs()))?;
        let told = syncline_statvfs {
            blocks: space.blocks,
            blocks_free: space.blocks_free,
            blocks_available: space.blocks_available,
            id: space.id,
            block_bytes: space.block_bytes,
            name_bytes_max: space.name_bytes_max,
            reserved: [0; 3],
        };
        // SAFETY: the caller's promise.
        unsafe { out.put(told) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_volume_stats_json(
    volume: *mut syncline_volume,
    buffer: *mut c_char,
    size: usize,
) -> isize {
    call("syncline_volume_stats_json", || {
        let stats = on_volume(volume, |volume| Ok(volume.stats().to_json()))?;
        // SAFETY: the caller's promise.
        unsafe { give(stats.as_bytes(), true, buffer.cast::<c_void>(), size) }
    })
}
