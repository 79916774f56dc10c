/*
 * The steps of crates/syncline/examples/baseline.rs in C, to hold C against Rust: one command per line of the standard
 * input, answered by the nanoseconds that it took.
 *
 * usage: baseline IMAGE, then `sync COUNT` (write 4 KiB, sync) or `read MIB` (a file of so many MiB into memory that is
 * there already)
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syncline/syncline.h>
#include <time.h>

enum { PAGE_BYTES = 4096, PAGES = 1024 };

static int64_t check(int64_t result)
{
	if (result < 0) {
		fprintf(stderr, "%s\n", syncline_last_error());
		exit(1);
	}
	return result;
}

static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int64_t sync_pages(syncline_file *file, long count)
{
	static int64_t page;
	char data[PAGE_BYTES];
	int64_t began;

	memset(data, 7, sizeof data);
	began = now();
	for (long done = 0; done < count; done++, page++) {
		check(syncline_file_pwrite(file, data, sizeof data, page % PAGES * PAGE_BYTES));
		check(syncline_file_sync(file));
	}
	return now() - began;
}

static int64_t read_large(syncline_volume *volume, size_t bytes)
{
	static syncline_file *file;
	static char *into;
	int64_t began;

	if (!file) {
		into = malloc(bytes);
		if (!into)
			exit(1);
		memset(into, 1, bytes);
		check(syncline_open(volume, "/large", O_RDWR | O_CREAT, 0666, &file));
		check(syncline_file_pwrite(file, into, bytes, 0));
		check(syncline_file_sync(file));
		check(syncline_volume_checkpoint(volume));
	}
	began = now();
	if (check(syncline_file_pread(file, into, bytes, 0)) != (int64_t)bytes)
		exit(1);
	return now() - began;
}

int main(int count, char **arguments)
{
	struct syncline_create_options create = { .size = sizeof create, .volume_bytes = (uint64_t)4 << 30 };
	syncline_volume *volume;
	syncline_file *pages;
	char command[16];
	long number;

	if (count != 2)
		return 2;
	check(syncline_volume_create(arguments[1], &create, NULL, &volume));
	check(syncline_open(volume, "/pages", O_RDWR | O_CREAT, 0666, &pages));
	while (scanf("%15s %ld", command, &number) == 2) {
		if (strcmp(command, "sync") == 0)
			printf("%lld\n", (long long)sync_pages(pages, number));
		else
			printf("%lld\n", (long long)read_large(volume, (size_t)number << 20));
		fflush(stdout);
	}
	return check(syncline_volume_close(volume)) != 0;
}
