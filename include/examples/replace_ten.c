/*
 * Replaces ten configuration files at one durable point: after a crash all of them are the old ones or all are the new
 * ones.
 *
 *     cc -I.. -o replace_ten replace_ten.c
 *     ./replace_ten DIRECTORY GENERATION
 *
 * Each file is written under a temporary name and renamed over the old one, as it is done everywhere; that the ten
 * belong together, and that nothing has to be synced one by one, is what the group adds.
 */
#define _GNU_SOURCE
#include <syncline/ioctl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES 10

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void replace(const char *name, const char *content, __u64 token)
{
	char temporary[64];
	size_t length = strlen(content);
	int fd;

	snprintf(temporary, sizeof(temporary), "%s.new", name);
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		fail(temporary);
	if (syncline_group_join(fd, token) < 0)
		fail("join");
	if (write(fd, content, length) != (ssize_t)length)
		fail("write");
	if (close(fd) < 0)
		fail("close");
	if (rename(temporary, name) < 0)
		fail("rename");
}

int main(int argc, char **argv)
{
	char name[32], content[64];
	__u64 token;
	int fd, number;

	if (argc != 3) {
		fprintf(stderr, "usage: %s DIRECTORY GENERATION\n", argv[0]);
		return 2;
	}
	if (chdir(argv[1]) < 0)
		fail(argv[1]);
	/* The group lives as long as this is open. */
	fd = open(".group", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		fail(".group");
	if (syncline_group_begin(fd, &token) < 0)
		fail("begin");
	for (number = 0; number < FILES; number++) {
		snprintf(name, sizeof(name), "config%d", number);
		snprintf(content, sizeof(content), "generation %s of file %d\n", argv[2], number);
		replace(name, content, token);
	}
	if (syncline_group_commit(fd, token) < 0)
		fail("commit");
	return 0;
}
