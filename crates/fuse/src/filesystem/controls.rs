//! The ioctls that are calls of their own: on open files syncs of ranges, started syncs, writeback hints
//! (`include/syncline/ioctl.h`), and the trim, on files and directories.

use super::{Caller, Filesystem};
use crate::account::Began;
use crate::convert::{errno, handle};
use crate::differences::DiffArgument;
use crate::ioctl::{self, RangeArgument, TicketArgument, TrimArgument};
use crate::privilege::may_administer;
use crate::schedule::ScheduleArgument;
use crate::snapshots::{self, SnapshotArgument};
use crate::syncs::Owed;
use fusering::request::Ioctl;
use fusering::{Errno, Handle, ReplyIoctl, RequestContext};
use std::ops::Range;
use syncline_fs::{Error, HandleId, Reach, SyncScope};

/// One of these calls.
pub(super) enum Control {
    SyncRange(RangeArgument),
    SyncStart(RangeArgument),
    SyncPoll(TicketArgument),
    SyncWait(TicketArgument),
    WriteBack(RangeArgument),
    Trim(TrimArgument),
    Snapshot(Box<SnapshotArgument>),
    SnapshotUsage(Vec<u32>),
    Schedule(ScheduleArgument),
    Diff(Box<DiffArgument>),
}

impl Control {
    /// `None`: another ioctl. Errors: EISDIR where no file is open, EINVAL for an argument that is not understood.
    pub(super) fn of(request: &Ioctl<'_>) -> Option<Result<Control, Errno>> {
        let range = |control: fn(RangeArgument) -> Control| {
            RangeArgument::decode(request.input).map(control).ok_or(Errno::EINVAL)
        };
        let ticket = |control: fn(TicketArgument) -> Control| {
            TicketArgument::decode(request.input).map(control).ok_or(Errno::EINVAL)
        };
        let control = match request.command {
            ioctl::SYNC_RANGE => range(Control::SyncRange),
            ioctl::SYNC_START => range(Control::SyncStart),
            ioctl::SYNC_POLL => ticket(Control::SyncPoll),
            ioctl::SYNC_WAIT => ticket(Control::SyncWait),
            ioctl::WRITE_BACK => range(Control::WriteBack),
            ioctl::TRIM => {
                let argument = TrimArgument::decode(request.input).ok_or(Errno::EINVAL);
                return Some(argument.map(Control::Trim));
            }
            ioctl::SNAPSHOT => {
                let argument = SnapshotArgument::decode(request.input).ok_or(Errno::EINVAL);
                return Some(argument.map(|argument| Control::Snapshot(Box::new(argument))));
            }
            ioctl::SNAPSHOT_USAGE => {
                let trees = snapshots::decode_usage(request.input).ok_or(Errno::EINVAL);
                return Some(trees.map(Control::SnapshotUsage));
            }
            ioctl::SCHEDULE => {
                let argument = ScheduleArgument::decode(request.input).ok_or(Errno::EINVAL);
                return Some(argument.map(Control::Schedule));
            }
            ioctl::SNAPSHOT_DIFF => {
                let argument = DiffArgument::decode(request.input).ok_or(Errno::EINVAL);
                return Some(argument.map(|argument| Control::Diff(Box::new(argument))));
            }
            _ => return None,
        };
        // Directories are opened without asking, so they have no handle.
        Some(if request.handle == Handle(0) { Err(Errno::EISDIR) } else { control })
    }
}

fn scope(argument: &RangeArgument) -> SyncScope {
    if argument.data_only { SyncScope::Data } else { SyncScope::All }
}

impl Filesystem {
    pub(super) fn control(
        &self,
        context: &RequestContext<'_>,
        file: Handle,
        control: Result<Control, Errno>,
        reply: ReplyIoctl,
    ) {
        let file = handle(file);
        match control {
            Err(errno) => reply.error(errno),
            Ok(Control::SyncRange(argument)) => self.sync_range(context, file, argument, reply),
            Ok(Control::SyncStart(argument)) => self.start_sync(context, file, argument, reply),
            Ok(Control::SyncPoll(argument)) => {
                let polled = self.operations.syncs.tickets().poll(file, argument.ticket);
                match polled {
                    Ok(ended) => {
                        let error = match ended {
                            None => libc::EINPROGRESS,
                            Some(result) => result.err().map_or(0, Errno::number),
                        };
                        reply.output(0, &TicketArgument { error, ..argument }.encode());
                    }
                    Err(errno) => reply.error(errno),
                }
            }
            Ok(Control::SyncWait(argument)) => {
                self.operations.syncs.tickets().wait(file, argument.ticket, reply);
            }
            Ok(Control::Trim(argument)) => self.trim(context, argument, reply),
            Ok(Control::Snapshot(argument)) => self.snapshot(context, *argument, reply),
            Ok(Control::SnapshotUsage(trees)) => self.snapshot_usage(context, trees, reply),
            Ok(Control::Schedule(argument)) => self.schedule(context, argument, reply),
            Ok(Control::Diff(argument)) => self.diff(context, *argument, reply),
            Ok(Control::WriteBack(argument)) => {
                match self.operations.fs.files().write_back_handle(file, argument.range.clone()) {
                    Ok(started) => reply.output(0, &argument.encode(started.bytes)),
                    Err(error) => reply.error(errno(error)),
                }
            }
        }
    }

    fn trim(&self, context: &RequestContext<'_>, argument: TrimArgument, reply: ReplyIoctl) {
        self.serve(context, true, move |operations, caller: &Caller| {
            if !may_administer(caller) {
                return reply.error(Errno::EPERM);
            }
            match operations.fs.trim(argument.range.clone(), argument.length_min) {
                Ok(discarded) => reply.output(0, &argument.encode(discarded)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn snapshot(&self, context: &RequestContext<'_>, argument: SnapshotArgument, reply: ReplyIoctl) {
        self.serve(context, true, move |operations, caller: &Caller| {
            if argument.is_change() && !may_administer(caller) {
                return reply.error(Errno::EPERM);
            }
            let deletes = argument.is_deletion();
            let done = argument.run(&operations.fs, operations.mounts.fs()).map(|told| told.encode());
            if deletes {
                operations.mounts.snapshot_deleted();
            }
            match done {
                Ok(Some(told)) => reply.output(0, &told),
                Ok(None) => reply.error(Errno::EIO),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn snapshot_usage(&self, context: &RequestContext<'_>, trees: Vec<u32>, reply: ReplyIoctl) {
        self.serve(context, true, move |operations, caller: &Caller| {
            // It reads as much as the snapshots differ in.
            if !may_administer(caller) {
                return reply.error(Errno::EPERM);
            }
            match operations.fs.usage_of(&trees) {
                Ok(bytes) => reply.output(0, &snapshots::encode_usage(&trees, bytes)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn schedule(&self, context: &RequestContext<'_>, argument: ScheduleArgument, reply: ReplyIoctl) {
        self.serve(context, true, move |operations, caller: &Caller| {
            if argument.is_change() && !may_administer(caller) {
                return reply.error(Errno::EPERM);
            }
            match argument.run(operations.mounts.fs()) {
                Ok(told) => reply.output(0, &told),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn diff(&self, context: &RequestContext<'_>, argument: DiffArgument, reply: ReplyIoctl) {
        self.serve(context, true, move |operations, caller: &Caller| {
            // It reads as much as the snapshots differ in, and tells names that the caller may not see.
            if !may_administer(caller) {
                return reply.error(Errno::EPERM);
            }
            let mounts = &operations.mounts;
            match mounts.differences().run(argument, &operations.fs, mounts.fs()) {
                Ok(told) => reply.output(0, &told[..]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn sync_range(
        &self,
        context: &RequestContext<'_>,
        file: HandleId,
        argument: RangeArgument,
        reply: ReplyIoctl,
    ) {
        let (began, reach) = (Began::now(context.pid), Reach::Range(argument.range.clone()));
        match self.operations.fs.syncs().plan(file, scope(&argument), reach) {
            Ok(plan) => self.sync(context, plan, began, Owed::Controlled(reply)),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Answers with the ticket before anything is written.
    fn start_sync(
        &self,
        context: &RequestContext<'_>,
        file: HandleId,
        argument: RangeArgument,
        reply: ReplyIoctl,
    ) {
        let syncs = &self.operations.syncs;
        let reach = match argument.range {
            Range { start: 0, end: u64::MAX } => Reach::Whole,
            ref range => Reach::Range(range.clone()),
        };
        let planned = self.operations.fs.syncs().plan(file, scope(&argument), reach);
        if let Err(error @ Error::BadHandle) = planned {
            return reply.error(errno(error));
        }
        let ticket = match syncs.tickets().issue(file, context.uid) {
            Ok(ticket) => ticket,
            Err(errno) => return reply.error(errno),
        };
        let began = Began::now(context.pid);
        // From here on the caller may close the file: the plan keeps the inode.
        reply.output(0, &argument.encode(ticket));
        let committed = match &planned {
            Ok(plan) => self.operations.fs.syncs().try_commit(plan),
            Err(error) => Err(error.clone()),
        };
        self.serve(context, matches!(committed, Ok(None)), move |operations, _: &Caller| {
            operations.syncs.start_ticket(file, planned, committed, ticket, began);
        });
    }
}
