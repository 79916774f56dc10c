#!/bin/bash
# What a replica has to do on any store. Started by servers.sh, with
#
# NAME, DIRECTORY   the server's name, and an empty folder for images and mounts
# URL               where replicas go; BUCKET, SERVER and PYTHON where it is an S3-compatible server
# AGAIN, SMALL      where the server can do it (servers.sh tells what they are), with FILL and EMPTY
# ONLY              only the checks whose name matches this
# here              this folder
#
# Ends with one line "replica on NAME: N passed, M failed".
set -uo pipefail
passed=0
failed=0
here=${here:?} work=${work:?}
cd "$DIRECTORY" || exit 2
mkdir -p mnt mnt2 out

ok() {
    [[ $1 =~ ${ONLY:-} ]] || return 0
    if "${@:2}" >out/log 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL  replica on $NAME: $1"
        tail -n 20 out/log | sed 's/^/      /'
    fi
}

# refused WORDS COMMAND...: it fails with exit code 1 and one sentence that holds the words.
refused() {
    local words=$1 code
    shift
    "$@" >out/told 2>&1
    code=$?
    cat out/told
    [ "$code" = 1 ] || { echo "exit code $code"; return 1; }
    [ "$(wc -l <out/told)" = 1 ] || { echo "not one line"; return 1; }
    grep -qF -- "$words" out/told || { echo "want: $words"; return 1; }
}

field() {
    python3 -c 'import json, sys; v = json.load(sys.stdin)
for k in sys.argv[1].split("."): v = v[k]
print(v)' "$1"
}

# until WHAT COMMAND...: within 20 s.
until_true() {
    local what=$1
    shift
    for _ in $(seq 200); do
        ! "$@" || return 0
        sleep 0.1
    done
    echo "not within 20 s: $what"
    return 1
}

# daemon_of IMAGE: the process of this command that has the image open.
daemon_of() {
    local image process file
    image=$(realpath "$1")
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe")" = "$(realpath "$SYNCLINE")" ] || continue
        for file in "$process"/fd/*; do
            [ "$(readlink "$file")" = "$image" ] || continue
            basename "$process"
            return 0
        done
    done 2>/dev/null
    return 1
}

same() {
    [ "$("$SYNCLINE" cat "$1" "$2")" = "$3" ]
}

begin() {
    "$SYNCLINE" mkfs --quiet --size 32M a.img
    head -c 3000000 /dev/urandom >out/large
    "$SYNCLINE" import --quiet a.img out/large /
    "$SYNCLINE" replica init --json "$URL" a.img | tee out/init && [ "$(field claim <out/init)" = 1 ]
}

comes_back() {
    "$SYNCLINE" replica restore "$URL" b.img && "$SYNCLINE" check --quiet b.img &&
        "$SYNCLINE" cat b.img /large | cmp - out/large
}

verified() {
    "$SYNCLINE" replica verify --json "$URL" >out/verify && cat out/verify && [ "$(field damage <out/verify)" = "[]" ]
}

caught_up() {
    "$SYNCLINE" stats --json mnt >out/stats
    [ "$(field replica.state <out/stats)" = streaming ] && [ "$(field replica.lag_ms <out/stats)" = 0 ] &&
        [ "$(field replica.blocks_to_read <out/stats)" = 0 ]
}

shipped_from_the_mount() {
    "$SYNCLINE" mount -o "replica=$URL,replica_interval=0.2,log=$PWD/out/daemon.log" a.img mnt || return 1
    echo first >mnt/first && sync mnt/first && until_true "shipped" caught_up && cat out/stats &&
        "$SYNCLINE" replica restore "$URL" c.img && same c.img /first first
}

# The daemon dies, and the disk with it.
lost_and_taken_over() {
    echo second >mnt/second && sync mnt/second && until_true "shipped" caught_up || return 1
    "$SYNCLINE" replica restore --take-over "$URL" d.img && same d.img /second second
}

stops_the_other() {
    echo late >mnt/late
    # It learns of it with its next unit.
    until_true "the old mount fails" eval '! sync mnt/first mnt/late 2>/dev/null || ! echo x >>mnt/late'
    "$SYNCLINE" stats --json mnt >out/stats
    field replica.state <out/stats
    [ "$(field replica.state <out/stats)" = stopped ] && field replica.trouble <out/stats | grep -q 'has taken over the replica'
}

goes_on_elsewhere() {
    umount mnt
    until_true "the old daemon ends" eval '! daemon_of a.img'
    "$SYNCLINE" mount -o "replica=$URL,ack=remote,log=$PWD/out/daemon2.log" d.img mnt || return 1
    echo third >mnt/third && sync mnt/third || return 1
    # No close, no interval: what a sync has acknowledged is there when the machine is gone.
    kill -9 "$(daemon_of d.img)" && umount -l mnt
    rm d.img
    "$SYNCLINE" replica restore --take-over "$URL" e.img && same e.img /third third && same e.img /second second &&
        [ "$("$SYNCLINE" cat e.img /late 2>/dev/null)" = "" ]
}

behind_is_refused() {
    "$SYNCLINE" mount -o "replica=$URL" a.img mnt >out/told 2>&1 && return 1
    cat out/told
    grep -q 'the replica was written by process' out/told
}

earlier_position() {
    "$SYNCLINE" replica restore --at 1/9999 "$URL" f.img && "$SYNCLINE" check --quiet f.img &&
        ! "$SYNCLINE" cat f.img /first
}

goes_on_without_the_store() {
    "$SYNCLINE" mount -o "replica=$URL,replica_interval=0.2,log=$PWD/out/daemon3.log" e.img mnt || return 1
    until_true "shipped" caught_up || return 1
    kill -STOP "$SERVER"
    local began=$SECONDS
    for number in $(seq 50); do echo "$number" >>mnt/meanwhile && sync mnt/meanwhile || return 1; done
    local took=$((SECONDS - began))
    kill -CONT "$SERVER"
    [ "$took" -lt 10 ] || { echo "50 syncs took $took s"; return 1; }
    until_true "shipped" caught_up && "$SYNCLINE" umount mnt && "$SYNCLINE" replica restore "$URL" g.img &&
        "$SYNCLINE" cat g.img /meanwhile | cmp - <(seq 50)
}

# behind_a_proxy ONE_IN DELAY COMMAND...: one request in so many is answered by 503, with or without its effect (0: none
# is), and each GET takes DELAY ms longer.
behind_a_proxy() {
    python3 "$here/unwell.py" "$UNWELL_PORT" "${AWS_ENDPOINT_URL##*:}" "$1" "$2" 2>out/proxy.log &
    local proxy=$! code=0
    local -x AWS_ENDPOINT_URL=http://127.0.0.1:$UNWELL_PORT
    # shellcheck disable=SC2016 # it is expanded when it is run
    until_true "the proxy listens" eval '(exec 3<>"/dev/tcp/127.0.0.1/$UNWELL_PORT") 2>/dev/null' && "${@:3}" || code=1
    kill "$proxy" && wait "$proxy" 2>/dev/null
    return "$code"
}

# unwell NAME SYNCS: what was acknowledged through the proxy comes back through it.
unwell() {
    "$SYNCLINE" mkfs --quiet --size 8M "$1.img" && "$SYNCLINE" replica init "$URL/$1" "$1.img" &&
        "$SYNCLINE" mount -o "replica=$URL/$1,ack=remote,log=$PWD/out/$1.log" "$1.img" mnt || return 1
    local number
    for number in $(seq "$2"); do echo "$number" >>mnt/file && sync mnt/file || return 1; done
    "$SYNCLINE" umount mnt && "$SYNCLINE" replica verify "$URL/$1" &&
        "$SYNCLINE" replica restore "$URL/$1" "$1-back.img" && "$SYNCLINE" cat "$1-back.img" /file | cmp - <(seq "$2")
}

# Half of all requests fail, and then all: nobody waits, it is told, and everything gets there.
goes_on_in_a_storm() {
    "$SYNCLINE" mkfs --quiet --size 8M storm.img && "$SYNCLINE" replica init "$URL/storm" storm.img &&
        behind_a_proxy 0 0 "$SYNCLINE" mount -o "replica=$URL/storm,replica_interval=0.1,log=$PWD/out/storm.log" storm.img mnt &&
        behind_a_proxy 2 0 stormy 1 && behind_a_proxy 1 0 stormy 11 &&
        behind_a_proxy 1 0 refused "503" "$SYNCLINE" replica status "$URL/storm" || return 1
    behind_a_proxy 2 0 until_true "shipped" caught_up && behind_a_proxy 0 0 "$SYNCLINE" umount mnt &&
        "$SYNCLINE" replica verify "$URL/storm" && "$SYNCLINE" replica restore "$URL/storm" storm2.img &&
        "$SYNCLINE" cat storm2.img /file | cmp - <(seq 20)
}

stormy() {
    local number
    for number in $(seq "$1" $(($1 + 9))); do echo "$number" >>mnt/file && sync mnt/file && sleep 0.2 || return 1; done
}

# Syncs of a mount with ack=remote wait for a server that was killed, and return when it is there again.
goes_on_with_a_server_that_was_killed() {
    "$SYNCLINE" mkfs --quiet --size 8M killed.img && "$SYNCLINE" replica init "$URL/killed" killed.img &&
        "$SYNCLINE" mount -o "replica=$URL/killed,ack=remote,log=$PWD/out/killed.log" killed.img mnt || return 1
    (for number in $(seq 300); do echo "$number" >>mnt/file && sync mnt/file || exit 1; echo "$number" >out/reached; done) &
    local writer=$! round reached
    for round in 1 2; do
        reached=$((round * 20))
        # shellcheck disable=SC2016 # it is expanded when it is run
        until_true "$reached syncs" eval '[ "$(cat out/reached 2>/dev/null || echo 0)" -ge '$reached' ]' || return 1
        kill -9 "$SERVER"
        sleep 2
        reached=$(cat out/reached)
        kill -0 "$writer" || { echo "a sync fails, or all are done before the server is killed"; return 1; }
        sleep 1
        [ "$(cat out/reached)" = "$reached" ] || { echo "a sync returns that no server has"; return 1; }
        started_again || return 1
    done
    wait "$writer" || { echo "a sync has failed"; return 1; }
    "$SYNCLINE" stats --json mnt >out/stats && [ "$(field replica.state <out/stats)" = streaming ] || return 1
    "$SYNCLINE" umount mnt && "$SYNCLINE" replica verify "$URL/killed" &&
        "$SYNCLINE" replica restore "$URL/killed" killed2.img && "$SYNCLINE" cat killed2.img /file | cmp - <(seq 300)
}

started_again() {
    bash "$AGAIN" && SERVER=$(cat "$work/server.pid") || return 1
    # shellcheck disable=SC2016 # it is expanded when it is run
    until_true "the server listens" eval '(exec 3<>"/dev/tcp/127.0.0.1/${AWS_ENDPOINT_URL##*:}") 2>/dev/null'
}

# A writer stands still, nobody takes over, the server has another process meanwhile, and the writer goes on. The hour
# is the laboratory's (crates/sim/src/fencing.rs).
goes_on_after_it_stood_still() {
    "$SYNCLINE" mkfs --quiet --size 8M still.img && "$SYNCLINE" replica init "$URL/still" still.img &&
        "$SYNCLINE" mount -o "replica=$URL/still,ack=remote,log=$PWD/out/still.log" still.img mnt &&
        echo one >mnt/file && sync mnt/file || return 1
    local daemon writer
    daemon=$(daemon_of still.img)
    kill -STOP "$daemon"
    (echo two >>mnt/file && sync mnt/file) &
    writer=$!
    if [ -n "${AGAIN:-}" ]; then
        kill -9 "$SERVER"
        started_again || { kill -CONT "$daemon"; return 1; }
    fi
    sleep 5
    kill -CONT "$daemon"
    wait "$writer" && echo three >>mnt/file && sync mnt/file && "$SYNCLINE" umount mnt &&
        "$SYNCLINE" replica restore "$URL/still" still2.img &&
        "$SYNCLINE" cat still2.img /file | cmp - <(printf '%s\n' one two three)
}

# A store without room is told, holds no local sync up, and gets everything when there is room.
is_full_and_has_room_again() {
    "$SYNCLINE" mkfs --quiet --size 8M full.img && "$SYNCLINE" replica init "$SMALL" full.img &&
        "$SYNCLINE" mount -o "replica=$SMALL,replica_interval=0.2,log=$PWD/out/full.log" full.img mnt &&
        echo 0 >mnt/file && sync mnt/file && until_true "shipped" caught_up && eval "$FILL" || return 1
    local began=$SECONDS number
    for number in $(seq 20); do
        echo "$number" >>mnt/file && head -c 20000 /dev/urandom >"mnt/$number" && sync mnt/file "mnt/$number" || return 1
    done
    [ $((SECONDS - began)) -lt 10 ] || { echo "20 syncs took $((SECONDS - began)) s"; return 1; }
    until_true "it is told" told_to_be_full || { field replica <out/stats; return 1; }
    field replica.trouble <out/stats
    # Whoever begins there is told as well.
    "$SYNCLINE" mkfs --quiet --size 8M full2.img && head -c 3000000 /dev/urandom >out/some &&
        "$SYNCLINE" import --quiet full2.img out/some / && refused "refuses" "$SYNCLINE" replica init "$SMALL" full2.img ||
        return 1
    eval "$EMPTY" || return 1
    until_true "shipped" caught_up && "$SYNCLINE" umount mnt &&
        "$SYNCLINE" replica restore --volume "$("$SYNCLINE" probe full.img | sed -n 's/^ID_FS_UUID=//p')" "$SMALL" full3.img &&
        "$SYNCLINE" cat full3.img /file | cmp - <(seq 0 20)
}

told_to_be_full() {
    "$SYNCLINE" stats --json mnt >out/stats && field replica.trouble <out/stats | grep -qF "refuses: "
}

# Neither sync nor claim: only who asks has the wrong time.
a_wrong_clock_is_told() {
    refused "refuses" faketime -m -f "$1" env DONT_FAKE_MONOTONIC=1 "$SYNCLINE" replica status "$URL" &&
        "$SYNCLINE" replica status "$URL"
}

damage_is_named() {
    local unit volume
    unit=$("$PYTHON" "$here/object.py" names "$BUCKET" replicas/ | grep '/u/00000001/' | head -n 1)
    volume=$("$SYNCLINE" replica status --json "$URL" | field volume)
    "$PYTHON" "$here/object.py" flip "$BUCKET" "$unit" 300 || return 1
    "$SYNCLINE" replica verify "$URL" >out/verify 2>out/told
    local code=$?
    cat out/verify out/told
    [ "$code" = 1 ] && grep -q "/u/00000001/0000000000 in the replica is damaged" out/verify || return 1
    refused "in the replica is damaged" "$SYNCLINE" replica restore --at 1/9999 --volume "$volume" "$URL" h.img &&
        ! [ -e h.img ] && ! [ -e h.img.restoring ] &&
        "$PYTHON" "$here/object.py" flip "$BUCKET" "$unit" 300 && verified
}

# What is kept is packed and deleted while a mount ships, and comes back.
pruned_while_it_is_mounted() {
    "$SYNCLINE" mkfs --quiet --size 8M kept.img &&
        "$SYNCLINE" replica init --keep=2s@1s,1h@4s "$URL/kept" kept.img || return 1
    "$SYNCLINE" mount -o "replica=$URL/kept,replica_interval=0.1,log=$PWD/out/daemon5.log" kept.img mnt || return 1
    local number before after
    for number in $(seq 60); do
        echo "$number" >>mnt/file && sync mnt/file || return 1
        sleep 0.2
        [ $((number % 10)) != 5 ] || "$SYNCLINE" replica prune --grace=0s --json "$URL/kept" >out/pruned || return 1
    done
    until_true "shipped" caught_up || return 1
    # The volume's background may ship something meanwhile: that makes more units, and nothing else.
    before=$("$SYNCLINE" replica status --json "$URL/kept" | field packs)
    "$SYNCLINE" replica prune --dry-run --grace=0s --json "$URL/kept" | tee out/dry &&
        [ "$(field would_delete.units <out/dry)" -ge 0 ] &&
        [ "$("$SYNCLINE" replica status --json "$URL/kept" | field packs)" = "$before" ] || return 1
    "$SYNCLINE" replica prune --grace=0s --json "$URL/kept" | tee out/pruned || return 1
    "$SYNCLINE" replica status --json "$URL/kept" | tee out/status
    after=$(field units <out/status)
    [ "$after" -lt 60 ] && [ "$(field packs <out/status)" -gt 0 ] && [ "$(field keeps <out/status)" = "2s@1s,1h@4s" ] &&
        "$SYNCLINE" replica verify "$URL/kept" && "$SYNCLINE" replica restore "$URL/kept" kept2.img &&
        "$SYNCLINE" cat kept2.img /file | cmp - <(seq 60) || return 1
    "$SYNCLINE" umount mnt && "$SYNCLINE" replica restore --at 2/40 "$URL/kept" kept3.img &&
        "$SYNCLINE" check --quiet kept3.img && "$SYNCLINE" cat kept3.img /file | head -n 1 | cmp - <(echo 1)
}

# What is touched is fetched, the rest behind it; then the image is like any other.
used_while_it_is_fetched() {
    local lines left
    "$SYNCLINE" mkfs --quiet --size 64M lazy.img && head -c 20000000 /dev/urandom >out/bulk &&
        "$SYNCLINE" import --quiet lazy.img out/bulk / && "$SYNCLINE" replica init "$URL/lazy" lazy.img || return 1
    # A store that is far away leaves time to see half of it.
    if [ -n "${BUCKET:-}" ]; then
        behind_a_proxy 0 600 worked_in_while_it_is_fetched || return 1
    else
        worked_in_while_it_is_fetched || return 1
    fi
    until_true "the killed daemon is gone" eval '! daemon_of lazy2.img'
    if [ "$(stat -c %s lazy2.img)" != 67108864 ]; then
        refused "only a part of this volume was fetched" "$SYNCLINE" ls lazy2.img / || return 1
    fi
    "$SYNCLINE" mount -o "log=$PWD/out/lazy2.log" --local lazy2.img "$URL/lazy" mnt || return 1
    until_true "all of it is here" all_here || return 1
    cmp mnt/bulk out/bulk && git -C mnt/tree fsck --full && [ "$(git -C mnt/tree ls-files | wc -l)" = 30 ] &&
        [ "$(sqlite_count mnt/data.db)" = 200 ] && until_true "shipped" caught_up && "$SYNCLINE" umount mnt || return 1
    [ "$(stat -c %s lazy2.img)" = 67108864 ] && "$SYNCLINE" check --quiet lazy2.img &&
        "$SYNCLINE" replica restore "$URL/lazy" lazy3.img && "$SYNCLINE" cat lazy3.img /bulk | cmp - out/bulk &&
        "$SYNCLINE" cat lazy3.img /tree/7 | cmp - <(seq 7) &&
        "$SYNCLINE" mount -o "replica=$URL/lazy,log=$PWD/out/lazy3.log" lazy2.img mnt && "$SYNCLINE" umount mnt
}

# SQLite and git, and then the daemon dies. What is not here yet is counted before they begin: how much is fetched
# beside them depends on the machine.
worked_in_while_it_is_fetched() {
    "$SYNCLINE" mount -o "log=$PWD/out/lazy.log" --local lazy2.img "$URL/lazy" mnt &&
        "$SYNCLINE" stats --json mnt >out/stats && left=$(field replica.blocks_to_fetch <out/stats) || return 1
    echo "blocks to fetch when the work begins: $left"
    [ -z "${BUCKET:-}" ] || [ "$left" -gt 0 ] || { echo "it was all here before"; return 1; }
    git init -q mnt/tree && for lines in $(seq 30); do seq "$lines" >"mnt/tree/$lines"; done
    (cd mnt/tree && git add . && git -c user.name=x -c user.email=x@y commit -qm first) || return 1
    sqlite mnt/data.db 200 && "$SYNCLINE" stats --json mnt >out/stats || return 1
    echo "blocks to fetch behind the work of SQLite and git: $(field replica.blocks_to_fetch <out/stats)"
    kill -9 "$(daemon_of lazy2.img)" && umount -l mnt
}

all_here() {
    [ "$("$SYNCLINE" stats --json mnt | field replica.blocks_to_fetch)" = 0 ]
}

sqlite() {
    python3 -c 'import sqlite3, sys
base = sqlite3.connect(sys.argv[1]); base.execute("pragma journal_mode=wal"); base.execute("create table t(a)")
for row in range(int(sys.argv[2])):
    base.execute("insert into t values(?)", (row,)); base.commit()' "$1" "$2"
}

sqlite_count() {
    python3 -c 'import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("select count(*) from t").fetchone()[0])' "$1"
}

# Large stores keep connections; the servers here end each behind its answer, so what stands between them keeps them.
fetched_by_kept_connections() {
    python3 "$here/unwell.py" "$UNWELL_PORT" "${AWS_ENDPOINT_URL##*:}" 1000000 &
    local proxy=$! code=0
    connections_are_kept || code=1
    kill "$proxy" && wait "$proxy" 2>/dev/null
    return "$code"
}

connections_are_kept() {
    local -x AWS_ENDPOINT_URL=http://127.0.0.1:$UNWELL_PORT
    # shellcheck disable=SC2016 # it is expanded when it is run
    until_true "the proxy listens" eval '(exec 3<>"/dev/tcp/127.0.0.1/$UNWELL_PORT") 2>/dev/null' || return 1
    "$SYNCLINE" mkfs --quiet --size 16M connected.img && "$SYNCLINE" import --quiet connected.img out/large / &&
        "$SYNCLINE" replica init "$URL/connected" connected.img &&
        timeout 20 "$SYNCLINE" mount -o "ro,log=$PWD/out/connected.log" "$URL/connected" mnt &&
        cmp mnt/large out/large && "$SYNCLINE" umount mnt &&
        timeout 20 "$SYNCLINE" mount -o "log=$PWD/out/connected2.log" --local connected2.img "$URL/connected" mnt &&
        cmp mnt/large out/large && "$SYNCLINE" umount mnt
}

another_image_is_refused() {
    "$SYNCLINE" mkfs --quiet --size 8M stranger.img &&
        told_by_mount "holds another volume than" --local stranger.img "$URL/lazy" mnt &&
        told_by_mount "add -o ro to read it" "$URL/lazy" mnt
}

# told_by_mount WORDS ARGUMENTS...: it does not mount, and says why.
told_by_mount() {
    local words=$1
    shift
    ! "$SYNCLINE" mount "$@" >out/told 2>&1 || { umount mnt; echo "mounted"; return 1; }
    cat out/told
    [ "$(wc -l <out/told)" = 1 ] && grep -qF -- "$words" out/told
}

# Readers claim nothing; the writer goes on, and they follow.
read_and_followed() {
    "$SYNCLINE" mkfs --quiet --size 16M source.img && "$SYNCLINE" replica init "$URL/read" source.img || return 1
    "$SYNCLINE" mount -o "replica=$URL/read,replica_interval=0.1,log=$PWD/out/source.log" source.img mnt &&
        echo one >mnt/file && sync mnt/file && until_true "shipped" caught_up || return 1
    "$SYNCLINE" mount -o "ro,log=$PWD/out/read.log" "$URL/read" mnt2 && [ "$(cat mnt2/file)" = one ] || return 1
    ! touch mnt2/new 2>/dev/null && umount mnt2 || return 1
    "$SYNCLINE" mount -o "ro,follow=0.2,log=$PWD/out/follow.log" "$URL/read" mnt2 || return 1
    exec 9<mnt2/file
    echo two >mnt/file && sync mnt/file && mkdir mnt/more && sync mnt/more || return 1
    # shellcheck disable=SC2016 # looked at again and again
    until_true "followed" eval '[ "$(cat mnt2/file)" = two ] && [ -d mnt2/more ]' || return 1
    # What was open keeps what it had.
    [ "$(cat <&9)" = one ] || { echo "an open file has changed"; return 1; }
    exec 9<&-
    [ "$(grep -c " $PWD/mnt2 " /proc/self/mountinfo)" = 1 ] || { grep mnt2 /proc/self/mountinfo; return 1; }
    # shellcheck disable=SC2016 # as above
    umount mnt2 && until_true "nothing is left of it" eval '! grep -q " $PWD/mnt2 " /proc/self/mountinfo' &&
        [ "$("$SYNCLINE" stats --json mnt | field replica.state)" = streaming ] && "$SYNCLINE" umount mnt
}

# A bound on what a lost machine costs ends the writing.
stops_when_it_is_late() {
    "$SYNCLINE" mkfs --quiet --size 8M late.img && "$SYNCLINE" replica init "$URL/late" late.img &&
        "$SYNCLINE" mount -o "replica=$URL/late,replica_interval=0.2,on_lag=stop,max_lag=2,log=$PWD/out/late.log" late.img mnt &&
        echo 1 >mnt/file && sync mnt/file && until_true "shipped" caught_up || return 1
    kill -STOP "$SERVER"
    echo 2 >mnt/file && sync mnt/file
    until_true "it stops" eval '! (echo 3 >>mnt/file && sync mnt/file) 2>/dev/null'
    local code=$?
    kill -CONT "$SERVER"
    umount mnt
    until_true "the daemon ends" eval '! daemon_of late.img'
    [ "$code" = 0 ] && grep -q "on_lag=stop ends all writing" out/late.log &&
        "$SYNCLINE" mount -o "replica=$URL/late,log=$PWD/out/late2.log" late.img mnt &&
        [ "$(head -n 1 mnt/file)" = 2 ] && "$SYNCLINE" umount mnt
}

# What differs is shipped after a crash, not everything.
goes_on_by_what_differs() {
    "$SYNCLINE" mkfs --quiet --size 64M again.img && "$SYNCLINE" import --quiet again.img out/bulk / &&
        "$SYNCLINE" replica init "$URL/again" again.img &&
        "$SYNCLINE" mount -o "log=$PWD/out/again.log" again.img mnt || return 1
    echo unshipped >mnt/file && sync mnt/file && kill -9 "$(daemon_of again.img)" && umount -l mnt
    until_true "the killed daemon is gone" eval '! daemon_of again.img'
    "$SYNCLINE" mount -o "replica=$URL/again,log=$PWD/out/again2.log" again.img mnt && until_true "shipped" caught_up &&
        [ "$(field replica.uploaded_bytes <out/stats)" -lt 5000000 ] || { cat out/stats; return 1; }
    "$SYNCLINE" umount mnt && "$SYNCLINE" replica verify "$URL/again" &&
        "$SYNCLINE" replica restore "$URL/again" again2.img && same again2.img /file unshipped &&
        "$SYNCLINE" cat again2.img /bulk | cmp - out/bulk
}

# Objects of a later format, and of another volume under this one's name.
foreign_objects_are_told() {
    local manifest other
    "$SYNCLINE" mkfs --quiet --size 8M foreign.img && "$SYNCLINE" replica init "$URL/foreign" foreign.img &&
        "$SYNCLINE" mkfs --quiet --size 8M foreign2.img && "$SYNCLINE" replica init "$URL/foreign2" foreign2.img || return 1
    manifest=$("$PYTHON" "$here/object.py" names "$BUCKET" replicas/foreign/ | grep /m/ | tail -n 1)
    "$PYTHON" "$here/object.py" flip "$BUCKET" "$manifest" 5 &&
        refused "was written by a newer version of syncline" "$SYNCLINE" replica restore "$URL/foreign" foreign3.img &&
        "$PYTHON" "$here/object.py" flip "$BUCKET" "$manifest" 5 || return 1
    other=$("$PYTHON" "$here/object.py" names "$BUCKET" replicas/foreign2/ | grep /m/ | tail -n 1)
    "$PYTHON" "$here/object.py" copy "$BUCKET" "$other" "$manifest" &&
        refused "belongs to another volume" "$SYNCLINE" replica restore "$URL/foreign" foreign3.img || return 1
    # What is there of somebody else is nobody's replica.
    "$PYTHON" "$here/object.py" put "$BUCKET" replicas/photos/cat.jpg &&
        refused "holds no replica" "$SYNCLINE" replica status "$URL/photos"
}

two_volumes() {
    "$SYNCLINE" mkfs --quiet --size 8M other.img && "$SYNCLINE" replica init "$URL" other.img &&
        refused "holds replicas of 2 volumes" "$SYNCLINE" replica status "$URL"
}

export -f field same daemon_of caught_up all_here told_to_be_full
ok "a replica is begun" begin
ok "it is not begun twice" refused "holds a replica of this volume already" "$SYNCLINE" replica init "$URL" a.img
ok "it comes back as it was" comes_back
ok "all of it is sound" verified
ok "a restore makes a new image" refused "exists, and a restore makes a new image" "$SYNCLINE" replica restore "$URL" a.img
if [ -w /dev/fuse ] && [ "$(id -u)" = 0 ]; then
    ok "a mount ships what is synced" shipped_from_the_mount
    ok "a lost machine's volume is taken over" lost_and_taken_over
    ok "who was taken over from is stopped and told" stops_the_other
    ok "what is acknowledged remotely survives the machine" goes_on_elsewhere
    ok "a volume that is behind is refused" behind_is_refused
    ok "an earlier position comes back" earlier_position
    [ -z "${SERVER:-}" ] || ok "nothing waits for a store that does not answer" goes_on_without_the_store
    [ -z "${AGAIN:-}" ] || ok "syncs wait for a server that was killed" goes_on_with_a_server_that_was_killed
    ok "a writer that stood still goes on" goes_on_after_it_stood_still
    if [ -n "${SMALL:-}" ]; then
        ok "a full store is told, and gets everything later" is_full_and_has_room_again
    fi
else
    echo "skipped: replica $NAME: mounts need root and /dev/fuse"
fi
if [ -n "${BUCKET:-}" ]; then
    if [ -w /dev/fuse ] && [ "$(id -u)" = 0 ]; then
        ok "503s cost time and nothing else" behind_a_proxy 20 0 unwell unwell 40
        ok "a storm of 503s is told, and costs time" goes_on_in_a_storm
    fi
    ok "damage in the store is named" damage_is_named
    ok "a missing bucket is told" refused "there is no such bucket" "$SYNCLINE" replica init s3://nobody/x a.img
    ok "wrong credentials are told" refused "refuses" env AWS_SECRET_ACCESS_KEY=wrong "$SYNCLINE" replica status "$URL"
    ok "unknown credentials are told" refused "refuses" env AWS_ACCESS_KEY_ID=nobody "$SYNCLINE" replica init "$URL/x" a.img
    if ! command -v faketime >/dev/null; then
        echo "skipped: replica $NAME: a wrong clock: faketime is not installed"
    elif [ -n "${AGAIN:-}" ]; then
        ok "a clock that is behind is told" a_wrong_clock_is_told -2h
        ok "a clock that is ahead is told" a_wrong_clock_is_told +2h
    fi
    ok "a server that is not there is told" refused "cannot be reached" \
        env AWS_ENDPOINT_URL=http://127.0.0.1:9 "$SYNCLINE" replica status "$URL"
fi
if [ -w /dev/fuse ] && [ "$(id -u)" = 0 ]; then
    ok "what is old is packed and deleted while a mount ships" pruned_while_it_is_mounted
fi
if [ -w /dev/fuse ] && [ "$(id -u)" = 0 ]; then
    ok "a volume is used while it is fetched" used_while_it_is_fetched
    [ -z "${BUCKET:-}" ] || ok "connections that are kept are used by whoever made them" fetched_by_kept_connections
    ok "an image of another volume is refused" another_image_is_refused
    ok "a replica is read, and followed" read_and_followed
    ok "what differs is shipped after a crash" goes_on_by_what_differs
    [ -z "${SERVER:-}" ] || ok "a volume stops when its replica is too late" stops_when_it_is_late
fi
# CLAIMS   take-overs of machines that die or stand still (default 6; make test-full has 200), RESTORES of their history
#          (4; 50), by SEED
take_over_from_each_other() {
    mkdir -p claims && env -C claims "$here/claims.py" "$URL/claims" "${CLAIMS:-6}" "${RESTORES:-4}" "${SEED:-1}" | tee out/claims
    return "${PIPESTATUS[0]}"
}

if [ -w /dev/fuse ] && [ "$(id -u)" = 0 ]; then
    ok "machines take over from each other" take_over_from_each_other
    [ ! -s out/claims ] || sed "s/^/replica on $NAME: /" out/claims
fi
[ -z "${BUCKET:-}" ] || ok "objects of others are told" foreign_objects_are_told
ok "two volumes of one place are told apart" two_volumes
ok "an empty place is told" refused "holds no replica" "$SYNCLINE" replica status "${URL%/*}"
echo "replica on $NAME: $passed passed, $failed failed"
[ "$failed" = 0 ]
