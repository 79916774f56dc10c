/* Attributes and extended attributes. */
#include "check.h"

static void attributes_are_set(syncline_volume *volume)
{
	struct timespec times[2] = { { 1000, 999999999 }, { -5, 0 } };
	syncline_file *file = file_of(volume, "file");
	struct syncline_stat stat;

	EXPECT(0, syncline_symlink(volume, "file", "link"));
	EXPECT(0, syncline_chmod(volume, "link", 04755));
	EXPECT(0, syncline_stat(volume, "file", &stat));
	CHECK(stat.mode == (S_IFREG | 04755));
	EXPECT(0, syncline_chmod(volume, "file", stat.mode));
	REFUSED(-EINVAL, "mode", syncline_chmod(volume, "file", 1u << 20));
	EXPECT(0, syncline_chown(volume, "link", 5, (uint32_t)-1));
	EXPECT(0, syncline_lchown(volume, "link", (uint32_t)-1, 6));
	EXPECT(0, syncline_stat(volume, "link", &stat));
	CHECK(stat.uid == 5 && stat.gid == 0 && stat.mode == (S_IFREG | 0755));
	EXPECT(0, syncline_lstat(volume, "link", &stat));
	CHECK(stat.uid == 0 && stat.gid == 6 && S_ISLNK(stat.mode));
	EXPECT(0, syncline_file_chmod(file, 0600));
	EXPECT(0, syncline_file_chown(file, 1, 2));
	EXPECT(0, syncline_file_stat(file, &stat));
	CHECK(stat.mode == (S_IFREG | 0600) && stat.uid == 1 && stat.gid == 2);

	EXPECT(0, syncline_utimens(volume, "link", times, 0));
	EXPECT(0, syncline_stat(volume, "file", &stat));
	CHECK(stat.accessed.tv_sec == 1000 && stat.accessed.tv_nsec == 999999999);
	CHECK(stat.modified.tv_sec == -5 && stat.modified.tv_nsec == 0);
	CHECK(stat.created.tv_sec > 1000000000 && stat.changed.tv_sec >= stat.created.tv_sec);
	times[0].tv_nsec = UTIME_OMIT;
	times[1].tv_nsec = UTIME_NOW;
	EXPECT(0, syncline_file_utimens(file, times));
	EXPECT(0, syncline_file_stat(file, &stat));
	CHECK(stat.accessed.tv_sec == 1000 && stat.modified.tv_sec > 1000000000);
	EXPECT(0, syncline_file_utimens(file, NULL));
	EXPECT(0, syncline_file_stat(file, &stat));
	CHECK(stat.accessed.tv_sec > 1000000000);
	times[0].tv_nsec = times[1].tv_nsec = 1;
	EXPECT(0, syncline_utimens(volume, "link", times, AT_SYMLINK_NOFOLLOW));
	EXPECT(0, syncline_lstat(volume, "link", &stat));
	CHECK(stat.accessed.tv_sec == 1000);
	REFUSED(-EINVAL, "flags", syncline_utimens(volume, "link", times, 1));
	times[0].tv_nsec = 1000000000;
	REFUSED(-EINVAL, "nanoseconds", syncline_utimens(volume, "link", times, 0));
	times[0].tv_nsec = -1;
	REFUSED(-EINVAL, "nanoseconds", syncline_file_utimens(file, times));
	EXPECT(0, syncline_file_close(file));
}

static void extended_attributes_are_set(syncline_volume *volume)
{
	char value[8], names[64], *large = calloc(1, 65537), long_name[300];

	CHECK(large != NULL);
	EXPECT(0, syncline_setxattr(volume, "file", "user.one", "1", 1, XATTR_CREATE));
	EXPECT(-EEXIST, syncline_setxattr(volume, "file", "user.one", "1", 1, XATTR_CREATE));
	REFUSED(-ENODATA, "file: ", syncline_setxattr(volume, "file", "user.two", "2", 1, XATTR_REPLACE));
	EXPECT(0, syncline_setxattr(volume, "file", "user.two", NULL, 0, 0));
	REFUSED(-EINVAL, "flags", syncline_setxattr(volume, "file", "user.two", NULL, 0, 3));
	REFUSED(-EFAULT, "buffer", syncline_setxattr(volume, "file", "user.two", NULL, 1, 0));
	EXPECT(1, syncline_getxattr(volume, "file", "user.one", NULL, 0));
	EXPECT(1, syncline_getxattr(volume, "file", "user.one", value, sizeof value));
	CHECK(value[0] == '1');
	EXPECT(0, syncline_getxattr(volume, "file", "user.two", value, sizeof value));
	REFUSED(-ENODATA, "attribute", syncline_getxattr(volume, "file", "user.three", value, sizeof value));
	EXPECT(0, syncline_setxattr(volume, "file", "user.one", "123", 3, XATTR_REPLACE));
	EXPECT(-ERANGE, syncline_getxattr(volume, "file", "user.one", value, 2));
	EXPECT(18, syncline_listxattr(volume, "file", NULL, 0));
	EXPECT(-ERANGE, syncline_listxattr(volume, "file", names, 17));
	EXPECT(18, syncline_listxattr(volume, "file", names, sizeof names));
	CHECK(memmem(names, 18, "user.one", 9) != NULL && memmem(names, 18, "user.two", 9) != NULL);
	EXPECT(0, syncline_removexattr(volume, "file", "user.two"));
	EXPECT(-ENODATA, syncline_removexattr(volume, "file", "user.two"));
	EXPECT(-EOPNOTSUPP, syncline_setxattr(volume, "file", "unknown.one", "1", 1, 0));
	EXPECT(-E2BIG, syncline_setxattr(volume, "file", "user.large", large, 65537, 0));
	memset(long_name, 'u', sizeof long_name);
	long_name[299] = 0;
	REFUSED(-ERANGE, "255", syncline_setxattr(volume, "file", long_name, "1", 1, 0));
	REFUSED(-EFAULT, "name", syncline_getxattr(volume, "file", NULL, value, sizeof value));
	free(large);
}

void test_attributes(void)
{
	syncline_volume *volume = memory_volume();

	attributes_are_set(volume);
	extended_attributes_are_set(volume);
	EXPECT(0, syncline_volume_close(volume));
}
