/* Names: directories, links, renaming, listing. */
#include "check.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#define RENAME_EXCHANGE 2
#define RENAME_WHITEOUT 4
#endif

static void names_are_made_moved_and_removed(syncline_volume *volume)
{
	struct syncline_stat stat;

	EXPECT(0, syncline_mkdir(volume, "/d", 0750));
	EXPECT(0, syncline_stat(volume, "d", &stat));
	CHECK(stat.mode == (S_IFDIR | 0750) && stat.nlink == 2);
	REFUSED(-EEXIST, "d: ", syncline_mkdir(volume, "d", 0777));
	REFUSED(-EINVAL, "mode", syncline_mkdir(volume, "e", 01000000));
	EXPECT(-ENOENT, syncline_mkdir(volume, "x/y", 0777));
	EXPECT(0, syncline_file_close(file_of(volume, "d/file")));
	REFUSED(-ENOTEMPTY, "d: ", syncline_rmdir(volume, "d"));
	EXPECT(-EBUSY, syncline_rmdir(volume, "/"));
	EXPECT(-ENOTDIR, syncline_rmdir(volume, "d/file"));
	EXPECT(-EISDIR, syncline_unlink(volume, "d"));
	EXPECT(0, syncline_link(volume, "d/file", "other"));
	EXPECT(-EEXIST, syncline_link(volume, "d/file", "other"));
	EXPECT(0, syncline_stat(volume, "other", &stat));
	CHECK(stat.nlink == 2);
	EXPECT(-EEXIST, syncline_rename(volume, "other", "d/file", RENAME_NOREPLACE));
	EXPECT(0, syncline_mkdir(volume, "second", 0777));
	EXPECT(0, syncline_rename(volume, "second", "d", RENAME_EXCHANGE));
	EXPECT(0, syncline_stat(volume, "second/file", &stat));
	EXPECT(0, syncline_rename(volume, "second/file", "moved", 0));
	EXPECT(0, syncline_rename(volume, "moved", "kept", RENAME_WHITEOUT));
	EXPECT(0, syncline_lstat(volume, "moved", &stat));
	CHECK(S_ISCHR(stat.mode) && stat.rdev == 0);
	REFUSED(-EINVAL, "flags", syncline_rename(volume, "kept", "x", 8));
	REFUSED(-ENOENT, "none: ", syncline_rename(volume, "none", "x", 0));
	EXPECT(0, syncline_unlink(volume, "moved"));
	EXPECT(0, syncline_unlink(volume, "kept"));
	EXPECT(0, syncline_unlink(volume, "other"));
	EXPECT(-ENOENT, syncline_unlink(volume, "other"));
	EXPECT(0, syncline_rmdir(volume, "second"));
	EXPECT(0, syncline_rmdir(volume, "d"));
}

static void links_are_read(syncline_volume *volume)
{
	char text[16];

	EXPECT(0, syncline_mkdir(volume, "a", 0777));
	EXPECT(0, syncline_symlink(volume, "../a", "a/link"));
	EXPECT(4, syncline_readlink(volume, "a/link", NULL, 0));
	REFUSED(-ERANGE, "5 bytes", syncline_readlink(volume, "a/link", text, 4));
	EXPECT(4, syncline_readlink(volume, "a/link", text, 5));
	CHECK(strcmp(text, "../a") == 0);
	EXPECT(-EINVAL, syncline_readlink(volume, "a", text, sizeof text));
	EXPECT(2, syncline_realpath(volume, "a/link/link/../a/.", text, sizeof text));
	CHECK(strcmp(text, "/a") == 0);
	EXPECT(1, syncline_realpath(volume, "/", text, 2));
	CHECK(strcmp(text, "/") == 0);
	EXPECT(0, syncline_symlink(volume, "loop", "loop"));
	EXPECT(-ELOOP, syncline_realpath(volume, "loop", text, sizeof text));
	EXPECT(0, syncline_unlink(volume, "loop"));
	EXPECT(0, syncline_unlink(volume, "a/link"));
	EXPECT(0, syncline_rmdir(volume, "a"));
}

static void a_listing_shows_everything_once(syncline_volume *volume)
{
	enum { FILES = 1000 };
	static int seen[FILES];
	struct syncline_dirent entry;
	struct syncline_stat stat;
	syncline_dir *dir;
	char name[300];
	int others = 0, found;

	for (int at = 0; at < FILES; at++) {
		snprintf(name, sizeof name, "f%d", at);
		EXPECT(0, syncline_file_close(file_of(volume, name)));
	}
	EXPECT(0, syncline_mkdir(volume, "directory", 0777));
	EXPECT(0, syncline_symlink(volume, "f0", "link"));
	memset(name, 'n', 255);
	name[255] = 0;
	EXPECT(0, syncline_file_close(file_of(volume, name)));
	EXPECT(0, syncline_dir_open(volume, "/", &dir));
	while ((found = syncline_dir_next(dir, &entry)) == 1) {
		CHECK(entry.name_bytes == strlen(entry.name));
		if (strcmp(entry.name, "directory") == 0) {
			CHECK(entry.type == DT_DIR);
			others++;
		} else if (strcmp(entry.name, "link") == 0) {
			CHECK(entry.type == DT_LNK);
			others++;
		} else if (strcmp(entry.name, name) == 0) {
			CHECK(entry.type == DT_REG && entry.name_bytes == 255);
			others++;
		} else {
			seen[atoi(entry.name + 1)]++;
			CHECK(entry.type == DT_REG);
		}
	}
	EXPECT(0, found);
	EXPECT(0, syncline_dir_next(dir, &entry));
	EXPECT(0, syncline_dir_close(dir));
	CHECK(others == 3);
	for (int at = 0; at < FILES; at++)
		CHECK(seen[at] == 1);
	EXPECT(0, syncline_lstat(volume, "f7", &stat));
	EXPECT(-ENOTDIR, syncline_dir_open(volume, "f7", &dir));
	CHECK(dir == NULL);
	EXPECT(-ENOENT, syncline_dir_open(volume, "none", &dir));
}

void test_names(void)
{
	syncline_volume *volume = memory_volume();

	names_are_made_moved_and_removed(volume);
	links_are_read(volume);
	a_listing_shows_everything_once(volume);
	EXPECT(0, syncline_volume_close(volume));
}
