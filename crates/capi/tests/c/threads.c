/* Many threads: on files of their own and one of all, and while others close what they use. */
#include "check.h"

enum { THREADS = 6 };

struct shared {
	syncline_volume *volume;
	syncline_file *log;
	syncline_file *_Atomic file;
	_Atomic int stop;
	_Atomic long done;
	_Atomic long refused;
	int number;
};

static void run(void *(*act)(void *), struct shared *shared, int count)
{
	pthread_t threads[THREADS];

	for (int at = 0; at < count; at++)
		CHECK(pthread_create(&threads[at], NULL, act, shared) == 0);
	for (int at = 0; at < count; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
}

static _Atomic int numbers;

static void *work(void *context)
{
	struct shared *shared = context;
	char name[32], record[64], read[64];
	syncline_file *file;
	int number = numbers++;

	snprintf(name, sizeof name, "own%d", number);
	file = file_of(shared->volume, name);
	for (int round = 0; round < 50; round++) {
		int length = snprintf(record, sizeof record, "thread %d round %d\n", number, round);
		int64_t at = -1;

		EXPECT(length, syncline_file_append(shared->log, record, (size_t)length, &at));
		EXPECT(length, syncline_file_pread(shared->log, read, (size_t)length, at));
		CHECK(memcmp(read, record, (size_t)length) == 0);
		EXPECT(length, syncline_file_pwrite(file, record, (size_t)length, round * 64));
		EXPECT(0, round % 2 ? syncline_file_sync(file) : syncline_file_datasync(shared->log));
		/* Each thread has a last error of its own. */
		snprintf(name, sizeof name, "none%d", number);
		EXPECT(-ENOENT, syncline_unlink(shared->volume, name));
		CHECK(strstr(syncline_last_error(), name) != NULL);
		shared->done += length;
	}
	EXPECT(0, syncline_file_close(file));
	return NULL;
}

static void threads_share_files_and_have_their_own(void)
{
	struct shared shared = { 0 };
	struct syncline_stat stat;

	shared.volume = memory_volume();
	EXPECT(0, syncline_open(shared.volume, "log", O_RDWR | O_CREAT | O_APPEND, 0666, &shared.log));
	run(work, &shared, THREADS);
	EXPECT(0, syncline_file_stat(shared.log, &stat));
	CHECK(stat.size == (uint64_t)shared.done);
	EXPECT(0, syncline_volume_close(shared.volume));
}

/* Uses a file that is closed under it, and opens the next one. */
static void *use(void *context)
{
	struct shared *shared = context;
	char page[4096] = { 1 };

	while (!shared->stop) {
		syncline_file *file = shared->file;
		ssize_t count = syncline_file_pwrite(file, page, sizeof page, 0);
		int synced = syncline_file_sync(file);

		if (count == -EBADF || synced == -EBADF) {
			shared->refused++;
			sched_yield();
		} else {
			CHECK(count == sizeof page && synced == 0);
			shared->done++;
		}
	}
	return NULL;
}

static void a_file_is_closed_while_others_use_it(void)
{
	struct shared shared = { 0 };
	pthread_t threads[THREADS];

	shared.volume = memory_volume();
	shared.file = file_of(shared.volume, "file");
	for (int at = 0; at < THREADS; at++)
		CHECK(pthread_create(&threads[at], NULL, use, &shared) == 0);
	for (int round = 0; round < 300; round++) {
		syncline_file *old = shared.file;

		EXPECT(0, syncline_file_close(old));
		REFUSED(-EBADF, "closed", syncline_file_close(old));
		shared.file = file_of(shared.volume, "file");
	}
	while (shared.done == 0)
		sched_yield();
	shared.stop = 1;
	for (int at = 0; at < THREADS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	EXPECT(0, syncline_volume_close(shared.volume));
}

static void ignore(void *context, int error)
{
	struct shared *shared = context;

	(void)error;
	shared->refused++;
}

/* Does a bit of everything until the volume is closed. What it has begun is then refused or done, and nothing else. */
static void *everything(void *context)
{
	struct shared *shared = context;
	syncline_volume *volume = shared->volume;
	char name[32], page[4096] = { 2 };
	int number = numbers++;

	for (int round = 0;; round++) {
		syncline_file *file;
		syncline_dir *dir;
		syncline_transaction *transaction;
		syncline_sync_ticket *ticket;
		struct syncline_dirent entry;
		int error;

		snprintf(name, sizeof name, "f%d-%d", number, round % 7);
		error = syncline_open(volume, name, O_RDWR | O_CREAT, 0666, &file);
		if (error == -EBADF)
			return NULL;
		CHECK(error == 0);
		syncline_file_pwrite(file, page, sizeof page, round);
		error = syncline_file_sync(file);
		CHECK(error == 0 || error == -EBADF);
		if (error == 0)
			shared->done++;
		error = syncline_file_sync_start(file, 0, 0, 0, ignore, shared, &ticket);
		CHECK(error == 0 || error == -EBADF);
		if (error == 0) {
			error = syncline_ticket_wait(ticket, -1);
			CHECK(error == 0 || error == -EBADF);
			syncline_ticket_free(ticket);
		}
		if (syncline_transaction_begin(volume, &transaction) == 0) {
			int64_t staged = syncline_transaction_open(transaction, name);

			if (staged > 0)
				syncline_transaction_pwrite(transaction, staged, page, sizeof page, 8192);
			error = syncline_transaction_commit(transaction);
			CHECK(error == 0 || error == -EBADF || error == -EAGAIN);
		}
		if (syncline_dir_open(volume, "/", &dir) == 0) {
			while (syncline_dir_next(dir, &entry) == 1)
				;
			syncline_dir_close(dir);
		}
		error = syncline_file_close(file);
		CHECK(error == 0 || error == -EBADF);
	}
}

static void a_volume_is_closed_while_others_use_it(void)
{
	for (int round = 0; round < 8; round++) {
		struct shared shared = { 0 };
		pthread_t threads[THREADS];
		syncline_volume *again;
		long calls;

		shared.volume = image_volume();
		for (int at = 0; at < THREADS; at++)
			CHECK(pthread_create(&threads[at], NULL, everything, &shared) == 0);
		while (shared.done < 20 + 10 * round)
			sched_yield();
		EXPECT(0, syncline_volume_close(shared.volume));
		calls = shared.refused;
		/* The image is free at once, and is sound. */
		EXPECT(0, syncline_volume_open(image_path(), NULL, &again));
		for (int at = 0; at < THREADS; at++)
			CHECK(pthread_join(threads[at], NULL) == 0);
		CHECK(calls == shared.refused);
		EXPECT(0, syncline_volume_close(again));
	}
	unlink(image_path());
}

/* Two threads that close the same: one of them does. */
static void *close_it(void *context)
{
	struct shared *shared = context;
	int error = syncline_volume_close(shared->volume);

	CHECK(error == 0 || error == -EBADF);
	if (error == 0)
		shared->done++;
	return NULL;
}

static void one_of_many_closes(void)
{
	for (int round = 0; round < 20; round++) {
		struct shared shared = { 0 };

		shared.volume = memory_volume();
		file_of(shared.volume, "file");
		run(close_it, &shared, THREADS);
		CHECK(shared.done == 1);
	}
}

/* A ticket that is freed, and waited for, by many at once. */
static void *wait_and_free(void *context)
{
	struct shared *shared = context;
	syncline_sync_ticket *tickets[2] = { (syncline_sync_ticket *)shared->file, (syncline_sync_ticket *)shared->file };
	size_t index;
	int error = syncline_ticket_wait_any(tickets, 2, -1, &index);

	CHECK(error == 0 || error == -EBADF);
	error = syncline_ticket_free(tickets[0]);
	CHECK(error == 0 || error == -EBADF);
	if (error == 0)
		shared->done++;
	return NULL;
}

static void one_of_many_frees_a_ticket(void)
{
	syncline_volume *volume = memory_volume();
	syncline_file *file = file_of(volume, "file");

	for (int round = 0; round < 50; round++) {
		struct shared shared = { 0 };
		syncline_sync_ticket *ticket;

		EXPECT(1, syncline_file_pwrite(file, "x", 1, round));
		EXPECT(0, syncline_file_sync_start(file, 0, 0, 0, NULL, NULL, &ticket));
		shared.file = (syncline_file *)ticket;
		run(wait_and_free, &shared, THREADS);
		CHECK(shared.done == 1);
	}
	EXPECT(0, syncline_volume_close(volume));
}

void test_threads(void)
{
	threads_share_files_and_have_their_own();
	a_file_is_closed_while_others_use_it();
	a_volume_is_closed_while_others_use_it();
	one_of_many_closes();
	one_of_many_frees_a_ticket();
}
