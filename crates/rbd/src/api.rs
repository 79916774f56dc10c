//! The functions of librados and librbd that are used, as their headers declare them, loaded at run time.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// `rados_t`, `rados_ioctx_t`, `rbd_image_t` and `rbd_completion_t` are pointers to what nobody else looks into.
pub(crate) type Handle = *mut c_void;

/// `struct rbd_image_info_t`.
#[repr(C)]
pub(crate) struct ImageInfo {
    pub(crate) size: u64,
    pub(crate) object_size: u64,
    objects: u64,
    order: c_int,
    prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

/// `struct rbd_image_watcher_t`.
#[repr(C)]
pub(crate) struct Watcher {
    pub(crate) address: *mut c_char,
    id: i64,
    cookie: u64,
}

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(crate) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;

pub(crate) type Callback = extern "C" fn(Handle, *mut c_void);

macro_rules! api {
    ($($library:literal { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// Each is the function of this name.
        pub(crate) struct Api {
            $($(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        fn load() -> Result<Api, String> {
            $(
                let library = open($library)?;
                $(let $name = symbol(library, concat!(stringify!($name), "\0"))?;)*
            )*
            // SAFETY: a function of this name has this type, by the headers of the libraries of these versions.
            Ok(unsafe { Api { $($($name: std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) $(-> $result)?>($name),)*)* } })
        }
    };
}

api! {
    c"librados.so.2" {
        rados_create2: fn(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
        rados_conf_set: fn(Handle, *const c_char, *const c_char) -> c_int;
        rados_conf_read_file: fn(Handle, *const c_char) -> c_int;
        rados_conf_parse_env: fn(Handle, *const c_char) -> c_int;
        rados_connect: fn(Handle) -> c_int;
        rados_shutdown: fn(Handle);
        rados_mon_command: fn(Handle, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize) -> c_int;
        rados_ioctx_create: fn(Handle, *const c_char, *mut Handle) -> c_int;
        rados_ioctx_set_namespace: fn(Handle, *const c_char);
        rados_ioctx_destroy: fn(Handle);
    }
    c"librbd.so.1" {
        rbd_open: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_open_read_only: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_close: fn(Handle) -> c_int;
        rbd_stat: fn(Handle, *mut ImageInfo, usize) -> c_int;
        rbd_get_features: fn(Handle, *mut u64) -> c_int;
        rbd_lock_acquire: fn(Handle, c_int) -> c_int;
        rbd_lock_release: fn(Handle) -> c_int;
        rbd_list_lockers: fn(Handle, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize) -> isize;
        rbd_lock_break: fn(Handle, c_int, *const c_char) -> c_int;
        rbd_watchers_list: fn(Handle, *mut Watcher, *mut usize) -> c_int;
        rbd_watchers_list_cleanup: fn(*mut Watcher, usize);
        rbd_aio_create_completion: fn(*mut c_void, Callback, *mut Handle) -> c_int;
        rbd_aio_get_return_value: fn(Handle) -> isize;
        rbd_aio_release: fn(Handle);
        rbd_aio_read: fn(Handle, u64, usize, *mut c_char, Handle) -> c_int;
        rbd_aio_writev: fn(Handle, *const libc::iovec, c_int, u64, Handle) -> c_int;
        rbd_aio_discard: fn(Handle, u64, u64, Handle) -> c_int;
        rbd_aio_flush: fn(Handle, Handle) -> c_int;
    }
}

/// The functions, loaded once. The libraries stay: they have threads.
pub(crate) fn api() -> Result<&'static Api, String> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn open(name: &CStr) -> Result<Handle, String> {
    // SAFETY: the name is a string that ends with NUL. What the libraries do when they are loaded is theirs.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() { Err(why()) } else { Ok(library) }
}

fn symbol(library: Handle, name: &str) -> Result<Handle, String> {
    // SAFETY: the library is open, and the name ends with NUL.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if symbol.is_null() { Err(why()) } else { Ok(symbol) }
}

fn why() -> String {
    // SAFETY: the string is this thread's until its next call of these functions, and is copied before.
    let told = unsafe { libc::dlerror() };
    if told.is_null() {
        return "no reason is told".to_owned();
    }
    // SAFETY: a string that ends with NUL, as the line above says.
    unsafe { CStr::from_ptr(told) }.to_string_lossy().into_owned()
}
