// better-sqlite3 of Node, whose SQLite knows no URIs, on the default VFS. Argument: the library. 77: not installed.
let Database;
try {
    Database = require("better-sqlite3");
    new Database(":memory:").close();
} catch (error) {
    console.error(String(error));
    process.exit(77);
}
const first = new Database(":memory:");
first.loadExtension(process.argv[2]);
const database = new Database("/node.db");
database.exec("CREATE TABLE t(a, b)");
const insert = database.prepare("INSERT INTO t VALUES(?, ?)");
database.transaction(() => {
    insert.run(1, "one");
    insert.run(2, "two");
})();
console.log(database.prepare("SELECT b FROM t ORDER BY a").all().map((row) => row.b).join(" "));
database.close();
first.close();
