//! Transactions.

use crate::abi::{
    buffer, data, offset, out_handle, path, syncline_callback, syncline_file, syncline_sync_ticket,
    syncline_transaction, syncline_volume,
};
use crate::attributes::attribute;
use crate::error::{Failure, Result, call};
use crate::handles::{self, Object, WholeVolume};
use crate::notifier::Target;
use crate::ticket::{event_of, somebody_knows, start, target_of};
use libc::c_int;
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::io;
use std::path::Path;
use syncline::{File, TransactionFile, VolumeTransaction};

/// A transaction, and the files that the caller has numbers of.
pub(crate) struct Staged {
    transaction: VolumeTransaction,
    files: HashMap<i64, TransactionFile>,
}

impl Staged {
    /// The file's number for the caller: its inode number.
    fn number(&mut self, file: TransactionFile) -> Result<i64> {
        let number = i64::try_from(file.inode().0);
        let number = number.map_err(|_| Failure::new(libc::EOVERFLOW, "the inode number is too large"))?;
        self.files.insert(number, file);
        Ok(number)
    }

    fn file(&self, number: i64) -> Result<TransactionFile> {
        let none = || Failure::new(libc::EBADF, format!("{number} is no file of this transaction"));
        self.files.get(&number).copied().ok_or_else(none)
    }
}

fn on<T>(transaction: *mut syncline_transaction, act: impl FnOnce(&mut Staged) -> Result<T>) -> Result<T> {
    handles::with_mut(transaction.cast_const(), |_, staged: &mut Box<Staged>| act(staged))
}

/// Does something with a path; an error's sentence names it.
fn at<T>(
    transaction: *mut syncline_transaction,
    path: &Path,
    act: impl FnOnce(&mut VolumeTransaction) -> io::Result<T>,
) -> Result<T> {
    on(transaction, |staged| act(&mut staged.transaction).map_err(|error| Failure::from(error).of_path(path)))
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_begin(
    volume: *mut syncline_volume,
    transaction: *mut *mut syncline_transaction,
) -> c_int {
    call("syncline_transaction_begin", || {
        // SAFETY: the caller's promise.
        let out = unsafe { out_handle(transaction, "where the transaction goes")? };
        let handle = handles::with(volume.cast_const(), |opened, _: &WholeVolume| {
            let staged = Staged { transaction: opened.volume().transaction()?, files: HashMap::new() };
            handles::insert::<Box<Staged>, _>(opened, Object::Transaction(Box::new(staged)))
        })?;
        // SAFETY: as above.
        unsafe { out.put(handle) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_open(
    transaction: *mut syncline_transaction,
    name: *const c_char,
) -> i64 {
    call("syncline_transaction_open", || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        let file = at(transaction, name, |transaction| transaction.open(name))?;
        on(transaction, |staged| staged.number(file))
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_create(
    transaction: *mut syncline_transaction,
    name: *const c_char,
    mode: u32,
) -> i64 {
    call("syncline_transaction_create", || {
        if mode & !0o7777 != 0 {
            return Err(Failure::invalid("the mode has bits beyond 07777"));
        }
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        let file = at(transaction, name, |transaction| transaction.create_with_mode(name, mode))?;
        on(transaction, |staged| staged.number(file))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_transaction_join(
    transaction: *mut syncline_transaction,
    file: *mut syncline_file,
) -> i64 {
    call("syncline_transaction_join", || {
        on(transaction, |staged| {
            // One handle at a time is locked otherwise, so that this order is the only one.
            let joined =
                handles::with(file.cast_const(), |_, file: &File| Ok(staged.transaction.join(file)?))?;
            staged.number(joined)
        })
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_exists(
    transaction: *mut syncline_transaction,
    name: *const c_char,
) -> c_int {
    call("syncline_transaction_exists", || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        Ok(c_int::from(at(transaction, name, |transaction| transaction.try_exists(name))?))
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_pread(
    transaction: *mut syncline_transaction,
    file: i64,
    into: *mut c_void,
    length: usize,
    begin: i64,
) -> isize {
    call("syncline_transaction_pread", || {
        // SAFETY: the caller's promise.
        let into = unsafe { buffer(into, length)? };
        let begin = offset(begin, "the offset")?;
        on(transaction, |staged| {
            let file = staged.file(file)?;
            Ok(staged.transaction.read_at(file, into, begin)? as isize)
        })
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_pwrite(
    transaction: *mut syncline_transaction,
    file: i64,
    from: *const c_void,
    length: usize,
    begin: i64,
) -> isize {
    call("syncline_transaction_pwrite", || {
        // SAFETY: the caller's promise.
        let from = unsafe { data(from, length)? };
        let begin = offset(begin, "the offset")?;
        on(transaction, |staged| {
            let file = staged.file(file)?;
            staged.transaction.write_at(file, from, begin)?;
            Ok(from.len() as isize)
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_transaction_truncate(
    transaction: *mut syncline_transaction,
    file: i64,
    size: i64,
) -> c_int {
    call("syncline_transaction_truncate", || {
        let size = offset(size, "the size")?;
        on(transaction, |staged| {
            let file = staged.file(file)?;
            Ok(staged.transaction.set_len(file, size)?)
        })?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_transaction_size(transaction: *mut syncline_transaction, file: i64) -> i64 {
    call("syncline_transaction_size", || {
        on(transaction, |staged| {
            let file = staged.file(file)?;
            Ok(staged.transaction.len(file)? as i64)
        })
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_rename(
    transaction: *mut syncline_transaction,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    call("syncline_transaction_rename", || {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (path(from, "the old path")?, path(to, "the new path")?) };
        at(transaction, from, |transaction| transaction.rename(from, to))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_link(
    transaction: *mut syncline_transaction,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    call("syncline_transaction_link", || {
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (path(from, "the path")?, path(to, "the new path")?) };
        at(transaction, to, |transaction| transaction.hard_link(from, to))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_unlink(
    transaction: *mut syncline_transaction,
    name: *const c_char,
) -> c_int {
    call("syncline_transaction_unlink", || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name, "the path")? };
        at(transaction, name, |transaction| transaction.remove_file(name))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_setxattr(
    transaction: *mut syncline_transaction,
    name: *const c_char,
    key: *const c_char,
    value: *const c_void,
    size: usize,
) -> c_int {
    call("syncline_transaction_setxattr", || {
        // SAFETY: the caller's promise.
        let (name, key, value) = unsafe { (path(name, "the path")?, attribute(key)?, data(value, size)?) };
        at(transaction, name, |transaction| transaction.set_xattr(name, key, value))?;
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_removexattr(
    transaction: *mut syncline_transaction,
    name: *const c_char,
    key: *const c_char,
) -> c_int {
    call("syncline_transaction_removexattr", || {
        // SAFETY: the caller's promise.
        let (name, key) = unsafe { (path(name, "the path")?, attribute(key)?) };
        at(transaction, name, |transaction| transaction.remove_xattr(name, key))?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_transaction_commit(transaction: *mut syncline_transaction) -> c_int {
    call("syncline_transaction_commit", || {
        handles::end(transaction.cast_const(), |_, staged: Box<Staged>| Ok(staged.transaction.commit()?))?;
        Ok(0)
    })
}

/// # Safety
/// As for [`start`].
unsafe fn start_commit(
    transaction: *mut syncline_transaction,
    target: Option<Target>,
    ticket: *mut *mut syncline_sync_ticket,
) -> Result<c_int> {
    somebody_knows(&target, ticket)?;
    handles::end(transaction.cast_const(), |volume, staged: Box<Staged>| {
        // SAFETY: the caller's promise.
        unsafe { start(volume, target, ticket, || staged.transaction.commit_async()) }
    })?;
    Ok(0)
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_commit_start(
    transaction: *mut syncline_transaction,
    callback: syncline_callback,
    context: *mut c_void,
    ticket: *mut *mut syncline_sync_ticket,
) -> c_int {
    call("syncline_transaction_commit_start", || {
        // SAFETY: the caller's promise.
        unsafe { start_commit(transaction, target_of(callback, context), ticket) }
    })
}

/// See the header.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syncline_transaction_commit_start_eventfd(
    transaction: *mut syncline_transaction,
    eventfd: c_int,
    ticket: *mut *mut syncline_sync_ticket,
) -> c_int {
    call("syncline_transaction_commit_start_eventfd", || {
        let target = event_of(eventfd)?;
        // SAFETY: the caller's promise.
        unsafe { start_commit(transaction, target, ticket) }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn syncline_transaction_abort(transaction: *mut syncline_transaction) -> c_int {
    call("syncline_transaction_abort", || {
        handles::end(transaction.cast_const(), |_, staged: Box<Staged>| {
            drop(staged);
            Ok(())
        })?;
        Ok(0)
    })
}
