#!/bin/sh
# What snapshots cost (docs/benchmarks.md): as root, on a machine that does nothing else.
#
# Usage: bench-snapshots.sh SYNCLINE RESULTS.json [MINUTES]
#
# First five interleaved rounds of what is short, then one of the large tree, the hourly database and the volume with
# a thousand snapshots; xfs stands beside where snapshots are not needed. Everything goes on where an interruption has
# left it: run it again with the same file. SIZES tries the script with others; they decide over what can be resumed.
set -eu

syncline=$1
results=$2
minutes=${3:-15}
begun=$(date +%s)
failures=0
sizes=${SIZES:-"--device-mib 12288 --operations 1000 --sequential-mib 1024 --tree-files 1000000"}
short=snapshot-create,snapshot-append,snapshot-beside,snapshot-overwrite

minutes_left() {
    echo $((minutes - ($(date +%s) - begun) / 60))
}

measure() {
    left=$(minutes_left)
    if [ "$left" -le 0 ]; then
        echo "no time left for: $*"
        return
    fi
    echo "$(date +%H:%M:%S) $* ($left minutes left)"
    # shellcheck disable=SC2086
    "$syncline" bench $sizes --minutes "$left" --json "$results" --resume "$@" >/dev/null || failures=$((failures + 1))
}

# The large ones once before the further rounds of the short ones: what the limit cuts off are these.
measure --rounds 1 --systems engine,syncline,btrfs,xfs --workloads "$short"
measure --rounds 1 --systems engine --workloads snapshot-open
measure --rounds 1 --systems engine,btrfs --workloads snapshot-tree,snapshot-database
measure --rounds 5 --systems engine,syncline,btrfs,xfs --workloads "$short"

# shellcheck disable=SC2086
"$syncline" bench $sizes --rounds 0 --json "$results" --resume
echo "$((($(date +%s) - begun) / 60)) minutes; $results"
[ "$failures" -eq 0 ] || { echo "in $failures parts something failed; why stands above" >&2; exit 1; }
