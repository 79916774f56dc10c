/* The least of a SQLite shell: runs the script on its standard input against the database named last, prints rows. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

static int print_row(void *unused, int columns, char **values, char **names)
{
    (void) unused;
    (void) names;
    for (int i = 0; i < columns; i++)
        printf("%s%s", i ? "|" : "", values[i] ? values[i] : "");
    printf("\n");
    return 0;
}

int main(int argc, char **argv)
{
    size_t length = 0, room = 1 << 16;
    char *script = malloc(room);
    while (script) {
        size_t got = fread(script + length, 1, room - length - 1, stdin);
        length += got;
        if (!got)
            break;
        if (room - length < 2)
            script = realloc(script, room *= 2);
    }
    sqlite3 *db = 0;
    char *error = 0;
    if (!script || argc < 2)
        return 2;
    script[length] = 0;
    if (sqlite3_open(argv[argc - 1], &db) != SQLITE_OK) {
        fprintf(stderr, "%s\n", sqlite3_errmsg(db));
        return 1;
    }
    if (sqlite3_exec(db, script, print_row, 0, &error) != SQLITE_OK) {
        fprintf(stderr, "%s\n", error ? error : sqlite3_errmsg(db));
        return 1;
    }
    return sqlite3_close(db) != SQLITE_OK;
}
