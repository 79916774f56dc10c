#!/bin/sh
# The full benchmark, as docs/benchmarks.md shows it: as root, on a machine that does nothing else. What is measured most often comes
# first; each part goes on where an interruption left it. Usage: bench-full.sh SYNCLINE RESULTS.json [MINUTES]
set -eu

syncline=$1
results=$2
minutes=${3:-33}
html=${results%.json}.html
begun=$(date +%s)

# The same for all parts, since they share their results; SIZES tries the script with others.
sizes=${SIZES:-"--device-mib 4096 --operations 1000 --fio-mib 32 --seconds 4 --sequential-mib 512 --pgbench-scale 10 --pacing-mib 2048"}

# Minutes that are left, but for as many as the parts behind need.
left() {
    echo $((minutes - ($(date +%s) - begun) / 60 - $1))
}

part() {
    [ "$1" -gt 0 ] || return 0
    limit=$1
    shift
    # shellcheck disable=SC2086
    "$syncline" bench $sizes --minutes "$limit" --json "$results" --resume "$@" >/dev/null
}

part "$(left 11)" --rounds 5 --workloads append,create,replace,beside-creates,threads,fio-sequential,fio-random,fs-mark-each,fs-mark-pass,async-pass,dbench
part "$(left 7)" --rounds 5 --ablation
part "$(left 4)" --rounds 2 --workloads overwrite,sqlite-delete,sqlite-truncate,sqlite-persist,sqlite-wal,sqlite-atomic,sqlite-vfs-delete,sqlite-vfs-wal,atomic,pacing,mobile
part "$(left 0)" --rounds 1 --workloads pgbench,pgbench-unflushed,sequential-write,sequential-read-cold,sequential-read-warm,during-commits,names,link,rollback-journal,small-beside-large
# Nothing is missing any more that is asked for: shows everything, writes the page and the tables.
"$syncline" bench $sizes --rounds 0 --json "$results" --resume --html "$html"
"$syncline" bench --table "$results" --into docs/benchmarks.md
