/*
 * What a program can ask of files on a mounted Syncline volume beyond POSIX, as ioctls on an open file.
 *
 * Everything here is for regular files. On a file of another filesystem each call fails with ENOTTY, on a directory
 * with EISDIR, with an argument that this version does not understand with EINVAL. `reserved` fields and flags that
 * have no name below must be 0. Numbers and layouts stay as they are; later versions add to them.
 *
 * The kernel may hold data of a file that the daemon has not been told of: pages changed through mmap, and with the
 * mount option writeback_cache everything written. The functions below hand it on first (sync_file_range); who calls
 * ioctl(2) himself does the same, or msync(2).
 *
 * sync_file_range(2) alone is no sync on Syncline and no hint either. Without writeback_cache the kernel has nothing to
 * write and says nothing to the daemon; with it the data moves to the daemon, which begins to write pieces of 64 KiB
 * and more. Nothing is durable after it. Use the calls below instead.
 */
#ifndef SYNCLINE_IOCTL_H
#define SYNCLINE_IOCTL_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first #include: sync_file_range(2) needs it"
#endif

#include <errno.h>
#include <fcntl.h>
#include <linux/ioctl.h>
#include <linux/types.h>
#include <sys/ioctl.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SYNCLINE_IOC_MAGIC 0xe7

/* As fdatasync(2) instead of fsync(2): times and the like need not be durable. */
#define SYNCLINE_DATA 1u

/* A part of a file. A length of 0 means: up to the end, wherever that is. */
struct syncline_range {
	__u64 offset;
	__u64 length;
	__u32 flags; /* SYNCLINE_DATA */
	__u32 reserved;
	__u64 result; /* out */
};

/* A sync that was started. It belongs to the open file on which it was. */
struct syncline_ticket {
	__u64 ticket;
	__s32 error; /* out: 0, an error number, or EINPROGRESS */
	__u32 reserved;
};

/*
 * Makes the range durable, with everything needed to read it back, and every change of names and attributes on the
 * volume that was made before. No page outside of the range is written for it.
 */
#define SYNCLINE_IOC_SYNC_RANGE _IOW(SYNCLINE_IOC_MAGIC, 2, struct syncline_range)

/*
 * Starts the same and returns at once; `result` is a ticket. Whole files: offset and length 0. The sync goes on when
 * the file is closed. EAGAIN: 65,536 tickets of this open file or of this user are out already; ask for some.
 */
#define SYNCLINE_IOC_SYNC_START _IOWR(SYNCLINE_IOC_MAGIC, 3, struct syncline_range)

/* Whether the sync has ended: `error`. A ticket's end is told once; then it is no ticket any more (EINVAL). */
#define SYNCLINE_IOC_SYNC_POLL _IOWR(SYNCLINE_IOC_MAGIC, 4, struct syncline_ticket)

/* Waits until the sync has ended; returns 0 or fails as fsync would have. The ticket has ended with it. */
#define SYNCLINE_IOC_SYNC_WAIT _IOW(SYNCLINE_IOC_MAGIC, 5, struct syncline_ticket)

/*
 * Begins to write what is dirty in the range, and waits for nothing: a later sync then has less to do. Nothing is
 * durable after it. `result`: bytes that are on their way now; at the bound (16 MiB) less than there is.
 */
#define SYNCLINE_IOC_WRITE_BACK _IOWR(SYNCLINE_IOC_MAGIC, 6, struct syncline_range)

/*
 * Atomic changes of one file, as f2fs has them: what is written through this open file after START is durable and seen
 * after a crash with COMMIT, all of it or nothing. Writes, and truncations through this open file, are staged; ABORT,
 * closing the file, or the death of the process gives them up. START on a file that is not open for writing is EBADF, a
 * second one by somebody else EBUSY, COMMIT without START a plain sync. If somebody else has changed the same pages
 * meanwhile, COMMIT fails with EAGAIN; if there is more than one record of the journal can hold, a write or COMMIT
 * fails with E2BIG. Whenever COMMIT fails nothing of it is applied.
 *
 * A write that comes while COMMIT or ABORT is under way, in another thread, waits and fails with EBUSY. fsync(2) and
 * fdatasync(2) before COMMIT return 0, as on f2fs, and make durable what is committed: what is staged becomes durable
 * by COMMIT only.
 *
 * Use the file alone while atomic changes are under way. What others write to it is no part of them; and a page that
 * somebody else has changed through mmap is written back whole, with the bytes around his own as the page cache has
 * them: staged ones reach the file so by an ordinary write, before COMMIT or without it.
 *
 * Isolation: until COMMIT others who read through the kernel's page cache see what is staged, and fstat(2) tells the
 * staged size. What goes past the page cache (O_DIRECT) and the library sees what is committed. ABORT has the kernel
 * drop what it has cached.
 *
 * With the mount option writeback_cache there are none: no feature bit, and START is EOPNOTSUPP. The volatile writes of
 * old versions of f2fs (3 and 4) are EOPNOTSUPP.
 */
#ifndef F2FS_IOC_START_ATOMIC_WRITE
#define F2FS_IOCTL_MAGIC 0xf5
#define F2FS_IOC_START_ATOMIC_WRITE _IO(F2FS_IOCTL_MAGIC, 1)
#define F2FS_IOC_COMMIT_ATOMIC_WRITE _IO(F2FS_IOCTL_MAGIC, 2)
#define F2FS_IOC_ABORT_ATOMIC_WRITE _IO(F2FS_IOCTL_MAGIC, 5)
#define F2FS_IOC_GET_FEATURES _IOR(F2FS_IOCTL_MAGIC, 12, __u32)
#endif
#define SYNCLINE_F2FS_FEATURE_ATOMIC_WRITE 0x4u

/*
 * What is staged takes memory of the daemon and free space, so there are limits for each user over all open files, here
 * and for groups: 1,024 atomic changes under way (START and BEGIN fail with EAGAIN beyond that), and for others than
 * root and the user who runs the daemon an eighth of the mount's memory= and half of the space that is free. What goes
 * beyond those, or beyond the quarter of memory= that all users together have, fails with EDQUOT: commit or give up
 * some. `syncline stats` shows what is staged.
 */

/*
 * The same over several files. BEGIN gives a token, which belongs to the open file it was called on; that file is open
 * for writing (EBADF), but need not be changed itself; it can have 64 tokens (EAGAIN). Other files that the same user
 * has open for writing (EBADF) JOIN with the token: what is written through them is staged, also when they are closed
 * before the commit. rename(2) and link(2) of files that have joined are staged with it, if this user calls them (no
 * RENAME_EXCHANGE; the directory's listing shows them after the commit), and so is unlink(2) of a name that the group
 * has given. A file that this user creates under a name that the group has taken away is part of the group at once, so
 * that a temporary name can be used again. All of these fail with EBUSY while the group ends. Whatever else is made
 * under such a name (mknod(2), mkdir(2), symlink(2), link(2) of another file, a file of another user), and every other
 * change of a name that the group has taken away or given (rename(2) from it, over it or with RENAME_EXCHANGE,
 * unlink(2) by another user) fails with EBUSY as long as the group is open, and until the kernel has forgotten what it
 * showed. Directories are not part of groups: they are made, moved and removed at once. COMMIT makes everything durable
 * in one record with one flush. ABORT, closing the open file of BEGIN, or the death of its process gives everything up.
 * Behind COMMIT and ABORT writes through files that had joined are ordinary ones; where the open file of BEGIN was
 * closed instead, they fail with EBUSY until they join or START again, or are closed. A file can be part of one group
 * only (EBUSY), a token that is not known, or of another user or open file, is EINVAL.
 */
#define SYNCLINE_IOC_GROUP_BEGIN _IOR(SYNCLINE_IOC_MAGIC, 7, __u64)
#define SYNCLINE_IOC_GROUP_JOIN _IOW(SYNCLINE_IOC_MAGIC, 8, __u64)
#define SYNCLINE_IOC_GROUP_COMMIT _IOW(SYNCLINE_IOC_MAGIC, 9, __u64)
#define SYNCLINE_IOC_GROUP_ABORT _IOW(SYNCLINE_IOC_MAGIC, 10, __u64)

/*
 * A snapshot of the whole volume: how it was when the call returned, for good. On any open file or directory of the
 * volume. MAKE fills the fields in; what is only in the kernel (mmap, writeback_cache) is no part of the snapshot: call
 * syncfs(2) before. DELETE and RENAME (to `to`) go by `name`. NEXT tells the first snapshot whose `tree` is greater
 * than the given one, or fails with ENOENT. What HOLD was called for is not deleted (EBUSY) before RELEASE was. Names
 * have 1 to 255 bytes of UTF-8, a NUL behind them, no '/'. All but NEXT need CAP_SYS_ADMIN (EPERM). EEXIST: that name
 * is taken. EOPNOTSUPP: the volume has version 1. ENOSPC: too little would be left for the volume to go on. With
 * `expires` what MAKE makes is deleted in the background from then on, and with the flag HELD it is held.
 *
 * A head is a writable branch. MAKE_HEAD makes the head `to` of the snapshot `name`, and DELETE_HEAD deletes the head
 * `name`, which nobody has mounted (EBUSY). NEXT_HEAD tells heads as NEXT tells snapshots; `to` is the snapshot that
 * the head descends from, if that has a name.
 */
#define SYNCLINE_SNAPSHOT_MAKE 1u
#define SYNCLINE_SNAPSHOT_DELETE 2u
#define SYNCLINE_SNAPSHOT_RENAME 3u
#define SYNCLINE_SNAPSHOT_NEXT 4u
#define SYNCLINE_SNAPSHOT_HOLD 5u
#define SYNCLINE_SNAPSHOT_RELEASE 6u
#define SYNCLINE_SNAPSHOT_MAKE_HEAD 7u
#define SYNCLINE_SNAPSHOT_DELETE_HEAD 8u
#define SYNCLINE_SNAPSHOT_NEXT_HEAD 9u

#define SYNCLINE_SNAPSHOT_HELD 1u /* flag: is not deleted before it is released */
#define SYNCLINE_SNAPSHOT_DEFAULT 2u /* flag: the head that is shown when nobody names one */
#define SYNCLINE_SNAPSHOT_SCHEDULED 4u /* flag: the schedule has made it, and deletes it */

struct syncline_snapshot {
	__u32 action;
	__u32 tree; /* in and out */
	__u8 uuid[16]; /* out */
	__s64 seconds; /* out: when it was made */
	__u32 nanoseconds; /* out */
	__u32 flags; /* in and out */
	__u64 expires; /* in and out: seconds since 1970; 0: never */
	char name[256]; /* in and out */
	char to[256]; /* in and out */
};

#define SYNCLINE_IOC_SNAPSHOT _IOWR(SYNCLINE_IOC_MAGIC, 11, struct syncline_snapshot)

/*
 * How many bytes would become free if these snapshots were deleted together and nobody read them. Exact, but for the
 * few blocks of the tables in which snapshots are named; of a volume that changes meanwhile it is what is left of it.
 * Needs CAP_SYS_ADMIN (EPERM). ENOENT: one is not there. EINVAL: more than SYNCLINE_SNAPSHOT_USAGE_MAX.
 */
#define SYNCLINE_SNAPSHOT_USAGE_MAX 3840u

struct syncline_snapshot_usage {
	__u32 count; /* in: so many */
	__u32 reserved;
	__u64 bytes; /* out */
	__u32 trees[SYNCLINE_SNAPSHOT_USAGE_MAX]; /* in: as syncline_snapshot.tree */
};

#define SYNCLINE_IOC_SNAPSHOT_USAGE _IOWR(SYNCLINE_IOC_MAGIC, 12, struct syncline_snapshot_usage)

/*
 * The schedule of snapshots, as text with a NUL behind it: words with a space between them, such as "hourly=24 daily=7
 * weekly=4 monthly=12 keep-free=10% prefix=auto" (docs/snapshots.md). TELL tells it and fills the flags in, SET sets
 * it, END takes it away; what it has made stays. SET and END need CAP_SYS_ADMIN (EPERM). EINVAL: no schedule.
 */
#define SYNCLINE_SCHEDULE_TELL 1u
#define SYNCLINE_SCHEDULE_SET 2u
#define SYNCLINE_SCHEDULE_END 3u

#define SYNCLINE_SCHEDULE_EXISTS 1u /* flag */
#define SYNCLINE_SCHEDULE_PAUSED 2u /* flag: less is free than it keeps free; none is made, and the oldest go */

struct syncline_schedule {
	__u32 action;
	__u32 flags; /* out */
	char text[504]; /* in and out */
};

#define SYNCLINE_IOC_SCHEDULE _IOWR(SYNCLINE_IOC_MAGIC, 13, struct syncline_schedule)

/*
 * Which paths differ between the snapshot `older` and `newer`: a later snapshot, a head, or, if it is empty, the
 * mounted volume as it is (call syncfs(2) before). Begin with zeros but for the names and the flags. Each call fills
 * in `length` bytes of the answer, which begin at `offset` of it, and a token. Call again with the same structure and
 * `offset` advanced by `length`, until `length` is 0. What is not fetched for a minute may be gone (ESTALE).
 *
 * The answer is one `struct syncline_snapshot_change` after the other, each followed by its path and the path that it
 * had, without NUL. Paths have no leading slash. Needs CAP_SYS_ADMIN (EPERM). ENOENT: there is no such snapshot.
 */
#define SYNCLINE_DIFF_CONTENT 1u /* flag: what was written with the content that it had does not count */

struct syncline_snapshot_change {
	__u32 kind; /* 1 removed, 2 added, 3 renamed, 4 modified */
	__u32 flags; /* of what was modified: 1 its content, 2 its attributes */
	__u32 path_length; /* bytes */
	__u32 old_path_length; /* bytes; of what was renamed, else 0 */
};

struct syncline_snapshot_diff {
	__u64 token; /* in and out; 0 begins */
	__u64 offset; /* in */
	__u32 flags; /* in */
	__u32 length; /* out */
	char older[256]; /* in */
	char newer[256]; /* in */
	__u8 data[15368]; /* out */
};

#define SYNCLINE_IOC_SNAPSHOT_DIFF _IOWR(SYNCLINE_IOC_MAGIC, 14, struct syncline_snapshot_diff)

/* Hands the daemon what the kernel holds of the range. -1: errno. */
static inline int syncline_hand_on(int fd, __u64 offset, __u64 length)
{
	return sync_file_range(fd, (off64_t)offset, (off64_t)length,
			       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

/* 0, or -1 and errno. */
static inline int syncline_sync_range(int fd, __u64 offset, __u64 length, __u32 flags)
{
	struct syncline_range range = { offset, length, flags, 0, 0 };

	if (syncline_hand_on(fd, offset, length) < 0)
		return -1;
	return ioctl(fd, SYNCLINE_IOC_SYNC_RANGE, &range);
}

/* 0 and a ticket, or -1 and errno. */
static inline int syncline_sync_start(int fd, __u64 offset, __u64 length, __u32 flags, __u64 *ticket)
{
	struct syncline_range range = { offset, length, flags, 0, 0 };

	if (syncline_hand_on(fd, offset, length) < 0 || ioctl(fd, SYNCLINE_IOC_SYNC_START, &range) < 0)
		return -1;
	*ticket = range.result;
	return 0;
}

/* 1: ended well; 0: goes on; -1: ended with errno. */
static inline int syncline_sync_poll(int fd, __u64 ticket)
{
	struct syncline_ticket polled = { ticket, 0, 0 };

	if (ioctl(fd, SYNCLINE_IOC_SYNC_POLL, &polled) < 0)
		return -1;
	if (polled.error == EINPROGRESS)
		return 0;
	if (polled.error == 0)
		return 1;
	errno = polled.error;
	return -1;
}

/* 0, or -1 and errno. */
static inline int syncline_sync_wait(int fd, __u64 ticket)
{
	struct syncline_ticket waited = { ticket, 0, 0 };

	return ioctl(fd, SYNCLINE_IOC_SYNC_WAIT, &waited);
}

/* 0 and how many bytes were started, or -1 and errno. */
static inline int syncline_write_back(int fd, __u64 offset, __u64 length, __u64 *started)
{
	struct syncline_range range = { offset, length, 0, 0, 0 };

	if (syncline_hand_on(fd, offset, length) < 0 || ioctl(fd, SYNCLINE_IOC_WRITE_BACK, &range) < 0)
		return -1;
	*started = range.result;
	return 0;
}

/* 0 and a token, or -1 and errno. */
static inline int syncline_group_begin(int fd, __u64 *token)
{
	return ioctl(fd, SYNCLINE_IOC_GROUP_BEGIN, token);
}

/* 0, or -1 and errno. */
static inline int syncline_group_join(int fd, __u64 token)
{
	return ioctl(fd, SYNCLINE_IOC_GROUP_JOIN, &token);
}

/* 0, or -1 and errno. `fd` is that of syncline_group_begin. */
static inline int syncline_group_commit(int fd, __u64 token)
{
	return ioctl(fd, SYNCLINE_IOC_GROUP_COMMIT, &token);
}

/* 0, or -1 and errno. `fd` is that of syncline_group_begin. */
static inline int syncline_group_abort(int fd, __u64 token)
{
	return ioctl(fd, SYNCLINE_IOC_GROUP_ABORT, &token);
}

#ifdef __cplusplus
}
#endif

#endif
