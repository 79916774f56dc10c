/*
 * What was acknowledged is there when the process that wrote it was killed; what was not is there whole or not at
 * all.
 */
#include "check.h"

/* Tells its parent what is durable, until it is killed. */
static void write_until_killed(int tell)
{
	syncline_volume *volume;
	syncline_file *log;

	EXPECT(0, syncline_volume_open(image_path(), NULL, &volume));
	EXPECT(0, syncline_open(volume, "log", O_WRONLY | O_CREAT | O_APPEND, 0666, &log));
	for (uint32_t number = 1;; number++) {
		syncline_transaction *transaction;
		char content[4096];
		int64_t file;

		EXPECT(4, syncline_file_append(log, &number, 4, NULL));
		if (number % 3 == 0) {
			/* Both files of a pair have the same number. */
			EXPECT(0, syncline_transaction_begin(volume, &transaction));
			for (const char *name = "a"; name != NULL; name = *name == 'a' ? "b" : NULL) {
				file = syncline_transaction_exists(transaction, name) == 1
					       ? syncline_transaction_open(transaction, name)
					       : syncline_transaction_create(transaction, name, 0666);
				CHECK(file > 0);
				memset(content, (int)number, sizeof content);
				EXPECT(4096, syncline_transaction_pwrite(transaction, file, content, sizeof content, 0));
			}
			EXPECT(0, syncline_transaction_commit(transaction));
		}
		EXPECT(0, syncline_file_sync(log));
		if (write(tell, &number, 4) != 4)
			_exit(1);
	}
}

static uint32_t run_and_kill(int numbers)
{
	uint32_t number, last = 0;
	int pipes[2], status;
	pid_t child;

	CHECK(pipe(pipes) == 0);
	fflush(NULL);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(pipes[0]);
		alarm(300);
		write_until_killed(pipes[1]);
	}
	close(pipes[1]);
	for (int read_so_far = 0; read_so_far < numbers; read_so_far++) {
		CHECK(read(pipes[0], &number, 4) == 4);
		last = number;
	}
	CHECK(kill(child, SIGKILL) == 0);
	while (read(pipes[0], &number, 4) == 4)
		last = number;
	close(pipes[0]);
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	return last;
}

void test_crash(void)
{
	EXPECT(0, syncline_volume_close(image_volume()));
	for (int round = 0; round < 6; round++) {
		uint32_t last = run_and_kill(10 + 37 * round), number = 0;
		char a[4096] = { 0 }, b[4096] = { 0 };
		struct syncline_open_options open;
		struct syncline_stat stat;
		syncline_volume *volume;
		syncline_file *file;
		int64_t at = 0, found = 0;

		memset(&open, 0, sizeof open);
		open.size = sizeof open;
		open.wait_for_lock_ms = 60000;
		EXPECT(0, syncline_volume_open(image_path(), &open, &volume));
		EXPECT(0, syncline_open(volume, "log", O_RDONLY, 0, &file));
		EXPECT(0, syncline_file_stat(file, &stat));
		CHECK(stat.size % 4 == 0);
		/* The numbers of this round follow those of earlier ones, from 1 on and without a gap. */
		for (; at < (int64_t)stat.size; at += 4, found = number) {
			EXPECT(4, syncline_file_pread(file, &number, 4, at));
			CHECK(number == found + 1 || number == 1);
		}
		CHECK(number >= last);
		EXPECT(0, syncline_file_close(file));
		EXPECT(0, syncline_open(volume, "a", O_RDONLY, 0, &file));
		EXPECT(4096, syncline_file_pread(file, a, sizeof a, 0));
		EXPECT(0, syncline_open(volume, "b", O_RDONLY, 0, &file));
		EXPECT(4096, syncline_file_pread(file, b, sizeof b, 0));
		CHECK(memcmp(a, b, sizeof a) == 0);
		CHECK((unsigned char)a[0] == (unsigned char)(number - number % 3) ||
		      (unsigned char)a[0] == (unsigned char)(number - number % 3 + 3));
		EXPECT(0, syncline_volume_close(volume));
	}
	unlink(image_path());
}
