/* Volumes: making, opening, closing, options, figures. */
#include "check.h"

static void options_are_checked(void)
{
	struct syncline_open_options open;
	struct syncline_create_options create;
	struct {
		struct syncline_open_options known;
		uint64_t later;
	} longer;
	syncline_volume *volume;

	memset(&open, 0, sizeof open);
	REFUSED(-EINVAL, "size field", syncline_volume_create_in_memory(64 * MIB, NULL, &open, &volume));
	CHECK(volume == NULL);
	open.size = sizeof open;
	open.flags = 1u << 31;
	REFUSED(-EINVAL, "flag", syncline_volume_create_in_memory(64 * MIB, NULL, &open, &volume));
	open.flags = 0;
	open.access_times = 3;
	REFUSED(-EINVAL, "access_times", syncline_volume_create_in_memory(64 * MIB, NULL, &open, &volume));
	open.access_times = SYNCLINE_ATIME_NEVER;
	open.flags = SYNCLINE_OPEN_READ_ONLY;
	REFUSED(-EINVAL, "read-only", syncline_volume_create_in_memory(64 * MIB, NULL, &open, &volume));
	open.flags = SYNCLINE_OPEN_OWNER;
	open.umask = 01000;
	REFUSED(-EINVAL, "umask", syncline_volume_create_in_memory(64 * MIB, NULL, &open, &volume));

	/* A program that knows less, and one that knows more. */
	memset(&longer, 0, sizeof longer);
	longer.known.size = sizeof longer;
	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, NULL, &longer.known, &volume));
	EXPECT(0, syncline_volume_close(volume));
	longer.later = 1;
	REFUSED(-E2BIG, "does not know", syncline_volume_create_in_memory(64 * MIB, NULL, &longer.known, &volume));
	longer.later = 0;
	longer.known.size = offsetof(struct syncline_open_options, access_times);
	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, NULL, &longer.known, &volume));
	EXPECT(0, syncline_volume_close(volume));

	memset(&create, 0, sizeof create);
	create.size = sizeof create;
	create.label = "0123456789012345678901234567890123456789012345678901234567890123456789";
	REFUSED(-ENAMETOOLONG, "label", syncline_volume_create_in_memory(64 * MIB, &create, NULL, &volume));
	create.label = "\xff";
	REFUSED(-EINVAL, "UTF-8", syncline_volume_create_in_memory(64 * MIB, &create, NULL, &volume));
	create.label = NULL;
	create.root_mode = 010000;
	REFUSED(-EINVAL, "bit", syncline_volume_create_in_memory(64 * MIB, &create, NULL, &volume));
	EXPECT(-EINVAL, syncline_volume_create_in_memory(4096, NULL, NULL, &volume));
	REFUSED(-EFAULT, "NULL", syncline_volume_create_in_memory(64 * MIB, NULL, NULL, NULL));
}

static void owner_and_root_are_as_told(void)
{
	struct syncline_open_options open;
	struct syncline_create_options create;
	static const uint8_t uuid[16] = { 1, 2, 3 };
	struct syncline_stat stat;
	syncline_volume *volume;

	memset(&open, 0, sizeof open);
	open.size = sizeof open;
	open.flags = SYNCLINE_OPEN_OWNER;
	open.uid = 1000;
	open.gid = 100;
	open.umask = 077;
	open.commit_interval_ms = 60000;
	open.memory_bytes_max = 32 * MIB;
	memset(&create, 0, sizeof create);
	create.size = sizeof create;
	create.label = "ours";
	create.uuid = uuid;
	create.root_uid = 7;
	create.root_gid = 8;
	create.root_mode = 0700;
	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, &create, &open, &volume));
	EXPECT(0, syncline_stat(volume, "/", &stat));
	CHECK(stat.uid == 7 && stat.gid == 8 && stat.mode == (S_IFDIR | 0700));
	EXPECT(0, syncline_file_close(file_of(volume, "file")));
	EXPECT(0, syncline_stat(volume, "file", &stat));
	CHECK(stat.uid == 1000 && stat.gid == 100 && stat.mode == (S_IFREG | 0600));
	EXPECT(0, syncline_volume_close(volume));
}

static void an_image_is_made_once_and_opened_by_one(void)
{
	struct syncline_open_options open;
	syncline_volume *volume = image_volume(), *other;
	int descriptor;

	EXPECT(0, syncline_mkdir(volume, "directory", 0777));
	REFUSED(-EEXIST, "already holds", syncline_volume_create(image_path(), NULL, NULL, &other));
	REFUSED(-EBUSY, "", syncline_volume_open(image_path(), NULL, &other));
	CHECK(other == NULL);
	EXPECT(0, syncline_volume_close(volume));
	REFUSED(-ENOENT, "", syncline_volume_open("/there/is/no/such/image", NULL, &other));

	memset(&open, 0, sizeof open);
	open.size = sizeof open;
	open.flags = SYNCLINE_OPEN_READ_ONLY;
	EXPECT(0, syncline_volume_open(image_path(), &open, &volume));
	EXPECT(0, syncline_volume_open(image_path(), &open, &other));
	REFUSED(-EROFS, "Read-only", syncline_mkdir(volume, "new", 0777));
	EXPECT(0, syncline_volume_sync(other));
	EXPECT(0, syncline_volume_close(volume));
	open.flags = 0;
	open.wait_for_lock_ms = 50;
	EXPECT(-EBUSY, syncline_volume_open(image_path(), &open, &volume));
	EXPECT(0, syncline_volume_close(other));
	open.wait_for_lock_ms = UINT64_MAX;
	EXPECT(0, syncline_volume_open(image_path(), &open, &volume));
	EXPECT(0, syncline_volume_close(volume));

	descriptor = open64(image_path(), O_RDONLY);
	CHECK(descriptor >= 0);
	EXPECT(0, syncline_volume_open_fd(descriptor, NULL, &volume));
	close(descriptor);
	REFUSED(-EBADF, "no open descriptor", syncline_volume_open_fd(descriptor, NULL, &other));
	REFUSED(-EBADF, "no open descriptor", syncline_volume_open_fd(-1, NULL, &other));
	EXPECT(0, syncline_rmdir(volume, "directory"));
	EXPECT(0, syncline_volume_close(volume));
	descriptor = memfd_create("image", 0);
	CHECK(descriptor >= 0);
	REFUSED(-EIO, "", syncline_volume_open_fd(descriptor, NULL, &volume));
	close(descriptor);
	unlink(image_path());
}

static void making_one_overwrites_nothing_and_leaves_nothing_where_it_fails(void)
{
	struct syncline_create_options create;
	syncline_volume *volume;
	char found[6] = { 0 };
	int descriptor = open64(image_path(), O_RDWR | O_CREAT | O_TRUNC, 0600);

	CHECK(write(descriptor, "letter", 6) == 6);
	memset(&create, 0, sizeof create);
	create.size = sizeof create;
	REFUSED(-EEXIST, "unknown kind", syncline_volume_create(image_path(), &create, NULL, &volume));
	create.volume_bytes = 32 * MIB;
	REFUSED(-EEXIST, "unknown kind", syncline_volume_create(image_path(), &create, NULL, &volume));
	CHECK(pread(descriptor, found, 6, 0) == 6 && memcmp(found, "letter", 6) == 0);
	close(descriptor);
	unlink(image_path());
	create.format = 3;
	REFUSED(-EINVAL, "version", syncline_volume_create(image_path(), &create, NULL, &volume));
	CHECK(access(image_path(), F_OK) == -1);
}

static void closing_ends_everything(void)
{
	syncline_volume *volume = image_volume(), *again;
	syncline_file *file = file_of(volume, "file");
	syncline_transaction *transaction;
	syncline_sync_ticket *ticket;
	syncline_dir *dir;
	struct syncline_dirent entry;
	char byte;

	EXPECT(0, syncline_transaction_begin(volume, &transaction));
	EXPECT(0, syncline_dir_open(volume, "/", &dir));
	EXPECT(4, syncline_file_pwrite(file, "data", 4, 0));
	EXPECT(0, syncline_file_sync_start(file, 0, 0, 0, NULL, NULL, &ticket));
	EXPECT(0, syncline_volume_close(volume));
	/* The image is free although the handles were not ended one by one. */
	EXPECT(0, syncline_volume_open(image_path(), NULL, &again));
	CHECK(has_content(again, "file", "data"));
	REFUSED(-EBADF, "closed", syncline_file_pread(file, &byte, 1, 0));
	REFUSED(-EBADF, "closed", syncline_file_close(file));
	REFUSED(-EBADF, "closed", syncline_transaction_commit(transaction));
	REFUSED(-EBADF, "closed", syncline_ticket_wait(ticket, -1));
	REFUSED(-EBADF, "closed", syncline_ticket_free(ticket));
	REFUSED(-EBADF, "closed", syncline_dir_next(dir, &entry));
	REFUSED(-EBADF, "closed", syncline_volume_sync(volume));
	REFUSED(-EBADF, "closed", syncline_volume_close(volume));
	EXPECT(0, syncline_volume_close(again));
	unlink(image_path());
}

static void figures_tell_what_was_done(void)
{
	syncline_volume *volume = memory_volume(), *other = memory_volume();
	syncline_file *files[3] = { file_of(volume, "a"), file_of(volume, "b"), NULL };
	struct syncline_statvfs before, after;
	char json[16384], little[8];
	ssize_t length;
	char *large = calloc(1, 4 * MIB);

	CHECK(large != NULL);
	EXPECT(0, syncline_volume_statvfs(volume, &before));
	CHECK(before.block_bytes == 4096 && before.name_bytes_max == 255 && before.blocks > 0);
	CHECK(before.blocks_free >= before.blocks_available);
	memset(large, 1, 4 * MIB);
	EXPECT(4 * MIB, syncline_file_pwrite(files[0], large, 4 * MIB, 0));
	EXPECT(0, syncline_volume_sync(volume));
	EXPECT(0, syncline_volume_statvfs(volume, &after));
	CHECK(before.blocks_free - after.blocks_free >= 1024);
	free(large);
	EXPECT(1, syncline_file_pwrite(files[1], "x", 1, 0));
	files[2] = files[0];
	EXPECT(0, syncline_volume_sync_files(volume, files, 3));
	EXPECT(0, syncline_volume_sync_files(volume, NULL, 0));
	files[2] = file_of(other, "c");
	REFUSED(-EINVAL, "another volume", syncline_volume_sync_files(volume, files, 3));
	REFUSED(-EFAULT, "NULL", syncline_volume_sync_files(volume, NULL, 1));
	REFUSED(-EINVAL, "count", syncline_volume_sync_files(volume, files, SIZE_MAX));
	EXPECT(0, syncline_file_sync(files[0]));
	length = syncline_volume_stats_json(volume, NULL, 0);
	CHECK(length > 100 && length < (ssize_t)sizeof json);
	EXPECT(-ERANGE, syncline_volume_stats_json(volume, little, sizeof little));
	length = syncline_volume_stats_json(volume, json, sizeof json);
	CHECK(length > 100 && strlen(json) == (size_t)length);
	CHECK(json[0] == '{' && json[length - 1] == '}' && strstr(json, "\"fsync_us\":{") != NULL);
	CHECK(strstr(json, "\"flushes\":") != NULL);
	EXPECT(0, syncline_volume_checkpoint(volume));
	EXPECT(0, syncline_unlink(volume, "a"));
	EXPECT(0, syncline_file_close(files[0]));
	EXPECT(0, syncline_volume_sync(volume));
	CHECK(syncline_volume_trim(volume, 0, 0, 0) >= 4 * MIB);
	REFUSED(-EINVAL, "negative", syncline_volume_trim(volume, -1, 0, 0));
	EXPECT(0, syncline_volume_close(volume));
	EXPECT(0, syncline_volume_close(other));
}

void test_volumes(void)
{
	CHECK(strlen(syncline_version()) >= 5);
	CHECK(strcmp(syncline_last_error(), "") == 0);
	options_are_checked();
	owner_and_root_are_as_told();
	an_image_is_made_once_and_opened_by_one();
	making_one_overwrites_nothing_and_leaves_nothing_where_it_fails();
	closing_ends_everything();
	figures_tell_what_was_done();
}
