/* Arguments of a program that is wrong: each is refused with a sentence, and nothing is followed that leads nowhere. */
#include "check.h"

/* Every function with this volume, or with this file and the like. */
static void volume_is_refused(int error, syncline_volume *volume)
{
	struct syncline_statvfs space;
	struct syncline_stat stat;
	syncline_transaction *transaction;
	syncline_file *file;
	syncline_dir *dir;
	char text[16];

	EXPECT(error, syncline_volume_sync(volume));
	EXPECT(error, syncline_volume_sync_files(volume, NULL, 0));
	EXPECT(error, syncline_volume_checkpoint(volume));
	EXPECT(error, syncline_volume_trim(volume, 0, 0, 0));
	EXPECT(error, syncline_volume_statvfs(volume, &space));
	EXPECT(error, syncline_volume_stats_json(volume, NULL, 0));
	EXPECT(error, syncline_open(volume, "x", O_RDONLY, 0, &file));
	EXPECT(error, syncline_mkdir(volume, "x", 0));
	EXPECT(error, syncline_rmdir(volume, "x"));
	EXPECT(error, syncline_unlink(volume, "x"));
	EXPECT(error, syncline_rename(volume, "x", "y", 0));
	EXPECT(error, syncline_link(volume, "x", "y"));
	EXPECT(error, syncline_symlink(volume, "x", "y"));
	EXPECT(error, syncline_readlink(volume, "x", text, sizeof text));
	EXPECT(error, syncline_realpath(volume, "x", text, sizeof text));
	EXPECT(error, syncline_dir_open(volume, "x", &dir));
	EXPECT(error, syncline_stat(volume, "x", &stat));
	EXPECT(error, syncline_lstat(volume, "x", &stat));
	EXPECT(error, syncline_truncate(volume, "x", 0));
	EXPECT(error, syncline_chmod(volume, "x", 0));
	EXPECT(error, syncline_chown(volume, "x", 0, 0));
	EXPECT(error, syncline_lchown(volume, "x", 0, 0));
	EXPECT(error, syncline_utimens(volume, "x", NULL, 0));
	EXPECT(error, syncline_getxattr(volume, "x", "user.x", text, 1));
	EXPECT(error, syncline_setxattr(volume, "x", "user.x", text, 1, 0));
	EXPECT(error, syncline_removexattr(volume, "x", "user.x"));
	EXPECT(error, syncline_listxattr(volume, "x", text, 1));
	EXPECT(error, syncline_transaction_begin(volume, &transaction));
	EXPECT(error, syncline_volume_close(volume));
}

static void file_is_refused(int error, syncline_file *file)
{
	struct syncline_stat stat;
	syncline_sync_ticket *ticket;
	int event = eventfd(0, EFD_CLOEXEC);
	char byte = 0;

	EXPECT(error, syncline_file_pread(file, &byte, 1, 0));
	EXPECT(error, syncline_file_pwrite(file, &byte, 1, 0));
	EXPECT(error, syncline_file_append(file, &byte, 1, NULL));
	EXPECT(error, syncline_file_truncate(file, 0));
	EXPECT(error, syncline_file_fallocate(file, 0, 0, 1));
	EXPECT(error, syncline_file_seek(file, 0, SEEK_DATA));
	EXPECT(error, syncline_file_sync(file));
	EXPECT(error, syncline_file_datasync(file));
	EXPECT(error, syncline_file_sync_range(file, 0, 0, 0));
	EXPECT(error, syncline_file_write_back(file, 0, 0));
	EXPECT(error, syncline_file_sync_start(file, 0, 0, 0, NULL, NULL, &ticket));
	EXPECT(error, syncline_file_sync_start_eventfd(file, 0, 0, 0, event, NULL));
	EXPECT(error, syncline_file_stat(file, &stat));
	EXPECT(error, syncline_file_chmod(file, 0));
	EXPECT(error, syncline_file_chown(file, 0, 0));
	EXPECT(error, syncline_file_utimens(file, NULL));
	EXPECT(error, syncline_file_close(file));
	close(event);
}

static void others_are_refused(int error, syncline_dir *dir, syncline_transaction *transaction,
			       syncline_sync_ticket *ticket)
{
	struct syncline_dirent entry;
	char byte = 0;
	size_t index;

	EXPECT(error, syncline_dir_next(dir, &entry));
	EXPECT(error, syncline_dir_close(dir));
	EXPECT(error, syncline_ticket_poll(ticket));
	EXPECT(error, syncline_ticket_wait(ticket, 0));
	EXPECT(error, syncline_ticket_wait_any(&ticket, 1, 0, &index));
	EXPECT(error, syncline_ticket_free(ticket));
	EXPECT(error, syncline_transaction_open(transaction, "x"));
	EXPECT(error, syncline_transaction_create(transaction, "x", 0));
	EXPECT(error, syncline_transaction_exists(transaction, "x"));
	EXPECT(error, syncline_transaction_pread(transaction, 1, &byte, 1, 0));
	EXPECT(error, syncline_transaction_pwrite(transaction, 1, &byte, 1, 0));
	EXPECT(error, syncline_transaction_truncate(transaction, 1, 0));
	EXPECT(error, syncline_transaction_size(transaction, 1));
	EXPECT(error, syncline_transaction_rename(transaction, "x", "y"));
	EXPECT(error, syncline_transaction_link(transaction, "x", "y"));
	EXPECT(error, syncline_transaction_unlink(transaction, "x"));
	EXPECT(error, syncline_transaction_setxattr(transaction, "x", "user.x", &byte, 1));
	EXPECT(error, syncline_transaction_removexattr(transaction, "x", "user.x"));
	EXPECT(error, syncline_transaction_join(transaction, NULL));
	EXPECT(error, syncline_transaction_commit(transaction));
	EXPECT(error, syncline_transaction_abort(transaction));
}

static void handles_that_are_none_are_refused(void)
{
	syncline_volume *volume = memory_volume();
	syncline_file *file = file_of(volume, "file");
	syncline_dir *dir;
	int on_stack = 0;
	/* Nothing, one page up, one of another kind, one with other bits, a pointer to something, a guess. */
	void *wrong[] = { NULL, (void *)4096, volume, file, (void *)((uintptr_t)volume ^ 1 << 5),
			  (void *)((uintptr_t)file + (1 << 26)), &on_stack, (void *)UINTPTR_MAX, (void *)1,
			  (void *)0xdeadbeefdeadbeef };

	EXPECT(0, syncline_dir_open(volume, "/", &dir));
	for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
		int error = wrong[at] == NULL ? -EFAULT : -EBADF;

		if (wrong[at] != (void *)volume)
			volume_is_refused(error, wrong[at]);
		if (wrong[at] != (void *)file)
			file_is_refused(error, wrong[at]);
		others_are_refused(error, wrong[at], wrong[at], wrong[at]);
	}
	/* The good ones have not suffered. */
	EXPECT(0, syncline_file_sync(file));
	EXPECT(0, syncline_dir_close(dir));
	EXPECT(0, syncline_file_close(file));
	EXPECT(0, syncline_volume_close(volume));
	volume_is_refused(-EBADF, volume);
	file_is_refused(-EBADF, file);
}

static void pointers_that_lead_nowhere_are_refused(void)
{
	syncline_volume *volume = memory_volume(), *other;
	syncline_file *file = file_of(volume, "file");
	syncline_transaction *transaction;
	char text[16];

	EXPECT(0, syncline_transaction_begin(volume, &transaction));
	REFUSED(-EFAULT, "path is NULL", syncline_open(volume, NULL, O_RDONLY, 0, &file));
	file = file_of(volume, "file");
	REFUSED(-EFAULT, "NULL", syncline_open(volume, "file", O_RDONLY, 0, NULL));
	REFUSED(-EFAULT, "NULL", syncline_volume_open(NULL, NULL, &other));
	REFUSED(-EFAULT, "NULL", syncline_volume_open("x", NULL, NULL));
	REFUSED(-EFAULT, "NULL", syncline_volume_create(NULL, NULL, NULL, &other));
	REFUSED(-EFAULT, "NULL", syncline_mkdir(volume, NULL, 0));
	REFUSED(-EFAULT, "NULL", syncline_rename(volume, "x", NULL, 0));
	REFUSED(-EFAULT, "NULL", syncline_rename(volume, NULL, "x", 0));
	REFUSED(-EFAULT, "NULL", syncline_symlink(volume, NULL, "x"));
	REFUSED(-EFAULT, "NULL", syncline_stat(volume, "file", NULL));
	REFUSED(-EFAULT, "NULL", syncline_file_stat(file, NULL));
	REFUSED(-EFAULT, "NULL", syncline_volume_statvfs(volume, NULL));
	REFUSED(-EFAULT, "NULL", syncline_dir_open(volume, "/", NULL));
	REFUSED(-EFAULT, "NULL", syncline_readlink(volume, NULL, text, sizeof text));
	REFUSED(-EFAULT, "buffer", syncline_realpath(volume, "/", NULL, 5));
	REFUSED(-EFAULT, "NULL", syncline_setxattr(volume, "file", NULL, "", 0, 0));
	REFUSED(-EFAULT, "NULL", syncline_transaction_begin(volume, NULL));
	REFUSED(-EFAULT, "NULL", syncline_transaction_open(transaction, NULL));
	REFUSED(-EFAULT, "file is NULL", syncline_transaction_join(transaction, NULL));
	EXPECT(0, syncline_volume_close(volume));
}

static void names_that_are_too_long_are_refused(void)
{
	syncline_volume *volume = memory_volume();
	char *path = malloc(100001);
	struct syncline_stat stat;

	CHECK(path != NULL);
	memset(path, 'x', 100000);
	path[100000] = 0;
	REFUSED(-ENAMETOOLONG, "4096", syncline_stat(volume, path, &stat));
	path[4096] = 0;
	EXPECT(-ENAMETOOLONG, syncline_stat(volume, path, &stat));
	path[256] = 0;
	EXPECT(-ENAMETOOLONG, syncline_mkdir(volume, path, 0777));
	/* The sentence is cut, and whole otherwise. */
	path[256] = 'x';
	for (int at = 200; at < 4096; at += 200)
		path[at] = '/';
	EXPECT(-ENOENT, syncline_stat(volume, path, &stat));
	CHECK(strlen(syncline_last_error()) == 1023);
	path[255] = 0;
	path[200] = 'x';
	EXPECT(0, syncline_mkdir(volume, path, 0777));
	EXPECT(-ENOENT, syncline_stat(volume, "", &stat));
	EXPECT(-ENOENT, syncline_open(volume, "", O_RDONLY, 0, &(syncline_file *){ NULL }));
	EXPECT(-EEXIST, syncline_mkdir(volume, "..", 0777));
	EXPECT(0, syncline_mkdir(volume, "\xff\x01\n", 0777));
	EXPECT(-EEXIST, syncline_mkdir(volume, "\xff\x01\n", 0777));
	free(path);
	EXPECT(0, syncline_volume_close(volume));
}

static void numbers_at_their_ends_are_refused(void)
{
	struct syncline_open_options open;
	struct syncline_create_options create;
	syncline_volume *volume;
	syncline_file *file;
	char byte;

	memset(&open, 0, sizeof open);
	open.size = sizeof open;
	open.memory_bytes_max = 1;
	open.commit_interval_ms = UINT64_MAX;
	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, NULL, &open, &volume));
	file = file_of(volume, "file");
	EXPECT(-EFBIG, syncline_file_fallocate(file, 0, INT64_MAX, INT64_MAX));
	EXPECT(0, syncline_file_truncate(file, INT64_MAX));
	EXPECT(0, syncline_file_pread(file, &byte, 1, INT64_MAX));
	EXPECT(-ENXIO, syncline_file_seek(file, INT64_MAX, SEEK_HOLE));
	CHECK(syncline_file_write_back(file, INT64_MAX, INT64_MAX) == 0);
	EXPECT(-EINVAL, syncline_volume_trim(volume, INT64_MAX, INT64_MAX, 0));
	EXPECT(-EINVAL, syncline_volume_trim(volume, 0, 0, INT64_MAX));
	EXPECT(0, syncline_volume_close(volume));
	open.memory_bytes_max = UINT64_MAX;
	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, NULL, &open, &volume));
	EXPECT(0, syncline_volume_close(volume));
	REFUSED(-EINVAL, "4 MiB", syncline_volume_create_in_memory(UINT64_MAX, NULL, NULL, &volume));
	REFUSED(-EINVAL, "4 MiB", syncline_volume_create_in_memory(0, NULL, NULL, &volume));
	memset(&create, 0, sizeof create);
	create.size = sizeof create;
	create.journal_bytes = UINT64_MAX;
	EXPECT(-EINVAL, syncline_volume_create_in_memory(64 * MIB, &create, NULL, &volume));
	create.journal_bytes = 0;
	create.volume_bytes = UINT64_MAX;
	CHECK(syncline_volume_create_in_memory(64 * MIB, &create, NULL, &volume) < 0);
	unlink(image_path());
	CHECK(syncline_volume_create(image_path(), &create, NULL, &volume) < 0);
	CHECK(volume == NULL);
	unlink(image_path());
}

void test_hostile(void)
{
	numbers_at_their_ends_are_refused();
	handles_that_are_none_are_refused();
	pointers_that_lead_nowhere_are_refused();
	names_that_are_too_long_are_refused();
}
