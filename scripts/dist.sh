#!/bin/sh
# The sources of the last commit as dist/syncline-VERSION.tar.gz. The same commit gives the same bytes on every machine:
# the time is the commit's, owner and permissions are fixed, and gzip tells neither name nor time.
#
# usage: scripts/dist.sh [DIRECTORY]
set -eu

root=$(realpath "$(dirname "$0")/..")
into=${1:-$root/dist}
version=$(git -C "$root" show HEAD:Cargo.toml | sed -n 's/^version = "\(.*\)"/\1/p' | head -n 1)
name=syncline-$version
mkdir -p "$into"
TZ=UTC LC_ALL=C git -C "$root" -c tar.umask=0022 -c core.autocrlf=false archive --format=tar --prefix="$name/" HEAD >"$into/$name.tar"
gzip -n -9 -f "$into/$name.tar"
(cd "$into" && sha256sum "$name.tar.gz")
