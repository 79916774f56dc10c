/* Syncs that are started: tickets, callbacks, eventfds. */
#include "check.h"

struct told {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int times;
	int error;
	pthread_t by;
	syncline_volume *volume;
};

#define TOLD { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 1, 0, NULL }

static void tell(void *context, int error)
{
	struct told *told = context;

	pthread_mutex_lock(&told->lock);
	told->times++;
	told->error = error;
	told->by = pthread_self();
	pthread_cond_broadcast(&told->changed);
	pthread_mutex_unlock(&told->lock);
}

static void wait_until_told(struct told *told, int times)
{
	pthread_mutex_lock(&told->lock);
	while (told->times < times)
		pthread_cond_wait(&told->changed, &told->lock);
	pthread_mutex_unlock(&told->lock);
}

static void a_ticket_tells_until_it_is_freed(syncline_volume *volume)
{
	syncline_file *file = file_of(volume, "one");
	syncline_sync_ticket *ticket;

	EXPECT(4, syncline_file_pwrite(file, "data", 4, 0));
	EXPECT(0, syncline_file_sync_start(file, 0, 0, 0, NULL, NULL, &ticket));
	EXPECT(0, syncline_ticket_wait(ticket, -1));
	EXPECT(0, syncline_ticket_wait(ticket, 0));
	EXPECT(1, syncline_ticket_poll(ticket));
	EXPECT(1, syncline_ticket_poll(ticket));
	EXPECT(0, syncline_ticket_free(ticket));
	REFUSED(-EBADF, "closed", syncline_ticket_poll(ticket));
	REFUSED(-EBADF, "closed", syncline_ticket_free(ticket));
	EXPECT(0, syncline_file_sync_start(file, 0, 4096, SYNCLINE_DATA, NULL, NULL, &ticket));
	/* The file may go first. */
	EXPECT(0, syncline_file_close(file));
	EXPECT(0, syncline_ticket_wait(ticket, 60000));
	EXPECT(0, syncline_ticket_free(ticket));
	file = file_of(volume, "one");
	REFUSED(-EFAULT, "ticket", syncline_file_sync_start(file, 0, 0, 0, NULL, NULL, NULL));
	REFUSED(-EINVAL, "negative", syncline_file_sync_start(file, -1, 0, 0, NULL, NULL, &ticket));
	REFUSED(-EINVAL, "flags", syncline_file_sync_start(file, 0, 0, 4, NULL, NULL, &ticket));
	EXPECT(0, syncline_file_close(file));
}

static void one_of_many_is_waited_for(syncline_volume *volume)
{
	enum { FILES = 200 };
	syncline_sync_ticket *tickets[FILES + 2];
	syncline_file *files[FILES];
	char name[16];
	size_t index = 999;

	for (int at = 0; at < FILES; at++) {
		snprintf(name, sizeof name, "many%d", at);
		files[at] = file_of(volume, name);
		EXPECT((ssize_t)strlen(name), syncline_file_pwrite(files[at], name, strlen(name), 0));
		EXPECT(0, syncline_file_sync_start(files[at], 0, 0, 0, NULL, NULL, &tickets[at]));
	}
	tickets[FILES] = tickets[FILES - 1];
	tickets[FILES + 1] = tickets[0];
	EXPECT(0, syncline_ticket_wait_any(tickets, FILES + 2, -1, &index));
	CHECK(index < FILES);
	EXPECT(1, syncline_ticket_poll(tickets[index]));
	for (int at = 0; at < FILES; at++) {
		EXPECT(0, syncline_ticket_wait(tickets[at], -1));
		EXPECT(0, syncline_file_close(files[at]));
	}
	EXPECT(0, syncline_ticket_wait_any(tickets, FILES, 0, &index));
	CHECK(index == 0);
	REFUSED(-EINVAL, "no ticket", syncline_ticket_wait_any(tickets, 0, 0, &index));
	REFUSED(-EFAULT, "NULL", syncline_ticket_wait_any(NULL, 1, 0, &index));
	REFUSED(-EFAULT, "NULL", syncline_ticket_wait_any(tickets, 1, 0, NULL));
	REFUSED(-EINVAL, "count", syncline_ticket_wait_any(tickets, SIZE_MAX / 2, 0, &index));
	for (int at = 0; at < FILES; at++)
		EXPECT(0, syncline_ticket_free(tickets[at]));
	REFUSED(-EBADF, "closed", syncline_ticket_wait_any(tickets, FILES, 0, &index));
}

static void callbacks_come_once_each(syncline_volume *volume)
{
	struct told told = TOLD;
	syncline_file *file = file_of(volume, "called");
	syncline_sync_ticket *ticket;

	for (int round = 1; round <= 100; round++) {
		EXPECT(1, syncline_file_pwrite(file, "x", 1, round));
		EXPECT(0, syncline_file_sync_start(file, 0, 0, 0, tell, &told, NULL));
	}
	wait_until_told(&told, 100);
	CHECK(told.error == 0 && !pthread_equal(told.by, pthread_self()));
	/* A ticket as well; and a sync that has nothing to do. */
	EXPECT(0, syncline_file_sync_start(file, 0, 0, 0, tell, &told, &ticket));
	EXPECT(0, syncline_ticket_wait(ticket, -1));
	wait_until_told(&told, 101);
	EXPECT(0, syncline_ticket_free(ticket));
	EXPECT(0, syncline_file_close(file));
}

/* A callback that uses the library: it starts the next one, reads, syncs, and tries to close. */
static void go_on(void *context, int error)
{
	struct told *told = context;
	syncline_file *file = file_of(told->volume, "chain");

	CHECK(error == 0);
	EXPECT(1, syncline_file_pwrite(file, "y", 1, told->times));
	EXPECT(0, syncline_file_sync(file));
	REFUSED(-EDEADLK, "callback", syncline_volume_close(told->volume));
	if (told->times < 20)
		EXPECT(0, syncline_file_sync_start(file, 0, 0, 0, go_on, told, NULL));
	EXPECT(0, syncline_file_close(file));
	tell(told, error);
}

static void a_callback_may_use_the_library(syncline_volume *volume)
{
	struct told told = TOLD;
	syncline_file *file = file_of(volume, "chain");

	told.volume = volume;
	EXPECT(0, syncline_file_sync_start(file, 0, 0, 0, go_on, &told, NULL));
	EXPECT(0, syncline_file_close(file));
	wait_until_told(&told, 21);
}

static void an_eventfd_counts(syncline_volume *volume)
{
	syncline_file *file = file_of(volume, "event");
	int event = eventfd(0, EFD_CLOEXEC), other, pipes[2];
	struct pollfd poll_for = { event, POLLIN, 0 };
	syncline_sync_ticket *ticket;
	uint64_t count, total = 0;

	CHECK(event >= 0);
	for (int round = 0; round < 10; round++)
		EXPECT(0, syncline_file_sync_start_eventfd(file, 0, 0, 0, event, NULL));
	while (total < 10) {
		CHECK(poll(&poll_for, 1, 60000) == 1);
		CHECK(read(event, &count, sizeof count) == sizeof count);
		total += count;
	}
	CHECK(total == 10);
	EXPECT(0, syncline_file_sync_start_eventfd(file, 0, 0, 0, event, &ticket));
	/* The library has a copy of its own. */
	other = dup(event);
	close(event);
	CHECK(read(other, &count, sizeof count) == sizeof count && count == 1);
	EXPECT(1, syncline_ticket_poll(ticket));
	EXPECT(0, syncline_ticket_free(ticket));
	close(other);
	REFUSED(-EBADF, "descriptor", syncline_file_sync_start_eventfd(file, 0, 0, 0, event, NULL));
	REFUSED(-EBADF, "descriptor", syncline_file_sync_start_eventfd(file, 0, 0, 0, -1, NULL));
	CHECK(pipe(pipes) == 0);
	REFUSED(-EINVAL, "eventfd", syncline_file_sync_start_eventfd(file, 0, 0, 0, pipes[1], NULL));
	close(pipes[0]);
	close(pipes[1]);
	EXPECT(0, syncline_file_close(file));
}

static void closing_waits_for_all_callbacks(void)
{
	for (int round = 0; round < 20; round++) {
		struct told told = TOLD;
		syncline_volume *volume = memory_volume();
		syncline_file *file = file_of(volume, "file");
		char *large = calloc(1, 4 * MIB);

		CHECK(large != NULL);
		EXPECT(4 * MIB, syncline_file_pwrite(file, large, 4 * MIB, 0));
		for (int at = 0; at < 50; at++)
			EXPECT(0, syncline_file_sync_start(file, 0, 0, 0, tell, &told, NULL));
		EXPECT(0, syncline_volume_close(volume));
		CHECK(told.times == 50 && told.error == 0);
		free(large);
	}
}

void test_tickets(void)
{
	syncline_volume *volume = memory_volume();

	a_ticket_tells_until_it_is_freed(volume);
	one_of_many_is_waited_for(volume);
	callbacks_come_once_each(volume);
	a_callback_may_use_the_library(volume);
	an_eventfd_counts(volume);
	EXPECT(0, syncline_volume_close(volume));
	closing_waits_for_all_callbacks();
}
