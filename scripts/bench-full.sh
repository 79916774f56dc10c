#!/bin/sh
# The full benchmark, as docs/measurements/full-run.md shows it: as root, on a machine that does nothing else.
#
# Usage: bench-full.sh SYNCLINE RESULTS.json [MINUTES]
#
# First one round of everything, what matters most first; then the further rounds of what has aims; then those of the
# rest. So what the time limit cuts off is the last rounds of the least important. Everything goes on where an
# interruption has left it: run it again with the same file. Writes the results, RESULTS.html, and the tables between
# the marks of docs/measurements/full-run.md (or $DOCUMENT).
set -eu

syncline=$1
results=$2
minutes=${3:-45}
html=${results%.json}.html
document=${DOCUMENT:-docs/measurements/full-run.md}
begun=$(date +%s)
failures=0

# The same for all parts, since they share their results; SIZES tries the script with others.
sizes=${SIZES:-"--device-mib 4096 --operations 1000 --fio-mib 128 --seconds 4 --sequential-mib 1024 --pgbench-scale 10 --pgbench-seconds 40 --pacing-mib 4096"}

aims=append,create,replace,beside-creates,threads,fio-sequential,fio-random,fs-mark-each,fs-mark-pass,async-pass,dbench
sqlite=sequential-write,sequential-read-cold,sequential-read-warm,sqlite-delete,sqlite-wal,sqlite-atomic,sqlite-vfs-delete,sqlite-vfs-wal
rest=overwrite,during-commits,small-beside-large,beside-bulk,beside-staging,atomic,mobile,sqlite-truncate,sqlite-persist,names,link,rollback-journal
mounts=syncline,syncline-dev
# The mount over /dev/fuse only stands beside what is judged.
judged=engine,syncline,ext4,xfs,btrfs

# Name, minutes that are planned, rounds in all (those that are there already are not repeated), and what to run.
parts() {
    part "what has aims, once" 6.5 1 --workloads "$aims"
    part "pacing, once" 2 1 --workloads pacing
    part "pgbench beside ext4 and xfs, once" 5 1 --systems syncline,ext4,xfs --workloads pgbench,pgbench-unflushed
    part "SQLite and large files, once" 2 1 --workloads "$sqlite"
    part "mechanisms, once" 1 1 --ablation
    part "the rest, once" 3 1 --workloads "$rest"
    part "pacing, three rounds" 3 3 --systems "$judged" --workloads pacing
    part "what has aims, five rounds" 21 5 --systems "$judged" --workloads "$aims"
    part "the pass by tickets, five rounds" 1 5 --systems "$mounts" --workloads ticket-pass
    part "SQLite and large files, three rounds" 3 3 --workloads "$sqlite"
    part "pgbench, three rounds" 8 3 --systems syncline,ext4,xfs --workloads pgbench,pgbench-unflushed
    part "over /dev/fuse, three rounds" 2 3 --systems syncline-dev --workloads "$aims"
    part "mechanisms, three rounds" 3 3 --ablation
    part "the rest, three rounds" 6 3 --workloads "$rest"
}

minutes_left() {
    echo $((minutes - ($(date +%s) - begun) / 60))
}

show() {
    name=$1 planned=$2 rounds=$3
    shift 3
    # shellcheck disable=SC2086
    missing=$("$syncline" bench $sizes --json "$results" --resume --plan --rounds "$rounds" "$@" | grep '^all ' | cut -c23-)
    printf '%-36s %5s min planned; missing %s\n' "$name" "$planned" "$missing"
}

measure() {
    name=$1 rounds=$3 left=$(minutes_left)
    shift 3
    if [ "$left" -le 0 ]; then
        echo "no time left for: $name"
        return
    fi
    echo "$(date +%H:%M:%S) $name ($left minutes left)"
    # shellcheck disable=SC2086
    "$syncline" bench $sizes --minutes "$left" --json "$results" --resume --rounds "$rounds" "$@" >/dev/null || failures=$((failures + 1))
}

part() { "$doing" "$@"; }

echo "at most $minutes minutes; what is missing in $results, and how long it takes as far as that file tells:"
doing=show
parts
doing=measure
parts

# Nothing is missing any more that is asked for: shows everything, writes the page and the tables.
# shellcheck disable=SC2086
"$syncline" bench $sizes --rounds 0 --json "$results" --resume --html "$html"
"$syncline" bench --table "$results" --into "$document"
echo "$(( ($(date +%s) - begun) / 60 )) minutes; $results, $html, $document"
[ "$failures" -eq 0 ] || { echo "in $failures parts something failed; why stands above, and the same command tries it again" >&2; exit 1; }
