#!/bin/bash
# Runs the suite of replicas against a real object store on the loopback, and that of devices against what serves such,
# which is started here and ended by its pid.
#
# usage: tests/replica/servers.sh NAME...     moto, folder, versitygw, radosgw: of replicas; nbdkit, rbd: of devices
#                                             (devices.sh)
#        tests/replica/servers.sh prepare     gets what moto needs, so that it is there later
#
# SYNCLINE  the command under test (default: the newest build of syncline-lab in this workspace). It has to know s3://:
#           build it with the feature s3 of syncline-cli, or syncline-replica-store/aws.
# MOTO      the folder of a virtual environment with moto[server] (default: one in the target folder, made by pip if it
#           is not there).
# VERSITY   the program versitygw (default: one in the target folder, made by go if it is not there).
# SCRATCH   a folder for images (default /var/tmp).
# ONLY      of replicas, only the checks whose name matches this: "take over from each other" for a campaign in slices.
#
# What suite.sh is told of a server, where the server can do it:
#
# SERVER    its process, which is stopped and continued
# AGAIN     a script that starts it again, with what it held, once it was killed; its process is in $work/server.pid
# SMALL     a place like URL; FILL leaves no room there, and EMPTY gives it back
#
# A server that cannot be had makes one line "skipped: replica NAME: why". Exit code 1: something failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
here=$PWD/tests/replica
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
moto=${MOTO:-$target/moto}
versity=${VERSITY:-$target/versity/versitygw}
SYNCLINE=${SYNCLINE:-$target/debug/syncline-lab}
work=$(mktemp -d "${SCRATCH:-/var/tmp}/syncline-replica.XXXXXX") || exit 2
server=
export SYNCLINE work here
# Those of whoever calls have nothing to do with this.
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_ENDPOINT

# The suite may have started it again, so it need not be a child of this shell.
end_server() {
    [ ! -s "$work/server.pid" ] || server=$(cat "$work/server.pid")
    rm -f "$work/server.pid"
    [ -n "$server" ] || return 0
    { kill -CONT "$server" && kill "$server"; } 2>/dev/null
    for _ in $(seq 100); do
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    wait "$server" 2>/dev/null
    server=
}

# shellcheck disable=SC2317 # a trap calls it
clean_up() {
    end_server
    for mount in "$work"/*/mnt "$work"/*/mnt2 "$work"/*/claims/mount? "$work"/small "$work"/gateway/small; do
        ! mountpoint -q "$mount" 2>/dev/null || umount -l "$mount"
    done
    [ ! -d "$work/ceph" ] || "$here/ceph.sh" down "$work/ceph"
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Waits until somebody listens.
until_open() {
    for _ in $(seq 300); do
        ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}

get_moto() {
    command -v python3 >/dev/null || { echo "python3 is not installed"; return 1; }
    [ -x "$moto/bin/moto_server" ] && return
    { python3 -m venv "$moto" && "$moto/bin/pip" --quiet --disable-pip-version-check install 'moto[server]>=5,<6'; } \
        >"$work/pip.log" 2>&1 || { echo "pip cannot install moto[server]"; return 1; }
}

start_moto() {
    get_moto || return
    local port account
    port=$(free_port)
    INITIAL_NO_AUTH_ACTION_COUNT=3 "$moto/bin/python" "$here/moto_alone.py" "$port" >"$work/moto.log" 2>&1 &
    server=$!
    until_open "$port" || { echo "the server does not listen"; return 1; }
    export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_REGION=us-east-1
    account=$("$moto/bin/python" "$here/moto_account.py" "$AWS_ENDPOINT_URL" lab 2>"$work/account.log") ||
        { echo "the server gives no account: $(tail -n 1 "$work/account.log")"; return 1; }
    export AWS_ACCESS_KEY_ID=${account% *} AWS_SECRET_ACCESS_KEY=${account#* }
    UNWELL_PORT=$(free_port)
    export PYTHON=$moto/bin/python BUCKET=lab URL=s3://lab/replicas SERVER=$server UNWELL_PORT
}

# Its commits and tags are the Go proxy's to name; what is newest is what is tested.
get_versity() {
    [ -x "$versity" ] && return
    command -v go >/dev/null || { echo "go is not installed"; return 1; }
    GOBIN=$(dirname "$versity") go install github.com/versity/versitygw/cmd/versitygw@latest >"$work/go.log" 2>&1 ||
        { echo "go cannot install versitygw: $(tail -n 1 "$work/go.log")"; return 1; }
}

start_versity() {
    get_versity && get_moto || return
    local port
    port=$(free_port)
    mkdir "$work/gateway" "$work/side"
    export AWS_ACCESS_KEY_ID=lab AWS_SECRET_ACCESS_KEY=laboratory AWS_REGION=us-east-1
    cat >"$work/again" <<A
ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY "$versity" --port "127.0.0.1:$port" \\
    posix --sidecar "$work/side" "$work/gateway" >>"$work/versity.log" 2>&1 &
echo \$! >"$work/server.pid"
A
    bash "$work/again"
    server=$(cat "$work/server.pid")
    until_open "$port" || { echo "the server does not listen: $(tail -n 1 "$work/versity.log")"; return 1; }
    export AWS_ENDPOINT_URL=http://127.0.0.1:$port
    # For its client's library, which the tests use as well.
    "$moto/bin/python" "$here/object.py" make lab >"$work/account.log" 2>&1 ||
        { echo "the server makes no bucket: $(tail -n 1 "$work/account.log")"; return 1; }
    UNWELL_PORT=$(free_port)
    export PYTHON=$moto/bin/python BUCKET=lab URL=s3://lab/replicas SERVER=$server UNWELL_PORT AGAIN=$work/again
    # Each bucket is a folder; this one has a disk of its own.
    if "$moto/bin/python" "$here/object.py" make small >"$work/account.log" 2>&1 &&
        small_disk "$work/gateway/small"; then
        export SMALL=s3://small/replicas
    fi
}

# A disk of 24 MiB in the folder.
small_disk() {
    mkdir -p "$1" && mount -t tmpfs -o size=24m none "$1" 2>/dev/null || return
    export FILL="! head -c 30M /dev/zero >'$1/filler'" EMPTY="rm '$1/filler'"
}

start_radosgw() {
    command -v radosgw >/dev/null && command -v radosgw-admin >/dev/null ||
        { echo "radosgw is not installed"; return 1; }
    get_moto && up_ceph || return
    local port
    port=$(free_port)
    export AWS_ACCESS_KEY_ID=lab AWS_SECRET_ACCESS_KEY=laboratory AWS_REGION=us-east-1
    cat >"$work/again" <<A
"$here/ceph.sh" gateway "$work/ceph" "$port" >"$work/server.pid" 2>>"$work/radosgw.log"
A
    bash "$work/again" || { echo "the gateway does not start: $(tail -n 1 "$work/radosgw.log")"; return 1; }
    server=$(cat "$work/server.pid")
    until_open "$port" || { echo "the server does not listen"; return 1; }
    CEPH_CONF=$CEPH_CONF timeout 60 radosgw-admin user create --uid lab --display-name lab --access-key lab \
        --secret-key laboratory >"$work/account.log" 2>&1 || { echo "the server makes no user"; return 1; }
    export AWS_ENDPOINT_URL=http://127.0.0.1:$port
    for bucket in lab small; do
        "$moto/bin/python" "$here/object.py" make "$bucket" >"$work/account.log" 2>&1 ||
            { echo "the server makes no bucket: $(tail -n 1 "$work/account.log")"; return 1; }
    done
    UNWELL_PORT=$(free_port)
    local quota="timeout 60 radosgw-admin quota"
    export FILL="$quota set --quota-scope bucket --bucket small --max-size 1 && $quota enable --quota-scope bucket --bucket small"
    export EMPTY="$quota disable --quota-scope bucket --bucket small"
    export PYTHON=$moto/bin/python BUCKET=lab URL=s3://lab/replicas SERVER=$server UNWELL_PORT AGAIN=$work/again
    export SMALL=s3://small/replicas
}

start_nbdkit() {
    command -v nbdkit >/dev/null || { echo "nbdkit is not installed"; return 1; }
    # It goes to the background when it listens, and says who it is a moment later.
    nbdkit --pidfile "$work/nbd.pid" --unix "$work/nbd" memory 256M 2>"$work/nbdkit.log" ||
        { echo "nbdkit does not start: $(tail -n 1 "$work/nbdkit.log")"; return 1; }
    for _ in $(seq 100); do
        [ ! -s "$work/nbd.pid" ] || break
        sleep 0.05
    done
    server=$(cat "$work/nbd.pid")
    export DEVICE="nbd+unix:///?socket=$work/nbd"
}

up_ceph() {
    command -v rbd >/dev/null && command -v ceph-osd >/dev/null || { echo "the packages of Ceph are not installed"; return 1; }
    CEPH_CONF=$("$here/ceph.sh" up "$work/ceph" 2>"$work/ceph.log") || { tail -n 1 "$work/ceph.log"; return 1; }
    export CEPH_CONF
}

down_ceph() {
    [ ! -d "$work/ceph" ] || "$here/ceph.sh" down "$work/ceph"
    rm -rf "$work/ceph"
    unset CEPH_CONF
}

start_ceph() {
    up_ceph || return
    for image in device suite fork volume volume-syncs stalls; do
        timeout 60 rbd create --size 256 "rbd/$image" || { echo "no image can be made"; return 1; }
    done
    export DEVICE="rbd:rbd/device?conf=$CEPH_CONF"
}

status=0
for name in "${@:-moto}"; do
    unset BUCKET SERVER AGAIN SMALL FILL EMPTY AWS_ENDPOINT_URL
    case $name in
        moto)
            # Not in a subshell: it sets the server's pid.
            if ! start_moto >"$work/why"; then
                echo "skipped: replica moto: $(cat "$work/why")"
                continue
            fi
            ;;
        versitygw | radosgw)
            start=start_versity
            [ "$name" = versitygw ] || start=start_radosgw
            if ! "$start" >"$work/why"; then
                echo "skipped: replica $name: $(cat "$work/why")"
                end_server
                down_ceph
                continue
            fi
            ;;
        prepare)
            # Whoever starts the server says what is missing.
            get_moto >"$work/why"
            continue
            ;;
        folder)
            export URL=file://$work/store
            ! small_disk "$work/small" || export SMALL=file://$work/small/replicas
            ;;
        nbdkit | rbd)
            start=start_nbdkit
            [ "$name" = nbdkit ] || start=start_ceph
            if ! "$start" >"$work/why"; then
                echo "skipped: devices $name: $(cat "$work/why")"
                continue
            fi
            mkdir "$work/$name"
            NAME=$name DIRECTORY=$work/$name SERVER=$server bash "$here/devices.sh" || status=1
            if [ "$name" = rbd ]; then
                SYNCLINE_TEST_CEPH=$CEPH_CONF ${CARGO:-cargo} test --locked -p syncline-rbd --test ceph -- --test-threads 1 || status=1
                # Whoever was taken over from is shut out for longer than Ceph's hour.
                long=$(CEPH_CONF=$CEPH_CONF timeout 60 ceph osd blocklist ls 2>/dev/null |
                    awk -v then="$(date -u -d '+20 days' +%F)" '$2 > then' | wc -l)
                [ "$long" -ge 10 ] || { echo "FAIL  $long owners are shut out for long"; status=1; }
                "$here/stalls.py" "$work/rbd" "rbd:rbd/stalls?conf=$CEPH_CONF" "$work/ceph" || status=1
                down_ceph
            else
                end_server
            fi
            continue
            ;;
        *) echo "servers.sh: no such server: $name" >&2; exit 2 ;;
    esac
    mkdir "$work/$name"
    NAME=$name DIRECTORY=$work/$name bash "$here/suite.sh" || status=1
    end_server
    down_ceph
    ! mountpoint -q "$work/small" || umount "$work/small"
    ! mountpoint -q "$work/gateway/small" || umount "$work/gateway/small"
done
exit "$status"
