#!/bin/sh
# Makes of what cargo has built what is shipped: programs and libraries without symbols and line tables in DIST/bin, the
# line tables in DIST/debug. A debugger finds them beside the program or under /usr/lib/debug (make install-debug).
#
# usage: scripts/ship.sh DIST FILE...
#
# A syncline command whose mounts can forget what was not flushed is refused: cargo builds one where a crate for tests
# is part of the same call.
set -eu

dist=$1
shift
mkdir -p "$dist/bin" "$dist/debug"

for file in "$@"; do
    name=${file##*/}
    if [ "$name" = syncline ] && ! "$file" mount -o volatile /nonexistent /nonexistent 2>&1 | grep -q syncline-lab; then
        echo "ship: $file takes the mount option volatile, which is for tests; build it with cargo build --release -p syncline-cli" >&2
        exit 1
    fi
    # Under a name of its own first: a program that runs is not written to.
    objcopy --only-keep-debug "$file" "$dist/debug/$name.debug"
    chmod -x "$dist/debug/$name.debug"
    objcopy --strip-all --add-gnu-debuglink="$dist/debug/$name.debug" "$file" "$dist/bin/$name.new"
    mv "$dist/bin/$name.new" "$dist/bin/$name"
    echo "$dist/bin/$name: $(stat -c %s "$dist/bin/$name") bytes, $(stat -c %s "$file") with line tables"
done
