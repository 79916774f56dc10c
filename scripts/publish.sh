#!/bin/sh
# Packs the crates that people embed or install as crates.io takes them, without sending anything: metadata, files and
# dependencies are checked. The order is that of publication: each crate stands behind those that it needs.
#
# usage: scripts/publish.sh [--verify]
#
# With --verify each crate is also built from its package alone (minutes). Crates that are not published yet are taken
# from the packages that the same call makes, so that the first release can be tried as well.
set -eu
cd "$(dirname "$0")/.."

crates="syncline-probes syncline-format syncline-device syncline-nbd syncline-rbd syncline-source syncline-store syncline-fs syncline-replica syncline-replica-store syncline
    syncline-check fusering syncline-fuse syncline-sqlite syncline-cli"
verify=--no-verify
[ "${1:-}" != --verify ] || verify=

# shellcheck disable=SC2046,SC2086 # the lists are words on purpose
${CARGO:-cargo} publish --dry-run --locked --allow-dirty $verify $(printf -- '-p %s ' $crates)
echo "publish: ${verify:+not built, }all of them are ready"
