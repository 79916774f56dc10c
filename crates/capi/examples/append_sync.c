/*
 * Appends 4 KiB and syncs, as often as told, on a volume in memory: the counterpart of
 * crates/syncline/examples/append_sync.rs, to compare what a call from C costs.
 *
 *     make build
 *     cc -O2 -I include -o append_sync crates/capi/examples/append_sync.c dist/bin/libsyncline.so.1
 *     valgrind --tool=callgrind --callgrind-out-file=/dev/null ./append_sync 1000
 *     valgrind --tool=callgrind --callgrind-out-file=/dev/null ./append_sync 3000
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syncline/syncline.h>

static void check(int64_t code)
{
	if (code < 0) {
		fprintf(stderr, "%s\n", syncline_last_error());
		exit(1);
	}
}

int main(int arguments_count, char **arguments)
{
	long count = arguments_count > 1 ? atol(arguments[1]) : 1000;
	syncline_volume *volume;
	syncline_file *file;
	char page[4096];

	memset(page, 7, sizeof page);
	check(syncline_volume_create_in_memory(256 << 20, NULL, NULL, &volume));
	check(syncline_open(volume, "log", O_WRONLY | O_CREAT | O_TRUNC, 0666, &file));
	for (long at = 0; at < count; at++) {
		check(syncline_file_pwrite(file, page, sizeof page, at * (int64_t)sizeof page));
		check(syncline_file_sync(file));
	}
	check(syncline_file_close(file));
	return 0;
}
