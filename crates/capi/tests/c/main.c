/* Runs the tests of libsyncline: test DIRECTORY [NAME...]. One line for each that has passed. */
#include "check.h"

static const char *directory;

syncline_volume *memory_volume(void)
{
	syncline_volume *volume;

	EXPECT(0, syncline_volume_create_in_memory(64 * MIB, NULL, NULL, &volume));
	return volume;
}

const char *image_path(void)
{
	static char path[4096];

	snprintf(path, sizeof path, "%s/v.img", directory);
	return path;
}

syncline_volume *image_volume(void)
{
	struct syncline_create_options create;
	syncline_volume *volume;

	unlink(image_path());
	memset(&create, 0, sizeof create);
	create.size = sizeof create;
	create.volume_bytes = 32 * MIB;
	EXPECT(0, syncline_volume_create(image_path(), &create, NULL, &volume));
	return volume;
}

syncline_file *file_of(syncline_volume *volume, const char *path)
{
	syncline_file *file;

	EXPECT(0, syncline_open(volume, path, O_RDWR | O_CREAT, 0666, &file));
	return file;
}

int has_content(syncline_volume *volume, const char *path, const char *content)
{
	char found[256] = { 0 };
	syncline_file *file;
	ssize_t count;

	if (syncline_open(volume, path, O_RDONLY, 0, &file) < 0)
		return 0;
	count = syncline_file_pread(file, found, sizeof found - 1, 0);
	EXPECT(0, syncline_file_close(file));
	return count == (ssize_t)strlen(content) && strcmp(found, content) == 0;
}

int in_child(void (*act)(void *context), void *context)
{
	int status;
	pid_t child;

	fflush(NULL);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(300);
		act(context);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "volumes", test_volumes },
	{ "files", test_files },
	{ "names", test_names },
	{ "attributes", test_attributes },
	{ "tickets", test_tickets },
	{ "transactions", test_transactions },
	{ "snapshots", test_snapshots },
	{ "hostile", test_hostile },
	{ "threads", test_threads },
	{ "fork", test_fork },
	{ "crash", test_crash },
};

int main(int count, char **arguments)
{
	if (count < 2)
		return 2;
	directory = arguments[1];
	for (size_t at = 0; at < sizeof tests / sizeof *tests; at++) {
		int wanted = count == 2;

		for (int given = 2; given < count; given++)
			wanted |= strcmp(arguments[given], tests[at].name) == 0;
		if (!wanted)
			continue;
		tests[at].run();
		printf("ok %s\n", tests[at].name);
		fflush(stdout);
	}
	return 0;
}
