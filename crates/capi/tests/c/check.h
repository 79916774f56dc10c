/* What the tests of libsyncline share: checks that say where they stand, and volumes to work on. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sched.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <syncline/syncline.h>

/* Fails the program: what was to hold does not. */
#define CHECK(condition)                                                                                   \
	do {                                                                                               \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "%s:%d: %s; the library: %s\n", __FILE__, __LINE__, #condition,        \
				syncline_last_error());                                                    \
			_exit(1);                                                                          \
		}                                                                                          \
	} while (0)

/* The call returns what is expected: a count, or a negative error number. */
#define EXPECT(wanted, call)                                                                               \
	do {                                                                                               \
		long long got_ = (long long)(call);                                                        \
		if (got_ != (long long)(wanted)) {                                                         \
			fprintf(stderr, "%s:%d: %s is %lld, not %s; the library: %s\n", __FILE__, __LINE__, #call, \
				got_, #wanted, syncline_last_error());                                     \
			_exit(1);                                                                          \
		}                                                                                          \
	} while (0)

/* The call fails so, and the sentence begins with the function's name and contains these words. */
#define REFUSED(wanted, words, call)                                                                       \
	do {                                                                                               \
		EXPECT(wanted, call);                                                                      \
		CHECK(strncmp(syncline_last_error(), #call, strcspn(#call, "(")) == 0);                    \
		CHECK(strstr(syncline_last_error(), words) != NULL);                                       \
	} while (0)

#define MIB (1024 * 1024)

/* A volume in memory. */
syncline_volume *memory_volume(void);
/* A new volume in the image `image_path()`. */
syncline_volume *image_volume(void);
/* In the directory that the program was given. */
const char *image_path(void);
/* A file of the volume, for reading and writing, which is made if need be. */
syncline_file *file_of(syncline_volume *volume, const char *path);
/* Whether the file has this content. */
int has_content(syncline_volume *volume, const char *path, const char *content);
/* Runs `act` in a forked child; its exit status. */
int in_child(void (*act)(void *context), void *context);

/* The tests, by file. */
void test_volumes(void);
void test_files(void);
void test_names(void);
void test_attributes(void);
void test_tickets(void);
void test_transactions(void);
void test_snapshots(void);
void test_hostile(void);
void test_threads(void);
void test_fork(void);
void test_crash(void);

#endif
