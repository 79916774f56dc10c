/* Files: flags, reading and writing, size and space, syncs. */
#include "check.h"

static void flags_mean_what_open_says(syncline_volume *volume)
{
	syncline_file *file;
	char read[8];

	REFUSED(-ENOENT, "missing: ", syncline_open(volume, "missing", O_RDONLY, 0, &file));
	CHECK(file == NULL);
	EXPECT(0, syncline_open(volume, "a", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640, &file));
	EXPECT(5, syncline_file_pwrite(file, "hello", 5, 0));
	REFUSED(-EBADF, "", syncline_file_pread(file, read, 1, 0));
	EXPECT(0, syncline_file_close(file));
	EXPECT(-EEXIST, syncline_open(volume, "a", O_WRONLY | O_CREAT | O_EXCL, 0640, &file));
	EXPECT(0, syncline_open(volume, "a", O_RDONLY, 0, &file));
	EXPECT(-EBADF, syncline_file_pwrite(file, "x", 1, 0));
	REFUSED(-EINVAL, "appending", syncline_file_append(file, "x", 1, NULL));
	EXPECT(0, syncline_file_close(file));
	EXPECT(0, syncline_open(volume, "a", O_WRONLY | O_TRUNC | O_DSYNC, 0, &file));
	EXPECT(2, syncline_file_pwrite(file, "hi", 2, 0));
	EXPECT(0, syncline_file_close(file));
	CHECK(has_content(volume, "a", "hi"));
	EXPECT(0, syncline_open(volume, "a", O_RDWR | O_SYNC, 0, &file));
	EXPECT(2, syncline_file_pwrite(file, "ho", 2, 0));
	EXPECT(0, syncline_file_close(file));
	EXPECT(0, syncline_symlink(volume, "a", "link"));
	EXPECT(0, syncline_open(volume, "link", O_RDONLY, 0, &file));
	EXPECT(0, syncline_file_close(file));
	EXPECT(-ELOOP, syncline_open(volume, "link", O_RDONLY | O_NOFOLLOW, 0, &file));
	EXPECT(0, syncline_mkdir(volume, "d", 0777));
	EXPECT(-EISDIR, syncline_open(volume, "d", O_RDWR, 0, &file));
	EXPECT(-ENOTDIR, syncline_open(volume, "a/b", O_RDONLY, 0, &file));
	REFUSED(-EINVAL, "flags", syncline_open(volume, "a", O_ACCMODE, 0, &file));
	REFUSED(-EINVAL, "flags", syncline_open(volume, "a", O_RDWR | O_EXCL, 0, &file));
	REFUSED(-EINVAL, "flags", syncline_open(volume, "a", O_RDWR | O_TMPFILE, 0, &file));
	REFUSED(-EINVAL, "mode", syncline_open(volume, "a", O_RDWR | O_CREAT, 010000, &file));
	REFUSED(-EINVAL, "write access", syncline_open(volume, "a", O_RDONLY | O_CREAT, 0666, &file));
	EXPECT(-EINVAL, syncline_open(volume, "a", O_WRONLY | O_TRUNC | O_APPEND, 0, &file));
}

static void appends_tell_where(syncline_volume *volume)
{
	syncline_file *file;
	int64_t at = -1;

	EXPECT(0, syncline_open(volume, "log", O_WRONLY | O_CREAT | O_APPEND, 0666, &file));
	EXPECT(3, syncline_file_append(file, "one", 3, &at));
	CHECK(at == 0);
	EXPECT(3, syncline_file_append(file, "two", 3, &at));
	CHECK(at == 3);
	EXPECT(5, syncline_file_pwrite(file, "three", 5, 0));
	EXPECT(1, syncline_file_append(file, ".", 1, NULL));
	EXPECT(0, syncline_file_sync(file));
	EXPECT(0, syncline_file_close(file));
	CHECK(has_content(volume, "log", "onetwothree."));
}

static void bytes_are_where_they_were_put(syncline_volume *volume)
{
	syncline_file *file = file_of(volume, "bytes");
	struct syncline_stat stat;
	char read[16];

	EXPECT(0, syncline_file_pread(file, read, sizeof read, 0));
	EXPECT(4, syncline_file_pwrite(file, "tail", 4, 100000));
	EXPECT(8, syncline_file_pread(file, read, 8, 99996));
	CHECK(memcmp(read, "\0\0\0\0tail", 8) == 0);
	EXPECT(2, syncline_file_pread(file, read, sizeof read, 100002));
	EXPECT(0, syncline_file_pread(file, read, sizeof read, 100004));
	EXPECT(0, syncline_file_pread(file, NULL, 0, 0));
	EXPECT(0, syncline_file_pwrite(file, NULL, 0, 0));
	EXPECT(0, syncline_file_truncate(file, 10));
	EXPECT(0, syncline_file_stat(file, &stat));
	CHECK(stat.size == 10 && stat.nlink == 1 && stat.mode == (S_IFREG | 0644));
	EXPECT(0, syncline_truncate(volume, "bytes", 1 << 20));
	EXPECT(0, syncline_stat(volume, "bytes", &stat));
	CHECK(stat.size == 1 << 20);
	REFUSED(-EINVAL, "negative", syncline_file_truncate(file, -1));
	REFUSED(-EINVAL, "negative", syncline_truncate(volume, "bytes", -1));
	REFUSED(-EINVAL, "negative", syncline_file_pread(file, read, 1, -1));
	REFUSED(-EINVAL, "negative", syncline_file_pwrite(file, read, 1, INT64_MIN));
	REFUSED(-EINVAL, "length", syncline_file_pread(file, read, (size_t)-1, 0));
	REFUSED(-EINVAL, "length", syncline_file_pwrite(file, read, (size_t)SSIZE_MAX + 1, 0));
	REFUSED(-EFAULT, "buffer", syncline_file_pread(file, NULL, 1, 0));
	REFUSED(-EFAULT, "buffer", syncline_file_pwrite(file, NULL, 1, 0));
	EXPECT(-EFBIG, syncline_file_pwrite(file, "x", 1, INT64_MAX));
	EXPECT(0, syncline_file_close(file));
}

static void space_is_taken_and_given_back(syncline_volume *volume)
{
	syncline_file *file = file_of(volume, "space");
	char page[4096];

	memset(page, 7, sizeof page);
	EXPECT(0, syncline_file_fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 65536));
	EXPECT(-ENXIO, syncline_file_seek(file, 0, SEEK_DATA));
	for (int64_t at = 0; at < 16; at++)
		EXPECT(4096, syncline_file_pwrite(file, page, sizeof page, at * 4096));
	EXPECT(0, syncline_file_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 8192));
	EXPECT(0, syncline_file_sync(file));
	EXPECT(0, syncline_file_seek(file, 0, SEEK_DATA));
	EXPECT(8192, syncline_file_seek(file, 0, SEEK_HOLE));
	EXPECT(16384, syncline_file_seek(file, 8192, SEEK_DATA));
	EXPECT(65536, syncline_file_seek(file, 16384, SEEK_HOLE));
	REFUSED(-ENXIO, "none", syncline_file_seek(file, 1 << 20, SEEK_DATA));
	REFUSED(-EINVAL, "whence", syncline_file_seek(file, 0, SEEK_SET));
	EXPECT(0, syncline_file_fallocate(file, FALLOC_FL_ZERO_RANGE, 0, 4096));
	EXPECT(0, syncline_file_fallocate(file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 65536, 4096));
	EXPECT(1, syncline_file_pread(file, page, 1, 0));
	CHECK(page[0] == 0);
	EXPECT(0, syncline_file_fallocate(file, FALLOC_FL_INSERT_RANGE, 0, 4096));
	EXPECT(0, syncline_file_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 8192));
	EXPECT(0, syncline_file_fallocate(file, 0, 0, 131072));
	REFUSED(-EOPNOTSUPP, "mode", syncline_file_fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, 4096));
	REFUSED(-EOPNOTSUPP, "mode", syncline_file_fallocate(file, -1, 0, 4096));
	REFUSED(-EINVAL, "negative", syncline_file_fallocate(file, 0, -1, 4096));
	REFUSED(-EINVAL, "negative", syncline_file_fallocate(file, 0, 0, -1));
	REFUSED(-EINVAL, "0", syncline_file_fallocate(file, 0, 0, 0));
	EXPECT(-ENOSPC, syncline_file_fallocate(file, 0, 0, (int64_t)1 << 40));
	EXPECT(0, syncline_file_close(file));
}

static void ranges_are_synced(syncline_volume *volume)
{
	syncline_file *file = file_of(volume, "ranges");
	char page[8192] = { 1 };

	EXPECT(8192, syncline_file_pwrite(file, page, sizeof page, 0));
	CHECK(syncline_file_write_back(file, 0, 0) >= 0);
	EXPECT(0, syncline_file_sync_range(file, 0, 4096, SYNCLINE_DATA));
	EXPECT(0, syncline_file_sync_range(file, 4096, 0, 0));
	EXPECT(0, syncline_file_datasync(file));
	EXPECT(0, syncline_file_sync_range(file, INT64_MAX, INT64_MAX, 0));
	REFUSED(-EINVAL, "negative", syncline_file_sync_range(file, -1, 0, 0));
	REFUSED(-EINVAL, "negative", syncline_file_sync_range(file, 0, -1, 0));
	REFUSED(-EINVAL, "flags", syncline_file_sync_range(file, 0, 0, 2));
	REFUSED(-EINVAL, "negative", syncline_file_write_back(file, -1, 0));
	EXPECT(0, syncline_file_close(file));
}

static void a_file_without_a_name_lives_as_long_as_its_handle(syncline_volume *volume)
{
	syncline_file *file = file_of(volume, "gone");
	char read[4];

	EXPECT(4, syncline_file_pwrite(file, "here", 4, 0));
	EXPECT(0, syncline_unlink(volume, "gone"));
	EXPECT(4, syncline_file_pread(file, read, 4, 0));
	EXPECT(0, syncline_file_close(file));
	REFUSED(-EBADF, "closed", syncline_file_close(file));
	REFUSED(-EBADF, "closed", syncline_file_pread(file, read, 4, 0));
}

void test_files(void)
{
	syncline_volume *volume = memory_volume();

	flags_mean_what_open_says(volume);
	appends_tell_where(volume);
	bytes_are_where_they_were_put(volume);
	space_is_taken_and_given_back(volume);
	ranges_are_synced(volume);
	a_file_without_a_name_lives_as_long_as_its_handle(volume);
	EXPECT(0, syncline_volume_close(volume));
}
