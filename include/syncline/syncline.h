/*
 * libsyncline: Syncline volumes inside of a program. docs/c.md begins with a complete small one.
 *
 * ERRORS. Functions that return int, ssize_t or int64_t return 0 or more when all is well, and a negative error number
 * (-ENOENT, not -1 with errno) when not. errno itself is not used. syncline_last_error() then has a sentence for
 * people. What every function can return is not repeated below:
 *   -EFAULT   a pointer is NULL that must not be; a buffer may be NULL if its length is 0.
 *   -EINVAL   an offset, size or length is negative, or a length is more than SSIZE_MAX; a flag or a mode is not
 *             known.
 *   -ENAMETOOLONG  a path has more than 4096 bytes, or one of its names more than 255.
 *   -EBADF    the handle was closed, its volume was closed, or it never was a handle of this kind.
 *   -ESTALE   the handle is another process': see FORK.
 *   -EIO      the device failed, or what it returned is damaged; behind a failed write or flush the volume has
 *             stopped, and refuses changes with -EROFS and syncs with -EIO (docs/contract.md, C8). Or the library has
 *             met a bug of its own: it stops the volume then, as a power cut would, and every further call on it is
 *             -EIO. Close it and open it again.
 *   -EROFS    a change on a volume that is read-only, or has stopped.
 *   -ENOSPC   no space is left.
 * Functions by path return -ENOENT, -ENOTDIR and -ELOOP where open(2) would.
 *
 * HANDLES. A syncline_volume, _file, _dir, _transaction or _sync_ticket is made by this library, belongs to the
 * caller, and is ended by exactly one call, which is named where it is made. It is opaque and is never followed as a
 * pointer: one that has been ended is refused (-EBADF), and so is NULL (-EFAULT). Ending a handle waits for the calls
 * on it that are under way. Where a function makes one, it stores NULL first and the handle only if it returns 0.
 * Closing a volume ends all handles of it.
 *
 * MEMORY. Everything else belongs to the caller: strings, buffers and structures are read or filled in during the call
 * and not kept. Nothing that this library returns is to be freed. Functions that return text or bytes of a length that
 * is not known before (readlink, realpath, getxattr, listxattr, stats_json) return their length; with a size of 0 they
 * only tell it, and a buffer that is too small is -ERANGE.
 *
 * THREADS. Every function may be called from any thread, and by many at once, also with the same handle. Calls on one
 * syncline_dir or syncline_transaction are done one after another. No function may be called from a signal handler. A
 * thread must not be ended by pthread_cancel(3) or by a C++ exception within a call.
 *
 * FORK. A volume belongs to the process that opened it. In a child every inherited handle is refused with -ESTALE and
 * one sentence, at once; the child's end does its parent no harm. A child that was forked while its parent had a
 * volume open cannot open one itself (-ESTALE), until it calls exec(3). Call daemon(3) first, and open then.
 *
 * PATHS are relative to the volume's root, with or without a leading slash: there is no current directory. Symbolic
 * links are followed within the volume. Names are bytes without a slash; no encoding is asked for.
 *
 * PERMISSIONS are stored and not checked: a program that has opened a volume may do everything.
 *
 * DURABILITY is that of docs/contract.md. In short: what a sync of a file covers survives any crash once the sync has
 * returned 0, and with it every change of names that returned before. Closing makes files durable only with
 * syncline_volume_close().
 *
 * Functions and layouts stay as they are: later versions add to them (symbol versions SYNCLINE_1.x). This header needs
 * C11 or C++11 and a 64-bit Linux.
 */
#ifndef SYNCLINE_SYNCLINE_H
#define SYNCLINE_SYNCLINE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct syncline_volume syncline_volume;
typedef struct syncline_file syncline_file;
typedef struct syncline_dir syncline_dir;
typedef struct syncline_transaction syncline_transaction;
typedef struct syncline_sync_ticket syncline_sync_ticket;

/* ---- The library ---- */

/* The version of the library, "0.1.0". Static. */
const char *syncline_version(void);

/*
 * Why this thread's last failed call has failed: one sentence, which begins with the function's name. Never NULL; ""
 * if none has failed yet. Belongs to the library, and stays as it is until the next call of this thread that fails, or
 * the thread's end.
 */
const char *syncline_last_error(void);

/* ---- Volumes ---- */

/* Writes nothing, not even recovery; others may read the volume at the same time. */
#define SYNCLINE_OPEN_READ_ONLY 1u
/* uid, gid and umask are those of what is created. Without it: root's, and 022. */
#define SYNCLINE_OPEN_OWNER 2u

/* For access_times. */
#define SYNCLINE_ATIME_RELATIVE 0u
#define SYNCLINE_ATIME_NEVER 1u
#define SYNCLINE_ATIME_ALWAYS 2u

/*
 * How a volume is opened. Set all of it to zeros, then `size`, then what is wanted; a zero is the default. A field
 * that this version of the library does not know is -E2BIG if it is set.
 */
struct syncline_open_options {
	size_t size;                 /* sizeof(struct syncline_open_options) */
	uint32_t flags;              /* SYNCLINE_OPEN_* */
	uint32_t access_times;       /* SYNCLINE_ATIME_* */
	uint64_t wait_for_lock_ms;   /* how long to wait for another process to leave the volume; 0: -EBUSY at once */
	uint64_t commit_interval_ms; /* how long un-synced data may stay unwritten; 0: 1000 */
	uint64_t memory_bytes_max;   /* bound on memory for data and metadata; 0: 256 MiB */
	uint32_t uid, gid, umask;    /* with SYNCLINE_OPEN_OWNER */
	uint32_t reserved;           /* 0 */
	const char *head;            /* the head that is opened; NULL: the one that is shown when nobody names one */
};

/* How a volume is made; to be filled in in the same way. */
struct syncline_create_options {
	size_t size;            /* sizeof(struct syncline_create_options) */
	uint64_t volume_bytes;  /* size; the image becomes a file of that size. 0: the image or device is used as it is */
	uint64_t journal_bytes; /* 0: by the volume's size */
	const char *label;      /* at most 64 bytes of UTF-8; NULL: none */
	const uint8_t *uuid;    /* 16 bytes; NULL: random */
	uint32_t root_uid, root_gid;
	uint32_t root_mode;     /* of the root directory; 0: 0755 */
	uint32_t format;        /* version: 0: the default, which is 2; 1: a volume that has no snapshots before an upgrade */
};

/*
 * Makes an empty volume in an image file or on a block device, and opens it. The handle is ended by
 * syncline_volume_close(). Either of the options may be NULL.
 * Errors: -EEXIST (there is a volume or another file system on it, or it is a file that holds anything but zeros in
 * its first 128 KiB), -EBUSY (in use), -EINVAL (too small), those of open(2). An image that was made for it is removed
 * then.
 */
int syncline_volume_create(const char *image, const struct syncline_create_options *create,
			   const struct syncline_open_options *open, syncline_volume **volume);

/*
 * Makes a volume of `bytes` bytes in memory, which ends with the handle. It takes the memory only that is written to.
 */
int syncline_volume_create_in_memory(uint64_t bytes, const struct syncline_create_options *create,
				     const struct syncline_open_options *open, syncline_volume **volume);

/*
 * Opens the volume in an image file or on a block device, or at an address (nbd://host/export,
 * nbd+unix:///export?socket=/path, rbd:pool/image), and recovers it if it was not closed. The handle is ended by
 * syncline_volume_close(). Options may be NULL.
 * Errors: -EBUSY (another process, or this one, has it open: see wait_for_lock_ms), -EIO (no volume, or damaged),
 * -ENOENT (also: it has no such head), those of open(2).
 */
int syncline_volume_open(const char *image, const struct syncline_open_options *open, syncline_volume **volume);

/*
 * The same for an image file or block device that is open as `descriptor`. The library opens it once more (through
 * /proc): the descriptor stays the caller's, who may close it at any time, and its access mode does not matter.
 */
int syncline_volume_open_fd(int descriptor, const struct syncline_open_options *open, syncline_volume **volume);

/*
 * Writes everything, ends all handles of the volume, and marks it clean. The handle is gone and the image is free
 * whatever is returned; an error tells that something un-synced could not be written. It waits for calls that are
 * under way, for syncs that were started, and for their callbacks; none is called afterwards. Transactions that were
 * not committed are given up. Not closing loses nothing that was synced.
 * Errors: -EDEADLK from a callback of the same volume; the volume stays open then.
 */
int syncline_volume_close(syncline_volume *volume);

/* Makes everything on the volume durable, un-synced data of all files included. */
int syncline_volume_sync(syncline_volume *volume);

/*
 * Makes several files of the volume durable with one group commit. All are tried; the first error is returned.
 * Errors: -EINVAL for a file of another volume.
 */
int syncline_volume_sync_files(syncline_volume *volume, syncline_file *const *files, size_t count);

/* Writes a checkpoint, so that the next open has little to recover. Not needed for durability. */
int syncline_volume_checkpoint(syncline_volume *volume);

/*
 * Tells the device which blocks of a range of the volume's bytes are free, in runs of at least `length_min` bytes; a
 * length of 0 is up to the end. Returns how many bytes that were. An image file gets holes there. Errors: -EOPNOTSUPP
 * if the device cannot discard.
 */
int64_t syncline_volume_trim(syncline_volume *volume, int64_t offset, int64_t length, int64_t length_min);

/* Space and limits. */
struct syncline_statvfs {
	uint64_t blocks;           /* that files and metadata can take in all */
	uint64_t blocks_free;      /* not in use */
	uint64_t blocks_available; /* that a new file could take now */
	uint64_t id;               /* tells volumes apart */
	uint32_t block_bytes;
	uint32_t name_bytes_max;
	uint64_t reserved[3];
};
int syncline_volume_statvfs(syncline_volume *volume, struct syncline_statvfs *space);

/*
 * What the volume has done since it was opened, as one JSON object with the names of `syncline stats --json`. Returns
 * the length without the NUL. It grows while the volume works: leave room, and ask again on -ERANGE.
 */
ssize_t syncline_volume_stats_json(syncline_volume *volume, char *buffer, size_t size);

/* ---- Files ---- */

/*
 * Opens a regular file; the handle is ended by syncline_file_close(). Flags are those of open(2): O_RDONLY, O_WRONLY
 * or O_RDWR, and O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW, O_SYNC, O_DSYNC; O_CLOEXEC, O_NOCTTY, O_NONBLOCK are
 * ignored. `mode` is that of a file that is made, before the umask.
 * Errors: -EEXIST, -EISDIR, -ELOOP, -EINVAL also for O_CREAT or O_TRUNC without write access, and for O_TRUNC with
 * O_APPEND unless O_EXCL is there.
 */
int syncline_open(syncline_volume *volume, const char *path, int flags, uint32_t mode, syncline_file **file);

/*
 * Ends the handle. It makes nothing durable. An error tells that content could not be written which replaces what was
 * truncated (C3), or that a file without a name could not be removed; the handle is gone all the same. Syncs that were
 * started go on.
 */
int syncline_file_close(syncline_file *file);

/*
 * Reads; returns how many bytes, fewer than asked for only at the end of the file. Errors: -EBADF if not open for
 * reading.
 */
ssize_t syncline_file_pread(syncline_file *file, void *buffer, size_t length, int64_t offset);

/*
 * Writes at the offset, or with O_APPEND at the end; returns how many bytes, which may be fewer when space runs out.
 * With O_SYNC and O_DSYNC they are durable. Errors: -EBADF if not open for writing, -EFBIG.
 */
ssize_t syncline_file_pwrite(syncline_file *file, const void *data, size_t length, int64_t offset);

/*
 * Writes at the end, at one time for all threads; returns how many bytes, and in *offset, unless that is NULL, where
 * they begin.
 * Errors: -EINVAL if not opened with O_APPEND.
 */
ssize_t syncline_file_append(syncline_file *file, const void *data, size_t length, int64_t *offset);

/* Truncates, or extends with a hole. */
int syncline_file_truncate(syncline_file *file, int64_t size);

/*
 * As fallocate(2), with its modes: 0, FALLOC_FL_KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, COLLAPSE_RANGE,
 * INSERT_RANGE.
 */
int syncline_file_fallocate(syncline_file *file, int mode, int64_t offset, int64_t length);

/*
 * The next data (SEEK_DATA) or hole (SEEK_HOLE; the end is one) at or behind the offset. Files have no position; none
 * is changed.
 * Errors: -ENXIO if there is none.
 */
int64_t syncline_file_seek(syncline_file *file, int64_t offset, int whence);

/* As fsync(2): content and attributes are durable, and every change of names on the volume before it. */
int syncline_file_sync(syncline_file *file);

/* As fdatasync(2). */
int syncline_file_datasync(syncline_file *file);

/* For the functions below: times and the like need not be durable. */
#define SYNCLINE_DATA 1u

/*
 * Makes a range durable, in pages of 4 KiB, with what is needed to read it back, and every change of names before it.
 * A length of 0 is up to the end. No page outside of the range is written for it.
 */
int syncline_file_sync_range(syncline_file *file, int64_t offset, int64_t length, uint32_t flags);

/*
 * Begins to write what is dirty in a range, so that a later sync has less to do; returns how many bytes. Makes nothing
 * durable.
 */
int64_t syncline_file_write_back(syncline_file *file, int64_t offset, int64_t length);

/* ---- Syncs that are started and waited for later ---- */

/*
 * Called when a sync has ended, with 0 or a negative error number. It is called exactly once for each call that has
 * been given it and has returned 0, on a thread of the volume, perhaps before that call has returned. It may use this
 * library, except that it must not close the volume (-EDEADLK); while it runs the volume's other callbacks wait. No
 * C++ exception may leave it.
 */
typedef void (*syncline_callback)(void *context, int error);

/*
 * Starts what syncline_file_sync_range() does (a length of 0 from offset 0: what syncline_file_sync() does) and
 * returns at once. Any number may be under way; they take no threads. The end is told by the ticket, by the callback,
 * or both: either may be NULL, not both. The context goes to the callback as it is. The ticket is ended by
 * syncline_ticket_free().
 */
int syncline_file_sync_start(syncline_file *file, int64_t offset, int64_t length, uint32_t flags,
			     syncline_callback callback, void *context, syncline_sync_ticket **ticket);

/*
 * The same, with 1 added to an eventfd(2) at the end, also of a sync that has failed: its ticket tells, which may be
 * NULL. The library keeps a copy of the descriptor until then. Errors: -EINVAL if it is no eventfd.
 */
int syncline_file_sync_start_eventfd(syncline_file *file, int64_t offset, int64_t length, uint32_t flags, int eventfd,
				     syncline_sync_ticket **ticket);

/*
 * 1: ended well; 0: goes on; negative: ended with this error. Waits for nothing, and may be called any number of
 * times.
 */
int syncline_ticket_poll(syncline_sync_ticket *ticket);

/*
 * Waits until the sync has ended, and returns how; a negative number of milliseconds waits for ever. Errors:
 * -ETIMEDOUT, and it goes on.
 */
int syncline_ticket_wait(syncline_sync_ticket *ticket, int64_t timeout_ms);

/*
 * Waits until one of the syncs has ended, well or not; *index is the first of these. The tickets may be of several
 * volumes.
 * Errors: -ETIMEDOUT, -EINVAL for a count of 0.
 */
int syncline_ticket_wait_any(syncline_sync_ticket *const *tickets, size_t count, int64_t timeout_ms, size_t *index);

/* Ends the handle; the sync goes on. */
int syncline_ticket_free(syncline_sync_ticket *ticket);

/* ---- Names ---- */

int syncline_mkdir(syncline_volume *volume, const char *path, uint32_t mode);

/* Errors: -ENOTEMPTY, -EBUSY for the root. */
int syncline_rmdir(syncline_volume *volume, const char *path);

/* Removes a name of a file; the file goes with its last name and its last handle. */
int syncline_unlink(syncline_volume *volume, const char *path);

/*
 * Renames at one moment, replacing what has the new name: a crash shows the old file or the new one, whole (C3). Flags
 * are those of renameat2(2): RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT.
 */
int syncline_rename(syncline_volume *volume, const char *from, const char *to, uint32_t flags);

/* A further name for a file. */
int syncline_link(syncline_volume *volume, const char *from, const char *to);

int syncline_symlink(syncline_volume *volume, const char *target, const char *path);

/* The target of a symbolic link, with a NUL behind it that the result does not count. */
ssize_t syncline_readlink(syncline_volume *volume, const char *path, char *buffer, size_t size);

/* The absolute path without symbolic links, `.` and `..`, in the same way. */
ssize_t syncline_realpath(syncline_volume *volume, const char *path, char *buffer, size_t size);

struct syncline_dirent {
	uint64_t ino;
	uint32_t type; /* DT_REG, DT_DIR, DT_LNK, or DT_UNKNOWN: syncline_lstat() tells */
	uint32_t name_bytes;
	char name[256]; /* with a NUL */
};

/* Begins a listing; the handle is ended by syncline_dir_close(). */
int syncline_dir_open(syncline_volume *volume, const char *path, syncline_dir **dir);

/*
 * 1 and the next entry, 0 at the end. Without `.` and `..`, in no order. What is added or removed meanwhile may be
 * shown or not, everything else is shown once.
 */
int syncline_dir_next(syncline_dir *dir, struct syncline_dirent *entry);

int syncline_dir_close(syncline_dir *dir);

/* ---- Snapshots ---- */

#define SYNCLINE_SNAPSHOT_HELD 1u      /* is not deleted before it is released */
#define SYNCLINE_SNAPSHOT_SCHEDULED 4u /* the schedule has made it, and deletes it */

/*
 * A snapshot is the whole volume as it was at one moment, for good. Volumes of version 2 of the format can have them.
 * Names have 1 to 255 bytes of UTF-8, without '/'; names are the caller's.
 */
struct syncline_snapshot_info {
	uint32_t number; /* greater of what was made later */
	uint32_t flags;  /* SYNCLINE_SNAPSHOT_HELD, SYNCLINE_SNAPSHOT_SCHEDULED */
	struct timespec made;
	uint8_t uuid[16];
	char name[256]; /* with a NUL */
};

/*
 * Makes a snapshot of the volume as it is now, data of all writes that have returned included. It is durable on return.
 * Errors: -EEXIST, -EINVAL (no name), -EOPNOTSUPP (version 1), -ENOSPC (too little would be left to go on).
 */
int syncline_snapshot_create(syncline_volume *volume, const char *name);

/*
 * Deletes a snapshot, for good on return. What only it had becomes free in the background, when nobody reads it any
 * more. Errors: -ENOENT; -EBUSY: it is held.
 */
int syncline_snapshot_delete(syncline_volume *volume, const char *name);

/* Gives a snapshot another name. Errors: -ENOENT, -EEXIST, -EINVAL. */
int syncline_snapshot_rename(syncline_volume *volume, const char *name, const char *to);

/*
 * 1 and the snapshot that was made next behind the one that `snapshot` tells, 0 behind the last, when nothing is
 * written. Begin with zeros.
 */
int syncline_snapshot_next(syncline_volume *volume, struct syncline_snapshot_info *snapshot);

/*
 * A snapshot as a volume of its own that cannot be changed: changes are refused with -EROFS. The handle is ended by
 * syncline_volume_close(); reads through it fail when the volume itself has been closed. Errors: -ENOENT.
 */
int syncline_snapshot_open(syncline_volume *volume, const char *name, syncline_volume **snapshot);

/*
 * Holds a snapshot: to delete it is refused with -EBUSY until it is released, also in later sessions. For good on
 * return; to hold one that is held, or to release one that is not, does nothing. Errors: -ENOENT.
 */
int syncline_snapshot_hold(syncline_volume *volume, const char *name);
int syncline_snapshot_release(syncline_volume *volume, const char *name);

/*
 * Bytes that would become free if these `count` snapshots were deleted together and nobody read them: exact, but for
 * the few blocks of the tables in which snapshots are named. It reads the nodes in which they differ from what stays.
 * Errors: -ENOENT; -EROFS for a volume that is open read-only and was not closed cleanly.
 */
int syncline_snapshot_usage(syncline_volume *volume, const char *const *names, size_t count, uint64_t *bytes);

#define SYNCLINE_SCHEDULE_BYTES 384 /* of its text, with a NUL */

/*
 * 1 and the schedule of snapshots, for which there are SYNCLINE_SCHEDULE_BYTES at `text`; 0 if there is none, when
 * nothing is written. It is words with a space between them, such as
 * "hourly=24 daily=7 weekly=4 monthly=12 keep-free=10% prefix=auto".
 */
int syncline_snapshot_schedule(syncline_volume *volume, char *text);

/*
 * Gives the volume a schedule, or takes it away (NULL), for good on return. Each word may be left out, but one class at
 * least has to be kept: the last snapshot of each of so many hours, days (UTC), weeks and months. `keep-free` is a
 * number of percent, or of bytes: below that its oldest snapshots go, and none is made. Whoever has the volume open for
 * writing follows it, in the background. Errors: -EINVAL (no schedule), -EOPNOTSUPP (version 1), -ENOSPC.
 */
int syncline_snapshot_set_schedule(syncline_volume *volume, const char *text);

#define SYNCLINE_CHANGE_REMOVED 1u  /* is in the older one only */
#define SYNCLINE_CHANGE_ADDED 2u    /* is in the newer one only */
#define SYNCLINE_CHANGE_RENAMED 3u  /* the same file or directory had another path in the older one */
#define SYNCLINE_CHANGE_MODIFIED 4u /* as `flags` tell */

#define SYNCLINE_CHANGED_CONTENT 1u
#define SYNCLINE_CHANGED_ATTRIBUTES 2u /* owner, mode, flags, extended attributes; with the same content its time */

#define SYNCLINE_DIFF_CONTENT 1u /* compare checksums: what was written with the content that it had does not count */

/* A path that differs between two snapshots. */
struct syncline_change {
	uint32_t kind;    /* SYNCLINE_CHANGE_... */
	uint32_t flags;   /* of what was modified: SYNCLINE_CHANGED_... */
	const char *path; /* from the root, without a leading '/'; "" is the root itself */
	const char *from; /* of what was renamed: the path that it had; else NULL */
};

/* Told of a change, which is there until it returns. It may use the library. Anything but 0 ends the comparison. */
typedef int (*syncline_change_callback)(void *context, const struct syncline_change *change);

/*
 * Tells what differs between a snapshot and a later one, or, if `newer` is NULL, the volume as it is now, sorted by
 * path. What both have is not read. `flags`: SYNCLINE_DIFF_CONTENT or 0. Returns what the callback has returned last, 0
 * without a call. Errors, before any call: -ENOENT; -EINVAL; without a newer one those of syncline_snapshot_create().
 */
int syncline_snapshot_diff(syncline_volume *volume, const char *older, const char *newer, uint32_t flags,
			   syncline_change_callback each, void *context);

/* Waits until what only deleted snapshots had is free, as far as nobody reads them. */
int syncline_snapshot_reclaim(syncline_volume *volume);

/*
 * Takes the head that the volume was opened with back to a snapshot, and closes the volume, as syncline_volume_close()
 * does: the handle is gone on return. What the head shows now stays as a snapshot named `keep`, or is gone if that is
 * NULL. By one batch: after a crash the head is the old one or the new one. Errors, after which the head is as it was:
 * -ENOENT, -EEXIST, -EINVAL, -ENOSPC.
 */
int syncline_snapshot_rollback(syncline_volume *volume, const char *snapshot, const char *keep);

/* ---- Heads ---- */

#define SYNCLINE_HEAD_DEFAULT 1 /* is shown when nobody names a head */

/*
 * A head is a writable branch of a volume, made of a snapshot. Several can be open at the same time, each with its own
 * syncs. Heads and snapshots have different names.
 */
struct syncline_head_info {
	uint32_t number; /* greater of what was made later */
	uint32_t flags;  /* SYNCLINE_HEAD_DEFAULT */
	struct timespec made;
	uint8_t uuid[16];
	char name[256];   /* with a NUL */
	char parent[256]; /* its newest snapshot, or the one it was made of; empty if that has no name */
};

/*
 * Makes a head that begins as a snapshot is; durable on return. Errors: -ENOENT (no such snapshot), -EEXIST, -EINVAL
 * (no name), -ENOSPC (too little would be left to go on).
 */
int syncline_head_create(syncline_volume *volume, const char *snapshot, const char *name);

/* Deletes a head that nobody has open, for good on return, un-synced data included. Errors: -ENOENT, -EBUSY. */
int syncline_head_delete(syncline_volume *volume, const char *name);

/*
 * 1 and the head that was made next behind the one that `head` tells, 0 behind the last, when nothing is written. Begin
 * with zeros.
 */
int syncline_head_next(syncline_volume *volume, struct syncline_head_info *head);

/*
 * A head as a volume of its own beside this one. End the handle by syncline_volume_close(), before that of the volume.
 * Errors: -ENOENT, -EBUSY (it is what the volume was opened with).
 */
int syncline_head_open(syncline_volume *volume, const char *name, syncline_volume **head);

/* ---- Attributes ---- */

struct syncline_stat {
	uint64_t ino;
	uint64_t size;   /* bytes */
	uint64_t blocks; /* of 512 bytes */
	uint64_t rdev;
	uint32_t mode; /* type and permissions, as st_mode */
	uint32_t nlink;
	uint32_t uid, gid;
	struct timespec accessed, modified, changed, created;
	uint32_t flags; /* FS_*_FL of linux/fs.h */
	uint32_t reserved[7];
};

/* Of what the path leads to; of what it names, a symbolic link too; of an open file. */
int syncline_stat(syncline_volume *volume, const char *path, struct syncline_stat *attributes);
int syncline_lstat(syncline_volume *volume, const char *path, struct syncline_stat *attributes);
int syncline_file_stat(syncline_file *file, struct syncline_stat *attributes);

/* Truncates, or extends with a hole, what the path leads to. */
int syncline_truncate(syncline_volume *volume, const char *path, int64_t size);

int syncline_chmod(syncline_volume *volume, const char *path, uint32_t mode);
int syncline_file_chmod(syncline_file *file, uint32_t mode);

/* (uint32_t)-1 leaves one as it is. The set-id bits of a file go with its owner. */
int syncline_chown(syncline_volume *volume, const char *path, uint32_t uid, uint32_t gid);
int syncline_lchown(syncline_volume *volume, const char *path, uint32_t uid, uint32_t gid);
int syncline_file_chown(syncline_file *file, uint32_t uid, uint32_t gid);

/* As utimensat(2): last read and last change; UTIME_NOW, UTIME_OMIT; NULL is now. Flags: 0 or AT_SYMLINK_NOFOLLOW. */
int syncline_utimens(syncline_volume *volume, const char *path, const struct timespec times[2], int flags);
int syncline_file_utimens(syncline_file *file, const struct timespec times[2]);

/*
 * Extended attributes of what the path leads to; names begin with "user.", "trusted." or "security.". A value has at
 * most 65536 bytes.
 * Errors: -ENODATA, -E2BIG, -ERANGE for a name of more than 255 bytes, -EOPNOTSUPP for another prefix.
 */
ssize_t syncline_getxattr(syncline_volume *volume, const char *path, const char *name, void *buffer, size_t size);

/* Flags: 0, XATTR_CREATE (-EEXIST), XATTR_REPLACE (-ENODATA). */
int syncline_setxattr(syncline_volume *volume, const char *path, const char *name, const void *value, size_t size,
		      int flags);

int syncline_removexattr(syncline_volume *volume, const char *path, const char *name);

/* All names, each with a NUL behind it; the result counts all. */
ssize_t syncline_listxattr(syncline_volume *volume, const char *path, char *buffer, size_t size);

/* ---- Transactions ---- */

/*
 * Changes of any number of files that are made together (C4): nobody sees any of them before the commit, all are there
 * afterwards, and after a crash all or none. A transaction works on what is committed, with its own changes over that.
 * If somebody else has changed meanwhile what it has read or changed, the commit is -EAGAIN, and nothing of it is
 * applied: begin it again.
 *
 * Directories are made, moved and removed outside of transactions. A symbolic link as the last name is not followed.
 * Errors of all: -E2BIG for a transaction that is too large for the journal, -EDQUOT if all together keep too much in
 * memory.
 *
 * The handle is ended by syncline_transaction_commit(), _commit_start() or _abort(), whatever they return but -EBADF,
 * -EFAULT, -EINVAL and -ESTALE.
 */
int syncline_transaction_begin(syncline_volume *volume, syncline_transaction **transaction);

/* Returns the number of a file within this transaction, which the functions below take. It needs no end. */
int64_t syncline_transaction_open(syncline_transaction *transaction, const char *path);

/* The same of a file that is made. Errors: -EEXIST. */
int64_t syncline_transaction_create(syncline_transaction *transaction, const char *path, uint32_t mode);

/*
 * The same of a file that is open for writing (-EBADF). What is written through its handle is no part of the
 * transaction.
 */
int64_t syncline_transaction_join(syncline_transaction *transaction, syncline_file *file);

/* 1 if the name is taken as the transaction sees it, 0 if not. */
int syncline_transaction_exists(syncline_transaction *transaction, const char *path);

/*
 * Fewer bytes than asked for only at the end of the file. Errors: -EBADF also for a number that is no file of this
 * transaction.
 */
ssize_t syncline_transaction_pread(syncline_transaction *transaction, int64_t file, void *buffer, size_t length,
				   int64_t offset);

/* Writes all, or nothing. */
ssize_t syncline_transaction_pwrite(syncline_transaction *transaction, int64_t file, const void *data, size_t length,
				    int64_t offset);

int syncline_transaction_truncate(syncline_transaction *transaction, int64_t file, int64_t size);

/* The size in bytes, as the transaction sees it. */
int64_t syncline_transaction_size(syncline_transaction *transaction, int64_t file);

/* Renames a file, replacing the one that has the new name. */
int syncline_transaction_rename(syncline_transaction *transaction, const char *from, const char *to);
int syncline_transaction_link(syncline_transaction *transaction, const char *from, const char *to);
int syncline_transaction_unlink(syncline_transaction *transaction, const char *path);

int syncline_transaction_setxattr(syncline_transaction *transaction, const char *path, const char *name,
				  const void *value, size_t size);
int syncline_transaction_removexattr(syncline_transaction *transaction, const char *path, const char *name);

/* Applies everything and makes it durable, with every change of names before it: one journal record, one flush. */
int syncline_transaction_commit(syncline_transaction *transaction);

/*
 * Applies everything, and starts making it durable as syncline_file_sync_start() does. If the ticket or the callback
 * tells -EAGAIN or another error, nothing was applied; else others see it when this returns.
 */
int syncline_transaction_commit_start(syncline_transaction *transaction, syncline_callback callback, void *context,
				      syncline_sync_ticket **ticket);
int syncline_transaction_commit_start_eventfd(syncline_transaction *transaction, int eventfd,
					      syncline_sync_ticket **ticket);

/* Gives everything up. */
int syncline_transaction_abort(syncline_transaction *transaction);

#ifdef __cplusplus
}
#endif

#endif
