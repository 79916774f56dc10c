/*
 * What the tests of the mount have SQLite do: driver DATABASE make | insert TIMES | transfer | rollback | check, and
 * with large transactions make-large | large | transfer-large | check-large
 *
 * Built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE. `transfer` moves money between accounts for ever and prints the number
 * of each transfer once it is committed; `check` prints the sum of all accounts and the number of the last transfer.
 * Large transactions change pages strewn over a table, too many for one record of a small journal; in `transfer-large`
 * every fourth is one.
 */
#include "sqlite3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACCOUNTS 1000
#define LARGE_EVERY 4

static sqlite3 *db;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, sqlite3_errmsg(db));
	exit(1);
}

static void run(const char *sql)
{
	if (sqlite3_exec(db, sql, 0, 0, 0) != SQLITE_OK)
		fail(sql);
}

static long long number(const char *sql)
{
	sqlite3_stmt *statement;
	long long found;

	if (sqlite3_prepare_v2(db, sql, -1, &statement, 0) != SQLITE_OK || sqlite3_step(statement) != SQLITE_ROW)
		fail(sql);
	found = sqlite3_column_int64(statement, 0);
	sqlite3_finalize(statement);
	return found;
}

static void large(long long turn)
{
	char sql[200];

	snprintf(sql, sizeof(sql), "UPDATE big SET turn = %lld, pad = randomblob(3000) WHERE id %% 2 = 0", turn);
	run(sql);
}

static void transfer(long long turn, int is_large)
{
	char sql[400];
	long long from = turn * 7919 % ACCOUNTS, to = turn * 104729 % ACCOUNTS;

	snprintf(sql, sizeof(sql),
		 "BEGIN IMMEDIATE; UPDATE accounts SET money = money - 1 WHERE id = %lld;"
		 "UPDATE accounts SET money = money + 1 WHERE id = %lld; UPDATE last SET turn = %lld",
		 from, to, turn);
	run(sql);
	if (is_large)
		large(turn);
	run("COMMIT");
}

static void check(void)
{
	if (number("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'"))
		fail("integrity_check");
	printf("%lld %lld\n", number("SELECT sum(money) FROM accounts"), number("SELECT turn FROM last"));
}

int main(int argc, char **argv)
{
	long long turn, turns;
	char sql[200];

	if (argc < 3 || sqlite3_open(argv[1], &db) != SQLITE_OK)
		fail("open");
	sqlite3_busy_timeout(db, 10000);
	run("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL");
	if (!strcmp(argv[2], "make")) {
		run("CREATE TABLE accounts (id INTEGER PRIMARY KEY, money INTEGER, note TEXT);"
		    "CREATE TABLE last (turn INTEGER); INSERT INTO last VALUES (0);"
		    "CREATE TABLE log (id INTEGER PRIMARY KEY, note TEXT)");
		snprintf(sql, sizeof(sql),
			 "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < %d)"
			 "INSERT INTO accounts SELECT i, 1000, hex(randomblob(60)) FROM n",
			 ACCOUNTS - 1);
		run(sql);
	} else if (!strcmp(argv[2], "insert")) {
		turns = atoll(argv[3]);
		for (turn = 0; turn < turns; turn++)
			run("INSERT INTO log (note) VALUES (hex(randomblob(50)))");
	} else if (!strcmp(argv[2], "transfer")) {
		for (turn = number("SELECT turn FROM last") + 1;; turn++) {
			transfer(turn, 0);
			printf("%lld\n", turn);
			fflush(stdout);
		}
	} else if (!strcmp(argv[2], "rollback")) {
		run("BEGIN IMMEDIATE; UPDATE accounts SET money = 0; ROLLBACK");
	} else if (!strcmp(argv[2], "make-large")) {
		run("CREATE TABLE big (id INTEGER PRIMARY KEY, turn INTEGER, pad BLOB);"
		    "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1999)"
		    "INSERT INTO big SELECT i, 0, randomblob(3000) FROM n");
	} else if (!strcmp(argv[2], "large")) {
		run("PRAGMA cache_size = 10000");
		large(1);
	} else if (!strcmp(argv[2], "transfer-large")) {
		/* With a journal, FULL leaves its removal to be made durable by whatever is synced next. */
		run("PRAGMA cache_size = 10000; PRAGMA synchronous = EXTRA");
		for (turn = number("SELECT turn FROM last") + 1;; turn++) {
			transfer(turn, turn % LARGE_EVERY == 0);
			printf("%lld\n", turn);
			fflush(stdout);
		}
	} else if (!strcmp(argv[2], "check-large")) {
		if (number("SELECT count(*) FROM big, last"
			   " WHERE id % 2 = 0 AND big.turn <> last.turn - last.turn % 4 OR id % 2 = 1 AND big.turn <> 0"))
			fail("a large transaction is there in part");
		check();
	} else {
		check();
	}
	return sqlite3_close(db) == SQLITE_OK ? 0 : 1;
}
