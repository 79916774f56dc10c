#!/bin/bash
# What a device has to do that is reached by a network, whatever serves it. Started by servers.sh, with
#
# NAME, DIRECTORY   the server's name, and an empty folder for images and mounts
# DEVICE            the address of an empty device of 256 MiB
# here              this folder
#
# Ends with one line "devices on NAME: N passed, M failed".
set -uo pipefail
passed=0
failed=0
NAME=${NAME:?}
cd "${DIRECTORY:?}" || exit 2
mkdir -p mnt mnt2 out

ok() {
    if "${@:2}" >out/log 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL  devices on $NAME: $1"
        tail -n 20 out/log | sed 's/^/      /'
    fi
}

# refused WORDS COMMAND...: it fails with one sentence that holds the words.
refused() {
    local words=$1
    shift
    if "$@" >out/told 2>&1; then
        echo "it succeeds"
        return 1
    fi
    cat out/told
    [ "$(wc -l <out/told)" = 1 ] || { echo "not one line"; return 1; }
    grep -qF -- "$words" out/told || { echo "want: $words"; return 1; }
}

# The process that serves a mount: the only one of this command with this device in its arguments.
daemon() {
    local process
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe")" = "$(realpath "$SYNCLINE")" ] || continue
        tr '\0' '\n' <"$process/cmdline" | grep -qxF -- "$DEVICE" || continue
        basename "$process"
        return 0
    done 2>/dev/null
    return 1
}

make_a_volume() {
    "$SYNCLINE" mkfs --format 1 --quiet --label there "$DEVICE" || return
    refused "to overwrite it, give -f" "$SYNCLINE" mkfs "$DEVICE" || return
    refused "and cannot grow" "$SYNCLINE" mkfs -f --size 1T "$DEVICE" || return
    "$SYNCLINE" probe "$DEVICE" | grep -qx ID_FS_LABEL=there
}

commands_of_an_unmounted_volume() {
    head -c 3000000 /dev/urandom >out/large
    "$SYNCLINE" import --quiet "$DEVICE" out/large / || return
    [ "$("$SYNCLINE" ls "$DEVICE" /)" = large ] || return
    "$SYNCLINE" cat "$DEVICE" /large | cmp - out/large || return
    rm -rf out/back
    "$SYNCLINE" export --quiet "$DEVICE" /large out/back || return
    cmp out/large out/back || return
    "$SYNCLINE" inspect super "$DEVICE" | grep -q there || return
    "$SYNCLINE" inspect inode "$DEVICE" /large >/dev/null || return
    "$SYNCLINE" check "$DEVICE" | tail -n 1 | grep -q sound
}

snapshots() {
    refused "syncline upgrade" "$SYNCLINE" snapshot create "$DEVICE" first || return
    "$SYNCLINE" upgrade --quiet "$DEVICE" || return
    "$SYNCLINE" snapshot create "$DEVICE" first && "$SYNCLINE" snapshot clone "$DEVICE" first branch || return
    echo new >out/new
    "$SYNCLINE" import --quiet "$DEVICE" out/new / || return
    "$SYNCLINE" snapshot diff "$DEVICE" first | grep -q new || return
    "$SYNCLINE" snapshot list "$DEVICE" | grep -q first
}

mounted() {
    "$SYNCLINE" mount "$DEVICE" mnt || return
    grep -qF " $PWD/mnt " /proc/self/mountinfo || return
    cmp mnt/large out/large || return
    echo "synced" >mnt/file && sync mnt/file || return
    # Another head is mounted by the daemon that has the volume.
    "$SYNCLINE" mount -o head=branch "$DEVICE" mnt2 || return
    [ ! -e mnt2/new ] && [ -e mnt/new ] || return
    "$SYNCLINE" stats mnt | grep -qi flush || return
    refused "" "$SYNCLINE" ls "$DEVICE" || return
    refused "" "$SYNCLINE" mkfs -f "$DEVICE" || return
    refused "" "$SYNCLINE" mount "$DEVICE" mnt || return
    "$SYNCLINE" umount mnt2 && "$SYNCLINE" umount mnt || return
    [ -z "$(daemon)" ] || { echo "the daemon is still there"; return 1; }
    [ "$("$SYNCLINE" cat "$DEVICE" /file)" = synced ] || return
    "$SYNCLINE" check --quiet "$DEVICE"
}

# What was synced is there when the daemon is killed; the next one does not wait for the dead one's lock for long.
daemon_killed() {
    local pid
    "$SYNCLINE" mount "$DEVICE" mnt || return
    pid=$(daemon) || { echo "no daemon"; return 1; }
    for number in $(seq 50); do echo "$number" >>mnt/log && sync mnt/log || return; done
    kill -9 "$pid"
    umount -l mnt
    "$SYNCLINE" mount "$DEVICE" mnt || return
    [ "$(wc -l <mnt/log)" = 50 ] || { echo "records are missing"; return 1; }
    "$SYNCLINE" umount mnt && "$SYNCLINE" check --quiet "$DEVICE"
}

# The owner stands still on this machine, so its daemon is asked, and its mount cannot be looked at. A lock is broken
# where there is one; elsewhere the owner goes on.
daemon_stands_still() {
    local pid code=0
    "$SYNCLINE" mount "$DEVICE" mnt && echo one >mnt/still && sync mnt/still || return
    pid=$(daemon) || { echo "no daemon"; return 1; }
    kill -STOP "$pid"
    beside_one_that_stands_still "$pid" || code=1
    kill -CONT "$pid"
    [ "$code" = 0 ] || { umount -l mnt; return 1; }
    if [ "$NAME" = rbd ]; then
        if echo late >>mnt/still && sync mnt/still; then
            echo "a sync of one who was taken over from succeeds"
            return 1
        fi
        # Its volume has stopped, which umount tells.
        "$SYNCLINE" umount mnt
        [ "$("$SYNCLINE" cat "$DEVICE" /still)" = "$(printf 'one\ntwo')" ] || { echo "not what was acknowledged"; return 1; }
        return
    fi
    echo two >>mnt/still && sync mnt/still && "$SYNCLINE" umount mnt
}

beside_one_that_stands_still() {
    local began
    refused "process $1, which does not answer" timeout 60 "$SYNCLINE" mount "$DEVICE" mnt2 || return
    if [ "$NAME" != rbd ]; then
        refused "process $1, which does not answer" timeout 60 "$SYNCLINE" mount --take-over "$DEVICE" mnt2
        return
    fi
    refused "mount it in another directory" timeout 60 "$SYNCLINE" mount --take-over "$DEVICE" mnt || return
    began=$(date +%s.%N)
    timeout 60 "$SYNCLINE" mount --take-over "$DEVICE" mnt2 && cat mnt2/still || return
    echo "$(date +%s.%N) $began" | awk '{ printf "%.1f\n", $1 - $2 }' >out/took
    # The new daemon is found, and not the one that stands still.
    echo two >>mnt2/still && sync mnt2/still && timeout 60 "$SYNCLINE" umount mnt2
}

read_only() {
    refused "needs a mount that writes" "$SYNCLINE" mount -o ro,take_over "$DEVICE" mnt || return
    "$SYNCLINE" mount -o ro "$DEVICE" mnt || return
    cmp mnt/large out/large && ! touch mnt/x 2>/dev/null || return
    "$SYNCLINE" umount mnt
}

users_program() {
    command -v python3 >/dev/null && command -v git >/dev/null || return 0
    "$SYNCLINE" mount "$DEVICE" mnt || return
    python3 - <<'P' || return
import sqlite3
with sqlite3.connect("mnt/ledger.db") as database:
    database.execute("create table t(a)")
    database.executemany("insert into t values(?)", [(n,) for n in range(1000)])
P
    git -c init.defaultBranch=main init --quiet mnt/repository && cp out/large mnt/repository/ || return
    git -C mnt/repository add . && git -C mnt/repository -c user.name=a -c user.email=a@b commit --quiet -m one || return
    "$SYNCLINE" umount mnt && "$SYNCLINE" mount "$DEVICE" mnt || return
    python3 -c 'import sqlite3; assert sqlite3.connect("mnt/ledger.db").execute("select count(*) from t").fetchone() == (1000,)' || return
    git -C mnt/repository fsck --strict || return
    "$SYNCLINE" umount mnt
}

shipped() {
    "$SYNCLINE" replica init "file://$PWD/store" "$DEVICE" >/dev/null || return
    "$SYNCLINE" replica restore "file://$PWD/store" out/restored.img >/dev/null || return
    "$SYNCLINE" cat out/restored.img /large | cmp - out/large
}

ok "a volume is made, and not made over" make_a_volume
ok "import, ls, cat, export, inspect, check" commands_of_an_unmounted_volume
ok "upgrade and snapshots" snapshots
if [ -w /dev/fuse ] && [ "$(id -u)" = 0 ]; then
    ok "mount, another head beside it, umount" mounted
    ok "a read-only mount" read_only
    ok "a killed daemon loses nothing that was synced" daemon_killed
    ok "a daemon that stands still is told, or taken over from" daemon_stands_still
    [ ! -s out/took ] || echo "devices on $NAME: taken over from a daemon that stands still in $(cat out/took) s"
    ok "SQLite and git on the mount" users_program
else
    echo "skipped: devices $NAME: mounts need root and /dev/fuse"
fi
# Where the server can be killed, which takes what is in its memory: last of all.
server_killed() {
    "$SYNCLINE" mount "$DEVICE" mnt || return
    kill -9 "$SERVER"
    for name in a b; do
        if echo x >"mnt/$name" && sync "mnt/$name"; then
            echo "a sync succeeds without a server"
            return 1
        fi
    done
    cmp mnt/large out/large || echo "what is in memory can still be read, and this was not"
    refused "could not be closed" "$SYNCLINE" umount mnt || return
    refused "cannot be reached" "$SYNCLINE" mount "$DEVICE" mnt
}

ok "the volume is shipped to a folder and comes back" shipped
ok "a wrong address is told" refused "no address" "$SYNCLINE" ls nbd:///x
ok "a server that is not there is told" refused "cannot be reached" "$SYNCLINE" ls "nbd+unix:///?socket=$PWD/nobody"
ok "a take-over of what has no lock is told" refused "no lock that could be taken over" \
    "$SYNCLINE" check --repair --take-over "nbd+unix:///?socket=$PWD/nobody"
if [ -n "${SERVER:-}" ] && [ -w /dev/fuse ] && [ "$(id -u)" = 0 ]; then
    ok "a server that is killed stops the mount, and umount says so" server_killed
fi
echo "devices on $NAME: $passed passed, $failed failed"
[ "$failed" = 0 ]
