// A ledger in SQLite, in a volume: `ledger IMAGE` adds an entry and tells how many there are. The volume has to be
// there (syncline mkfs).
//
//	CGO_LDFLAGS=/path/to/libsyncline_sqlite.a go build
//
// mattn/go-sqlite3 compiles SQLite into the program, without loadable extensions by default. The VFS is linked in
// statically and made known to that SQLite before the first connection.
package main

/*
#cgo LDFLAGS: -lm -lpthread -ldl -lgcc_s
typedef struct sqlite3 sqlite3;
struct sqlite3_api_routines;
// Of the SQLite that go-sqlite3 brings.
extern int sqlite3_auto_extension(void (*entry_point)(void));
// Of libsyncline_sqlite.a.
extern int syncline_sqlite_auto(sqlite3 *, char **, const struct sqlite3_api_routines *);

static int know_syncline(void)
{
	return sqlite3_auto_extension((void (*)(void))syncline_sqlite_auto);
}
*/
import "C"

import (
	"database/sql"
	"fmt"
	"log"
	"net/url"
	"os"

	_ "github.com/mattn/go-sqlite3"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: ledger IMAGE")
	}
	if code := C.know_syncline(); code != 0 {
		log.Fatalf("SQLite does not take the extension: error %d", code)
	}
	// The first connection of the process makes the VFS known; later ones can name it.
	first, err := sql.Open("sqlite3", ":memory:")
	if err == nil {
		err = first.Ping()
	}
	if err != nil {
		log.Fatal(err)
	}
	defer first.Close()

	database, err := sql.Open("sqlite3", "file:/ledger?vfs=syncline&volume="+url.QueryEscape(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	defer database.Close()
	_, err = database.Exec("CREATE TABLE IF NOT EXISTS ledger(coins); INSERT INTO ledger VALUES (42)")
	if err != nil {
		log.Fatal(err)
	}
	var entries int
	if err := database.QueryRow("SELECT count(*) FROM ledger").Scan(&entries); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("entries: %d\n", entries)
}
