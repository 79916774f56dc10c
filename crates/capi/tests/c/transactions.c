/* Transactions. */
#include "check.h"

static void all_is_seen_at_the_commit(syncline_volume *volume)
{
	syncline_transaction *transaction;
	struct syncline_stat stat;
	syncline_file *file = file_of(volume, "joined");
	char read[16], value[4];
	int64_t made, opened, joined;

	EXPECT(3, syncline_file_pwrite(file, "old", 3, 0));
	EXPECT(0, syncline_file_close(file_of(volume, "gone")));
	EXPECT(0, syncline_transaction_begin(volume, &transaction));
	made = syncline_transaction_create(transaction, "new", 0600);
	CHECK(made > 0);
	EXPECT(-EEXIST, syncline_transaction_create(transaction, "new", 0600));
	EXPECT(made, syncline_transaction_open(transaction, "new"));
	EXPECT(8, syncline_transaction_pwrite(transaction, made, "new data", 8, 0));
	EXPECT(8, syncline_transaction_size(transaction, made));
	EXPECT(0, syncline_transaction_truncate(transaction, made, 3));
	EXPECT(3, syncline_transaction_pread(transaction, made, read, sizeof read, 0));
	CHECK(memcmp(read, "new", 3) == 0);
	EXPECT(0, syncline_transaction_exists(transaction, "none"));
	REFUSED(-ENOENT, "none: ", syncline_transaction_open(transaction, "none"));
	opened = syncline_transaction_open(transaction, "joined");
	joined = syncline_transaction_join(transaction, file);
	CHECK(opened > 0 && joined == opened);
	EXPECT(3, syncline_transaction_pwrite(transaction, joined, "two", 3, 0));
	EXPECT(0, syncline_transaction_rename(transaction, "new", "renamed"));
	EXPECT(0, syncline_transaction_link(transaction, "renamed", "linked"));
	EXPECT(0, syncline_transaction_unlink(transaction, "gone"));
	EXPECT(1, syncline_transaction_exists(transaction, "linked"));
	EXPECT(0, syncline_transaction_setxattr(transaction, "joined", "user.a", "1", 1));
	EXPECT(0, syncline_transaction_setxattr(transaction, "joined", "user.b", "1", 1));
	EXPECT(0, syncline_transaction_removexattr(transaction, "joined", "user.b"));
	CHECK(has_content(volume, "joined", "old"));
	EXPECT(-ENOENT, syncline_stat(volume, "renamed", &stat));
	EXPECT(0, syncline_transaction_commit(transaction));
	CHECK(has_content(volume, "joined", "two"));
	CHECK(has_content(volume, "linked", "new"));
	EXPECT(0, syncline_stat(volume, "renamed", &stat));
	CHECK(stat.nlink == 2 && stat.mode == (S_IFREG | 0600));
	EXPECT(-ENOENT, syncline_stat(volume, "gone", &stat));
	EXPECT(1, syncline_getxattr(volume, "joined", "user.a", value, sizeof value));
	EXPECT(-ENODATA, syncline_getxattr(volume, "joined", "user.b", value, sizeof value));
	REFUSED(-EBADF, "closed", syncline_transaction_commit(transaction));
	REFUSED(-EBADF, "closed", syncline_transaction_abort(transaction));
	EXPECT(0, syncline_file_close(file));
}

static void a_conflict_applies_nothing(syncline_volume *volume)
{
	syncline_transaction *first, *second;

	EXPECT(0, syncline_transaction_begin(volume, &first));
	EXPECT(0, syncline_transaction_begin(volume, &second));
	EXPECT(1, syncline_transaction_pwrite(first, syncline_transaction_open(first, "joined"), "1", 1, 0));
	EXPECT(1, syncline_transaction_pwrite(second, syncline_transaction_open(second, "joined"), "2", 1, 0));
	EXPECT(0, syncline_transaction_commit(first));
	REFUSED(-EAGAIN, "begin it again", syncline_transaction_commit(second));
	REFUSED(-EBADF, "closed", syncline_transaction_abort(second));
	CHECK(has_content(volume, "joined", "1wo"));
	EXPECT(0, syncline_transaction_begin(volume, &first));
	EXPECT(1, syncline_transaction_pwrite(first, syncline_transaction_open(first, "joined"), "3", 1, 0));
	EXPECT(0, syncline_transaction_abort(first));
	CHECK(has_content(volume, "joined", "1wo"));
}

static void arguments_are_checked(syncline_volume *volume)
{
	syncline_volume *elsewhere = memory_volume();
	syncline_transaction *transaction;
	syncline_file *file;
	int64_t opened;
	char byte;

	EXPECT(0, syncline_transaction_begin(volume, &transaction));
	opened = syncline_transaction_open(transaction, "joined");
	REFUSED(-EBADF, "no file of this transaction", syncline_transaction_pread(transaction, 12345, &byte, 1, 0));
	REFUSED(-EBADF, "no file of this transaction", syncline_transaction_size(transaction, -1));
	REFUSED(-EINVAL, "negative", syncline_transaction_pwrite(transaction, opened, "x", 1, -1));
	REFUSED(-EINVAL, "negative", syncline_transaction_truncate(transaction, opened, -1));
	REFUSED(-EFAULT, "buffer", syncline_transaction_pread(transaction, opened, NULL, 1, 0));
	REFUSED(-EINVAL, "length", syncline_transaction_pwrite(transaction, opened, "x", SIZE_MAX, 0));
	REFUSED(-EINVAL, "mode", syncline_transaction_create(transaction, "x", 010000));
	EXPECT(-ENOENT, syncline_transaction_unlink(transaction, "none"));
	EXPECT(-ENOENT, syncline_transaction_rename(transaction, "none", "other"));
	EXPECT(-ENOTDIR, syncline_transaction_open(transaction, "joined/x"));
	file = file_of(elsewhere, "file");
	REFUSED(-EINVAL, "another volume", syncline_transaction_join(transaction, file));
	EXPECT(0, syncline_file_close(file));
	REFUSED(-EBADF, "closed", syncline_transaction_join(transaction, file));
	EXPECT(0, syncline_open(volume, "joined", O_RDONLY, 0, &file));
	EXPECT(-EBADF, syncline_transaction_join(transaction, file));
	EXPECT(0, syncline_file_close(file));
	REFUSED(-EFAULT, "ticket", syncline_transaction_commit_start(transaction, NULL, NULL, NULL));
	EXPECT(0, syncline_transaction_abort(transaction));
	EXPECT(0, syncline_volume_close(elsewhere));
}

static void set(void *context, int error)
{
	__atomic_store_n((int *)context, error ? error : 1, __ATOMIC_SEQ_CST);
}

static void commits_are_started(syncline_volume *volume)
{
	syncline_transaction *transaction;
	syncline_sync_ticket *ticket;
	int done = 0, event = eventfd(0, EFD_CLOEXEC);
	uint64_t count;

	for (int round = 0; round < 3; round++) {
		int64_t file;

		EXPECT(0, syncline_transaction_begin(volume, &transaction));
		file = syncline_transaction_open(transaction, "joined");
		EXPECT(4096, syncline_transaction_truncate(transaction, file, 4096) ?: 4096);
		if (round == 0) {
			EXPECT(0, syncline_transaction_commit_start(transaction, NULL, NULL, &ticket));
			EXPECT(0, syncline_ticket_wait(ticket, -1));
			EXPECT(0, syncline_ticket_free(ticket));
		} else if (round == 1) {
			EXPECT(0, syncline_transaction_commit_start(transaction, set, &done, NULL));
			while (__atomic_load_n(&done, __ATOMIC_SEQ_CST) == 0)
				usleep(1000);
			CHECK(done == 1);
		} else {
			EXPECT(0, syncline_transaction_commit_start_eventfd(transaction, event, NULL));
			CHECK(read(event, &count, sizeof count) == sizeof count && count == 1);
		}
		REFUSED(-EBADF, "closed", syncline_transaction_abort(transaction));
	}
	close(event);
}

void test_transactions(void)
{
	syncline_volume *volume = memory_volume();

	all_is_seen_at_the_commit(volume);
	a_conflict_applies_nothing(volume);
	arguments_are_checked(volume);
	commits_are_started(volume);
	EXPECT(0, syncline_volume_close(volume));
}
