#!/usr/bin/env bash
# PostgreSQL with data checksums: pgbench, the server killed, then the daemon of the mount killed (with option
# `volatile`, so that everything un-flushed is lost). After each: recovery, the books balance, every acknowledged
# transaction is there, and all page checksums are right.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need pgbench=postgresql

# The server's own programs: what is first in the path may be a wrapper.
bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
[ -x "$bin/postgres" ] && [ -x "$bin/pgbench" ] || skip_all "no server under /usr/lib/postgresql; install postgresql"
id postgres >/dev/null 2>&1 || skip_all "there is no user postgres to run the server as"
make_volume 1024
seconds=$(quick_or_full 5 60)
scale=$(quick_or_full 2 20)
sockets=$WORK/sockets
install -d -o postgres -m 0700 "$sockets"
data=$MNT/data

as_postgres() {
    (cd "$sockets" && setpriv --reuid=postgres --regid=postgres --init-groups --inh-caps=-all \
        env PATH="$bin:/usr/bin:/bin" LC_ALL=C.UTF-8 PGHOST="$sockets" PGUSER=postgres PGDATABASE=postgres "$@")
}

start() {
    as_postgres pg_ctl start --silent --wait --timeout=60 --pgdata="$data" --log="$sockets/server.log" \
        --options="-c listen_addresses='' -c unix_socket_directories='$sockets' -c shared_buffers=32MB -c wal_sync_method=fdatasync" \
        >/dev/null || { tail -n 20 "$sockets/server.log"; return 1; }
}

postmaster() {
    head -n 1 "$data/postmaster.pid"
}

ask() {
    as_postgres psql --no-psqlrc --quiet --tuples-only --no-align --command="$1"
}

# Four sums that only whole transactions keep equal.
balanced() {
    local sums
    sums=$(ask "select (select sum(abalance) from pgbench_accounts) || ' ' || (select sum(tbalance) from pgbench_tellers)
        || ' ' || (select sum(bbalance) from pgbench_branches) || ' ' || (select coalesce(sum(delta), 0) from pgbench_history)")
    # shellcheck disable=SC2086 # four words
    set -- $sums
    [ "$1" = "$2" ] && [ "$2" = "$3" ] && [ "$3" = "$4" ] || fail "sums differ: $sums"
}

page_sums() {
    as_postgres pg_ctl stop --silent --wait --mode=fast --pgdata="$data"
    as_postgres pg_checksums --check --pgdata="$data"
}

# Runs pgbench for a while; each client logs what was acknowledged.
bench() {
    rm -f "$sockets"/acknowledged.*
    as_postgres pgbench --no-vacuum --client=8 --jobs=2 --time="$1" --log --log-prefix="$sockets/acknowledged" \
        >"$WORK/pgbench.out" 2>&1
}

acknowledged() {
    cat "$sockets"/acknowledged.* | wc -l
}

initialise() {
    install -d -o postgres -m 0700 "$data"
    as_postgres initdb --data-checksums --auth=trust --username=postgres --pgdata="$data" >/dev/null
    start
    as_postgres pgbench --initialize --quiet --scale="$scale"
    balanced
    page_sums
}

plain() {
    start
    bench "$seconds"
    grep -E '^tps' "$WORK/pgbench.out" >&3
    expect "$(acknowledged)" "$(ask 'select count(*) from pgbench_history')" "transactions"
    balanced
    page_sums
    remount_volume
    as_postgres pg_checksums --check --pgdata="$data"
}

# cut COMMAND: runs it in the middle of a benchmark; prints how many transactions were acknowledged in it.
cut_during_bench() {
    bench 60 &
    local running=$!
    sleep "$seconds"
    "$@"
    wait "$running" || true
    acknowledged
}

# Kills the server and its children, which have sessions of their own, and waits until they are gone: before that no new
# server may start, and a mount that was theirs keeps its device.
kill_postgres() {
    local pids try
    pids="$1 $(pgrep -P "$1" | tr '\n' ' ')"
    # shellcheck disable=SC2086 # several words
    kill -9 $pids 2>/dev/null || true
    for try in $(seq 100); do
        # shellcheck disable=SC2086
        kill -0 $pids 2>/dev/null || break
        sleep 0.1
    done
}

kill_server() {
    kill_postgres "$(postmaster)"
}

server_killed() {
    start
    local before added after
    before=$(ask 'select count(*) from pgbench_history')
    added=$(cut_during_bench kill_server)
    start
    after=$(ask 'select count(*) from pgbench_history')
    echo "$added acknowledged" >&3
    [ "$added" -gt 0 ] || fail "no transaction was acknowledged"
    [ "$after" -ge $((before + added)) ] || fail "lost: had $before, $added acknowledged, now $after"
    balanced
    page_sums
}

daemon_killed() {
    [ "$BACKEND" = syncline ] || { echo "only for syncline"; exit "$SKIP"; }
    remount_volume volatile
    start
    local before added after pid
    before=$(ask 'select count(*) from pgbench_history')
    pid=$(postmaster)
    added=$(cut_during_bench kill_daemon)
    kill_postgres "$pid"
    drop_dead_mount
    mount_volume volatile
    start
    after=$(ask 'select count(*) from pgbench_history')
    echo "$added acknowledged" >&3
    [ "$added" -gt 0 ] || fail "no transaction was acknowledged"
    [ "$after" -ge $((before + added)) ] || fail "lost: had $before, $added acknowledged, now $after"
    balanced
    page_sums
    remount_volume
    as_postgres pg_checksums --check --pgdata="$data"
}

run_case "initdb with checksums" initialise
run_case "pgbench" plain
run_case "pgbench, server killed" server_killed
run_case "pgbench, power cut" daemon_killed
if [ "$SCALE" = full ]; then
    for round in 2 3 4 5; do run_case "pgbench, power cut $round" daemon_killed; done
fi
finish
