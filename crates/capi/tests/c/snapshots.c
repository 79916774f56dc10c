/* Snapshots and heads: made, listed, read, renamed, deleted. */
#include "check.h"

static void write_all(syncline_volume *volume, const char *path, const char *content)
{
	syncline_file *file;

	EXPECT(0, syncline_open(volume, path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &file));
	EXPECT((ssize_t)strlen(content), syncline_file_pwrite(file, content, strlen(content), 0));
	EXPECT(0, syncline_file_close(file));
}

static void holds(syncline_volume *volume, const char *path, const char *content)
{
	syncline_file *file;
	char found[64] = { 0 };

	EXPECT(0, syncline_open(volume, path, O_RDONLY, 0, &file));
	EXPECT((ssize_t)strlen(content), syncline_file_pread(file, found, sizeof found, 0));
	CHECK(strcmp(found, content) == 0);
	EXPECT(0, syncline_file_close(file));
}

struct told {
	char text[512];
	int stop_behind;
	int count;
};

static int tell(void *context, const struct syncline_change *change)
{
	struct told *told = context;
	size_t used = strlen(told->text);

	snprintf(told->text + used, sizeof told->text - used, "%u%s%s:%s;", change->kind,
		 change->kind == SYNCLINE_CHANGE_MODIFIED && (change->flags & SYNCLINE_CHANGED_CONTENT) ? "c" : "",
		 change->from ? change->from : "", change->path);
	told->count++;
	return told->count == told->stop_behind ? 7 : 0;
}

/* A head that the volume was opened with, and its way back. */
static void test_opened_by_its_head(void)
{
	struct syncline_create_options create;
	struct syncline_open_options open;
	syncline_volume *volume;

	unlink(image_path());
	memset(&create, 0, sizeof create);
	create.size = sizeof create;
	create.volume_bytes = 64 * MIB;
	EXPECT(0, syncline_volume_create(image_path(), &create, NULL, &volume));
	write_all(volume, "f", "first");
	EXPECT(0, syncline_snapshot_create(volume, "base"));
	EXPECT(0, syncline_head_create(volume, "base", "attempt"));
	EXPECT(0, syncline_volume_close(volume));

	memset(&open, 0, sizeof open);
	open.size = sizeof open;
	open.head = "none";
	EXPECT(-ENOENT, syncline_volume_open(image_path(), &open, &volume));
	open.head = "\xff";
	REFUSED(-EINVAL, "UTF-8", syncline_volume_open(image_path(), &open, &volume));
	open.head = "attempt";
	EXPECT(0, syncline_volume_open(image_path(), &open, &volume));
	write_all(volume, "f", "attempt");
	EXPECT(0, syncline_snapshot_create(volume, "better"));
	write_all(volume, "f", "worse");
	EXPECT(0, syncline_snapshot_rollback(volume, "better", NULL));
	EXPECT(0, syncline_volume_open(image_path(), &open, &volume));
	holds(volume, "f", "attempt");
	EXPECT(0, syncline_volume_close(volume));
	/* A program that knows nothing of heads. */
	open.size = offsetof(struct syncline_open_options, head);
	EXPECT(0, syncline_volume_open(image_path(), &open, &volume));
	holds(volume, "f", "first");
	EXPECT(0, syncline_volume_close(volume));
	unlink(image_path());
}

static void test_differences(void)
{
	struct syncline_create_options create;
	syncline_volume *volume;
	struct told told = { "", 0, 0 };

	memset(&create, 0, sizeof create);
	create.size = sizeof create;
	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, &create, NULL, &volume));
	write_all(volume, "changed", "first");
	write_all(volume, "gone", "first");
	write_all(volume, "old", "first");
	EXPECT(0, syncline_snapshot_create(volume, "one"));
	EXPECT(0, syncline_snapshot_diff(volume, "one", NULL, 0, tell, &told));
	CHECK(told.count == 0);
	write_all(volume, "changed", "other");
	EXPECT(0, syncline_unlink(volume, "gone"));
	EXPECT(0, syncline_rename(volume, "old", "new", 0));
	write_all(volume, "there", "first");
	EXPECT(0, syncline_snapshot_create(volume, "two"));
	EXPECT(0, syncline_snapshot_diff(volume, "one", "two", SYNCLINE_DIFF_CONTENT, tell, &told));
	CHECK(strcmp(told.text, "4c:changed;1:gone;3old:new;2:there;") == 0);
	told = (struct told){ "", 2, 0 };
	EXPECT(7, syncline_snapshot_diff(volume, "one", NULL, 0, tell, &told));
	CHECK(strcmp(told.text, "4c:changed;1:gone;") == 0 && told.count == 2);
	EXPECT(-ENOENT, syncline_snapshot_diff(volume, "one", "three", 0, tell, &told));
	EXPECT(-ENOENT, syncline_snapshot_diff(volume, "three", NULL, 0, tell, &told));
	EXPECT(-EINVAL, syncline_snapshot_diff(volume, "one", "two", 2, tell, &told));
	EXPECT(-EFAULT, syncline_snapshot_diff(volume, "one", "two", 0, NULL, NULL));
	EXPECT(-EFAULT, syncline_snapshot_diff(volume, NULL, "two", 0, tell, &told));
	CHECK(told.count == 2);
	EXPECT(0, syncline_volume_close(volume));
}

void test_snapshots(void)
{
	struct syncline_create_options create;
	struct syncline_snapshot_info info;
	char schedule[SYNCLINE_SCHEDULE_BYTES];
	struct syncline_head_info head;
	syncline_volume *volume, *view, *old;
	syncline_file *file;
	uint32_t first;
	const char *both[2] = { "one", "two" };
	uint64_t one, two, together, none;

	test_differences();
	test_opened_by_its_head();
	memset(&create, 0, sizeof create);
	create.size = sizeof create;
	create.format = 3;
	REFUSED(-EINVAL, "format", syncline_volume_create_in_memory(64 * MIB, &create, NULL, &volume));
	create.format = 1;
	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, &create, NULL, &old));
	REFUSED(-EOPNOTSUPP, "version 1", syncline_snapshot_create(old, "s"));
	EXPECT(0, syncline_volume_close(old));
	create.format = 0;
	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, &create, NULL, &volume));

	write_all(volume, "f", "first");
	EXPECT(0, syncline_snapshot_create(volume, "one"));
	write_all(volume, "f", "second");
	EXPECT(0, syncline_snapshot_create(volume, "two"));
	write_all(volume, "f", "third");
	EXPECT(-EEXIST, syncline_snapshot_create(volume, "two"));
	EXPECT(-EINVAL, syncline_snapshot_create(volume, ""));
	EXPECT(-EINVAL, syncline_snapshot_create(volume, "a/b"));
	EXPECT(-EINVAL, syncline_snapshot_create(volume, "\xff"));
	EXPECT(-EFAULT, syncline_snapshot_create(volume, NULL));

	memset(&info, 0, sizeof info);
	EXPECT(1, syncline_snapshot_next(volume, &info));
	CHECK(strcmp(info.name, "one") == 0 && info.made.tv_sec > 1600000000);
	first = info.number;
	EXPECT(1, syncline_snapshot_next(volume, &info));
	CHECK(strcmp(info.name, "two") == 0 && info.number > first);
	EXPECT(0, syncline_snapshot_next(volume, &info));

	/* Two that have the same file share it; held ones stay. */
	CHECK(info.flags == 0);
	EXPECT(0, syncline_snapshot_hold(volume, "two"));
	EXPECT(0, syncline_snapshot_hold(volume, "two"));
	info.number = first;
	EXPECT(1, syncline_snapshot_next(volume, &info));
	CHECK(info.flags == SYNCLINE_SNAPSHOT_HELD);
	REFUSED(-EBUSY, "release", syncline_snapshot_delete(volume, "two"));
	EXPECT(-ENOENT, syncline_snapshot_hold(volume, "three"));
	EXPECT(0, syncline_snapshot_release(volume, "two"));
	EXPECT(-ENOENT, syncline_snapshot_release(volume, "three"));
	EXPECT(0, syncline_snapshot_usage(volume, both, 1, &one));
	EXPECT(0, syncline_snapshot_usage(volume, both + 1, 1, &two));
	EXPECT(0, syncline_snapshot_usage(volume, both, 2, &together));
	CHECK(one >= 4096 && two >= 4096 && together >= one + two && together % 4096 == 0);
	EXPECT(0, syncline_snapshot_usage(volume, NULL, 0, &none));
	CHECK(none == 0);
	EXPECT(-EFAULT, syncline_snapshot_usage(volume, NULL, 1, &none));
	EXPECT(-EFAULT, syncline_snapshot_usage(volume, both, 2, NULL));
	both[1] = "three";
	EXPECT(-ENOENT, syncline_snapshot_usage(volume, both, 2, &together));

	EXPECT(0, syncline_snapshot_schedule(volume, schedule));
	EXPECT(0, syncline_snapshot_set_schedule(volume, "daily=3 keep-free=1%"));
	EXPECT(1, syncline_snapshot_schedule(volume, schedule));
	CHECK(strcmp(schedule, "daily=3 keep-free=1% prefix=auto") == 0);
	EXPECT(-EINVAL, syncline_snapshot_set_schedule(volume, "daily=0"));
	REFUSED(-EINVAL, "hourly=24", syncline_snapshot_set_schedule(volume, "often"));
	EXPECT(-EFAULT, syncline_snapshot_schedule(volume, NULL));
	EXPECT(0, syncline_snapshot_set_schedule(volume, NULL));
	EXPECT(0, syncline_snapshot_schedule(volume, schedule));

	EXPECT(-ENOENT, syncline_snapshot_open(volume, "three", &view));
	EXPECT(0, syncline_snapshot_open(volume, "one", &view));
	holds(view, "f", "first");
	holds(volume, "f", "third");
	EXPECT(-EROFS, syncline_open(view, "f", O_WRONLY, 0, &file));
	EXPECT(-EROFS, syncline_snapshot_create(view, "x"));
	EXPECT(0, syncline_snapshot_delete(volume, "one"));
	holds(view, "f", "first");
	EXPECT(0, syncline_volume_close(view));
	EXPECT(0, syncline_snapshot_rename(volume, "two", "zwei"));
	EXPECT(-ENOENT, syncline_snapshot_delete(volume, "two"));
	EXPECT(0, syncline_snapshot_delete(volume, "zwei"));
	EXPECT(0, syncline_snapshot_reclaim(volume));
	memset(&info, 0, sizeof info);
	EXPECT(0, syncline_snapshot_next(volume, &info));

	/* Heads. */
	EXPECT(0, syncline_snapshot_create(volume, "base"));
	EXPECT(-ENOENT, syncline_head_create(volume, "none", "c"));
	EXPECT(-EINVAL, syncline_head_create(volume, "base", "a/b"));
	EXPECT(-EFAULT, syncline_head_create(volume, NULL, "c"));
	EXPECT(0, syncline_head_create(volume, "base", "c"));
	EXPECT(-EEXIST, syncline_head_create(volume, "base", "c"));
	memset(&head, 0, sizeof head);
	EXPECT(1, syncline_head_next(volume, &head));
	CHECK(strcmp(head.name, "main") == 0 && head.flags == SYNCLINE_HEAD_DEFAULT);
	EXPECT(1, syncline_head_next(volume, &head));
	CHECK(strcmp(head.name, "c") == 0 && strcmp(head.parent, "base") == 0 && head.flags == 0);
	EXPECT(0, syncline_head_next(volume, &head));
	EXPECT(-ENOENT, syncline_head_open(volume, "d", &view));
	EXPECT(-EBUSY, syncline_head_open(volume, "main", &view));
	EXPECT(0, syncline_head_open(volume, "c", &view));
	write_all(view, "f", "of the head");
	holds(volume, "f", "third");
	holds(view, "f", "of the head");
	EXPECT(-EBUSY, syncline_head_delete(volume, "c"));
	EXPECT(-EBUSY, syncline_head_delete(volume, "main"));
	EXPECT(0, syncline_volume_close(view));
	EXPECT(0, syncline_head_delete(volume, "c"));
	EXPECT(-ENOENT, syncline_head_delete(volume, "c"));
	EXPECT(0, syncline_snapshot_rollback(volume, "base", "kept"));
	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, &create, NULL, &volume));
	EXPECT(-ENOENT, syncline_snapshot_rollback(volume, "base", NULL));
}
