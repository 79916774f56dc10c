#!/bin/sh
# Makes libsyncline of what cargo has built of crates/capi: the shared library, with soname and symbol versions, and the
# static one, of one object in which everything but the interface is local, so that a program can link other Rust
# libraries as well.
#
# usage: scripts/libsyncline.sh ARCHIVE DIRECTORY
#
# ARCHIVE is cargo's libsyncline_capi.a. What is not reached from the interface is left out.
set -eu

archive=$1
directory=$2
root=$(dirname "$0")/..
map=$root/crates/capi/libsyncline.map
cc=${CC:-cc}
mkdir -p "$directory"

names=$(sed -n 's/^[[:space:]]*\(syncline_[a-z_]*\);.*/\1/p' "$map")
roots="" wanted=""
for name in $names; do
    roots="$roots -Wl,-u,$name" wanted="$wanted -u $name"
done

# shellcheck disable=SC2086 # the lists are words on purpose
"$cc" -shared -o "$directory/libsyncline.so.1.new" $roots "$archive" \
    -Wl,-soname,libsyncline.so.1 -Wl,--version-script="$map" -Wl,--gc-sections -Wl,--no-undefined \
    -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now -Wl,--as-needed -lgcc_s -lpthread -lm -ldl -lc
mv "$directory/libsyncline.so.1.new" "$directory/libsyncline.so.1"
ln -sf libsyncline.so.1 "$directory/libsyncline.so"

object=$directory/syncline.o
# shellcheck disable=SC2086
"${LD:-ld}" -r --gc-sections $wanted -o "$object" "$archive"
# Bitcode of the standard library, which tools of another LLVM stumble over.
objcopy --remove-section=.llvmbc --remove-section=.llvmcmd "$object"
objcopy --strip-debug --wildcard --keep-global-symbol='syncline_*' "$object"
rm -f "$directory/libsyncline.a"
ar rcs "$directory/libsyncline.a" "$object"
rm "$object"
