/* A forked child has no part in its parent's volumes (C8b). */
#include "check.h"

struct held {
	syncline_volume *volume;
	syncline_file *file;
	syncline_dir *dir;
	syncline_transaction *transaction;
	syncline_sync_ticket *ticket;
};

static void everything_is_refused(void *context)
{
	struct held *held = context;
	struct syncline_dirent entry;
	syncline_volume *other;
	syncline_file *file;
	char byte;

	REFUSED(-ESTALE, "forked child", syncline_volume_sync(held->volume));
	REFUSED(-ESTALE, "forked child", syncline_open(held->volume, "new", O_RDWR | O_CREAT, 0666, &file));
	REFUSED(-ESTALE, "forked child", syncline_unlink(held->volume, "file"));
	REFUSED(-ESTALE, "forked child", syncline_file_pread(held->file, &byte, 1, 0));
	REFUSED(-ESTALE, "forked child", syncline_file_pwrite(held->file, "child", 5, 0));
	REFUSED(-ESTALE, "forked child", syncline_file_sync(held->file));
	REFUSED(-ESTALE, "forked child", syncline_file_close(held->file));
	REFUSED(-ESTALE, "forked child", syncline_dir_next(held->dir, &entry));
	REFUSED(-ESTALE, "forked child", syncline_dir_close(held->dir));
	REFUSED(-ESTALE, "forked child", syncline_ticket_wait(held->ticket, -1));
	REFUSED(-ESTALE, "forked child", syncline_ticket_free(held->ticket));
	REFUSED(-ESTALE, "forked child", syncline_transaction_commit(held->transaction));
	REFUSED(-ESTALE, "forked child", syncline_transaction_abort(held->transaction));
	REFUSED(-ESTALE, "forked child", syncline_volume_close(held->volume));
	REFUSED(-ESTALE, "forked child", syncline_volume_open(image_path(), NULL, &other));
	REFUSED(-ESTALE, "forked child", syncline_volume_create_in_memory(64 * MIB, NULL, NULL, &other));
	CHECK(other == NULL);
}

static void *keep_busy(void *context)
{
	struct held *held = context;
	char page[4096] = { 3 };

	/* Until the volume is closed. */
	for (int64_t round = 0; syncline_file_pwrite(held->file, page, sizeof page, 8192 + round % 64 * 4096) > 0; round++)
		if (syncline_file_sync(held->file) < 0)
			break;
	return NULL;
}

static void a_child_is_refused_and_its_parent_goes_on(void)
{
	struct held held;
	pthread_t threads[3];
	int64_t staged;

	held.volume = image_volume();
	held.file = file_of(held.volume, "file");
	EXPECT(6, syncline_file_pwrite(held.file, "parent", 6, 0));
	EXPECT(0, syncline_file_sync(held.file));
	EXPECT(0, syncline_dir_open(held.volume, "/", &held.dir));
	EXPECT(0, syncline_transaction_begin(held.volume, &held.transaction));
	staged = syncline_transaction_create(held.transaction, "staged", 0666);
	CHECK(staged > 0);
	EXPECT(0, syncline_file_sync_start(held.file, 0, 0, 0, NULL, NULL, &held.ticket));
	EXPECT(0, in_child(everything_is_refused, &held));
	/* Also while other threads are in the midst of calls. */
	for (int at = 0; at < 3; at++)
		CHECK(pthread_create(&threads[at], NULL, keep_busy, &held) == 0);
	for (int round = 0; round < 30; round++)
		EXPECT(0, in_child(everything_is_refused, &held));
	EXPECT(0, syncline_transaction_commit(held.transaction));
	EXPECT(0, syncline_ticket_wait(held.ticket, -1));
	EXPECT(0, syncline_volume_close(held.volume));
	for (int at = 0; at < 3; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	EXPECT(0, syncline_volume_open(image_path(), NULL, &held.volume));
	EXPECT(0, syncline_open(held.volume, "staged", O_RDONLY, 0, &held.file));
	EXPECT(-ENOENT, syncline_open(held.volume, "new", O_RDONLY, 0, &held.file));
	EXPECT(0, syncline_volume_close(held.volume));
}

/* With nothing open at the fork a child opens what it likes; the closed handles of its parent are refused there too. */
static void open_one(void *context)
{
	struct held *held = context;
	syncline_volume *volume;

	EXPECT(0, syncline_volume_open(image_path(), NULL, &volume));
	CHECK(has_content(volume, "child", "") || syncline_mkdir(volume, "child", 0777) == 0);
	EXPECT(0, syncline_volume_close(volume));
	REFUSED(-ESTALE, "forked child", syncline_volume_sync(held->volume));
}

static void a_child_may_open_what_nobody_has_open(void)
{
	struct held held;
	struct syncline_stat stat;

	held.volume = image_volume();
	EXPECT(0, syncline_volume_close(held.volume));
	EXPECT(0, in_child(open_one, &held));
	EXPECT(0, syncline_volume_open(image_path(), NULL, &held.volume));
	EXPECT(0, syncline_stat(held.volume, "child", &stat));
	EXPECT(0, syncline_volume_close(held.volume));
	unlink(image_path());
}

void test_fork(void)
{
	/* First: none may be open here. */
	a_child_may_open_what_nobody_has_open();
	a_child_is_refused_and_its_parent_goes_on();
	unlink(image_path());
}
