//! Carries out transactions on the engine and on the model (C4), and looks from outside while they are under way.
//!
//! What is judged at once: the transaction reads what it has staged; nobody else sees any of it before the commit; an
//! aborted one leaves the free space as it was; without anybody in between there is no conflict. That it is whole or
//! not there after a crash, and there once the commit has returned, is judged with the crash states. A failed read
//! stages nothing, so the operation is tried once more; a commit that fails with an I/O error is left to whoever
//! injected it ([`Model::settle_commit`]).

use crate::driver::{SimClock, Told, Unexpected, step};
use crate::operation::{End, Op, WriteKind, pattern};
use crate::oracle::{Model, difference};
use crate::view;
use parking_lot::Mutex;
use std::sync::Arc;
use syncline_fs::{Context, Error, Fs, ObjectNo, Transaction};

const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EIO: i32 = 5;
const EROFS: i32 = 30;
const E2BIG: i32 = 7;
const EBUSY: i32 = 16;

/// A transaction with everything staged.
pub struct Staged {
    pub transaction: Transaction,
    /// What it consists of: not what could not be absorbed.
    pub ops: Vec<Op>,
    /// The inode that each operation has made.
    pub made: Vec<u64>,
}

/// How staging went.
pub enum Staging {
    Staged(Box<Staged>),
    Told(Told),
}

/// Begins a transaction and stages operations; those behind an `absorb` in one of their own, which it absorbs then.
pub fn stage(fs: &Arc<Fs>, model: &mut Model, ops: &[Op], whole: &Op) -> Result<Staging, Unexpected> {
    let mut parts = Vec::new();
    for part in ops.split(|op| *op == Op::Absorb) {
        match stage_part(fs, model, part, whole)? {
            Staging::Staged(staged) => parts.push(*staged),
            told @ Staging::Told(_) => return Ok(told),
        }
    }
    let mut parts = parts.into_iter();
    let mut all = parts.next().expect("there is always a first part");
    for part in parts {
        match all.transaction.absorb(part.transaction) {
            Ok(()) => {
                all.ops.extend(part.ops);
                all.made.extend(part.made);
            }
            // It is as before, then.
            Err(Error::Conflict) if model.share_something(&all.ops, &part.ops) => {}
            Err(error) => return refused(model, &all.ops, whole, error.errno()).map(Staging::Told),
        }
    }
    Ok(Staging::Staged(Box::new(all)))
}

fn stage_part(fs: &Arc<Fs>, model: &mut Model, ops: &[Op], whole: &Op) -> Result<Staging, Unexpected> {
    let mut made = Vec::new();
    let mut transaction = match fs.begin() {
        Ok(transaction) => transaction,
        Err(error) => return Ok(Staging::Told(Told::Failed(error.errno()))),
    };
    for op in ops {
        let mut staged = stage_one(&mut transaction, op);
        if staged.as_ref().is_err_and(|error| error.errno() == EIO) && fs.failure().is_none() {
            staged = stage_one(&mut transaction, op);
        }
        match staged {
            Ok(number) => made.push(number),
            Err(error) => return refused(model, ops, whole, error.errno()).map(Staging::Told),
        }
    }
    Ok(Staging::Staged(Box::new(Staged { transaction, ops: ops.to_vec(), made })))
}

/// What is said of a transaction that was refused: the model has to refuse it as well, if not with the same words.
fn refused(model: &mut Model, ops: &[Op], whole: &Op, errno: i32) -> Result<Told, Unexpected> {
    match errno {
        ENOSPC => Ok(Told::NoSpace),
        EIO | EROFS => Ok(Told::Failed(errno)),
        E2BIG | EBUSY => Ok(Told::Refused(errno)),
        // Directories are left to single operations.
        EINVAL if names_directory(model, ops) => Ok(Told::Refused(errno)),
        _ => match model.would_apply(ops) {
            Err(_) => Ok(Told::Refused(errno)),
            Ok(()) => Err(Unexpected { op: whole.clone(), got: Some(errno), want: None }),
        },
    }
}

fn names_directory(model: &Model, ops: &[Op]) -> bool {
    let directories = &model.paths()[0];
    ops.iter().any(|op| match op {
        Op::Rename(old, new) => directories.contains(old) || directories.contains(new),
        Op::Link(old, _) => directories.contains(old),
        _ => false,
    })
}

/// Lets others act, ends the transaction, and tells the model.
pub fn finish(
    fs: &Arc<Fs>,
    clock: &SimClock,
    model: &mut Model,
    whole: &Op,
    staged: Staged,
) -> Result<Told, Unexpected> {
    let Op::Transaction { between, end, .. } = whole else { unreachable!("only transactions come here") };
    let unexpected = |got, want| Unexpected { op: whole.clone(), got, want };
    check_unseen(fs, model, whole);
    for op in between {
        match step(fs, clock, model, op)? {
            Told::Failed(errno) => return Ok(Told::Failed(errno)),
            Told::Done | Told::Refused(_) | Told::NoSpace => {}
        }
        // The transaction may remove what it changed.
        if model.has_times() && view::note_times(fs, model, op).is_err() {
            return Ok(Told::Failed(EIO));
        }
    }
    let Staged { transaction, ops, made } = staged;
    let committed = match end {
        End::Abort => {
            drop(transaction);
            return Ok(Told::Done);
        }
        End::Commit => transaction.commit(),
        End::Start => commit_polled(fs, transaction),
    };
    match committed {
        Ok(()) => {
            model.apply_together(&ops, &made).map_err(|want| unexpected(None, Some(want)))?;
            model.committed();
            Ok(Told::Done)
        }
        Err(Error::Conflict) if !between.is_empty() => Ok(Told::Refused(Error::Conflict.errno())),
        Err(Error::Conflict) => Err(unexpected(Some(Error::Conflict.errno()), None)),
        Err(error) => {
            if matches!(error.errno(), EIO | EROFS) {
                model.commit_failed(ops.clone(), made);
            }
            refused(model, &ops, whole, error.errno())
        }
    }
}

/// Starts a commit, and drives its force as the mount's driver does.
fn commit_polled(fs: &Fs, transaction: Transaction) -> Result<(), Error> {
    let answer = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&answer);
    transaction.commit_start(Box::new(move |result| {
        assert!(tell.lock().replace(result).is_none(), "a commit is answered once");
    }))?;
    let mut driven = Ok(());
    if answer.lock().is_none() {
        driven = fs.sync_metadata();
    }
    let answer =
        answer.lock().take().expect("C8: a commit that was started is answered when its force is over");
    assert!(answer.is_err() || driven.is_ok(), "C8: a commit is done although its force has failed");
    answer
}

/// How a commit that was only started has begun.
pub enum Started {
    /// Everything is visible; the number of the sync that the model waits for.
    Waiting(usize),
    Told(Told),
}

/// Starts a commit; others have acted since everything was staged, each of them told to the model.
pub fn start(
    fs: &Arc<Fs>,
    model: &mut Model,
    whole: &Op,
    staged: Staged,
    done: Box<dyn FnOnce(Result<(), Error>) + Send>,
) -> Result<Started, Unexpected> {
    let Op::Transaction { end, .. } = whole else { unreachable!("only transactions come here") };
    check_unseen(fs, model, whole);
    let Staged { transaction, ops, made } = staged;
    if *end == End::Abort {
        drop(transaction);
        return Ok(Started::Told(Told::Done));
    }
    match transaction.commit_start(done) {
        Ok(()) => match model.apply_together(&ops, &made) {
            Ok(()) => Ok(Started::Waiting(model.committed())),
            Err(want) => Err(Unexpected { op: whole.clone(), got: None, want: Some(want) }),
        },
        Err(Error::Conflict) => Ok(Started::Told(Told::Refused(Error::Conflict.errno()))),
        Err(error) => refused(model, &ops, whole, error.errno()).map(Started::Told),
    }
}

/// C4: nobody sees anything of a transaction before its commit. What an earlier operation has left otherwise than the
/// model has it comes out here too; the difference tells which of them it was.
fn check_unseen(fs: &Arc<Fs>, model: &Model, whole: &Op) {
    // Where reads fail there is nothing to see.
    if let Ok(view) = view::view(fs) {
        assert!(
            model.shows(&view),
            "C4: a transaction is seen before its commit, or one before it was not as it should be: {whole}: {}",
            difference(&model.live(), &view)
        );
    }
}

/// A whole transaction.
pub fn transact(fs: &Arc<Fs>, clock: &SimClock, model: &mut Model, op: &Op) -> Result<Told, Unexpected> {
    let Op::Transaction { ops, between, end } = op else { unreachable!("only transactions come here") };
    let look = || (fs.statfs().blocks_available, fs.stats().store.checkpoints);
    let (before, checkpoints) = look();
    let told = match stage(fs, model, ops, op)? {
        Staging::Staged(staged) => finish(fs, clock, model, op, *staged)?,
        Staging::Told(told) => told,
    };
    if *end == End::Abort && between.is_empty() && fs.failure().is_none() {
        let (after, checkpoints_after) = look();
        // Who finds no space has a checkpoint give back what was freed before.
        let relieved = checkpoints_after > checkpoints && after > before;
        assert!(
            after == before || relieved,
            "an aborted transaction changes the free blocks from {before} to {after}: {op}"
        );
    }
    Ok(told)
}

fn resolve(transaction: &mut Transaction, path: &str) -> Result<ObjectNo, Error> {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.into_iter().try_fold(ObjectNo::ROOT_DIR, |at, part| {
        transaction.lookup(at, part.as_bytes())?.ok_or(Error::NotFound)
    })
}

fn place<'a>(transaction: &mut Transaction, path: &'a str) -> Result<(ObjectNo, &'a [u8]), Error> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((resolve(transaction, directory)?, name.as_bytes()))
}

/// Stages one operation; returns the inode that it makes.
pub(crate) fn stage_one(transaction: &mut Transaction, op: &Op) -> Result<u64, Error> {
    match op {
        Op::Write { path, kind: WriteKind::Buffered, offset, len, fill } => {
            let file = resolve(transaction, path)?;
            let bytes = pattern(*fill, *offset, *len);
            transaction.write(file, *offset, &bytes)?;
            // To read is to wait for what is on its way to the device, so half of the writes are not read.
            if fill % 2 == 0 {
                let mut got = vec![0; bytes.len()];
                let count = transaction.read(file, *offset, &mut got)?;
                assert!(
                    count == bytes.len() && got == bytes,
                    "a transaction does not read what it wrote: {op}"
                );
            }
        }
        Op::Truncate { path, size } => {
            let file = resolve(transaction, path)?;
            transaction.truncate(file, *size)?;
            assert!(transaction.size(file)? == *size, "a transaction does not see the size it set: {op}");
        }
        Op::Creat(path) => {
            let (directory, name) = place(transaction, path)?;
            return Ok(transaction.create(&Context::root(), directory, name, 0o644)?.0);
        }
        Op::Link(old, new) => {
            let file = resolve(transaction, old)?;
            let (directory, name) = place(transaction, new)?;
            transaction.link(file, directory, name)?;
        }
        Op::Unlink(path) => {
            let (directory, name) = place(transaction, path)?;
            transaction.unlink(directory, name)?;
        }
        Op::Rename(old, new) => {
            let (from, name) = place(transaction, old)?;
            let (to, new_name) = place(transaction, new)?;
            transaction.rename(from, name, to, new_name, false)?;
        }
        Op::SetXattr { path, name, len, fill } => {
            let object = resolve(transaction, path)?;
            transaction.set_xattr(object, name.as_bytes(), &pattern(*fill, 0, *len))?;
        }
        Op::RemoveXattr { path, name } => {
            let object = resolve(transaction, path)?;
            transaction.remove_xattr(object, name.as_bytes())?;
        }
        _ => return Err(Error::Invalid("this is no operation of a transaction")),
    }
    Ok(0)
}
