#!/bin/bash
# A Ceph cluster on the loopback of this machine: one monitor, one manager, three storage daemons on plain files.
#
# usage: tests/replica/ceph.sh up DIRECTORY     starts it, makes the pool rbd, and prints its configuration's path
#        tests/replica/ceph.sh gateway DIRECTORY PORT   starts its radosgw, which speaks S3, and prints its process id
#        tests/replica/ceph.sh down DIRECTORY   ends its daemons by their process ids
#
# Exit code 2: a package is missing (ceph-mon, ceph-mgr, ceph-osd, ceph-common; radosgw for a gateway); standard error
# says which.
set -euo pipefail
command=${1:?} directory=${2:?}
conf=$directory/ceph.conf
daemons=3

down() {
    local file pid
    for file in "$directory"/run/*.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        kill -CONT "$pid" 2>/dev/null && kill "$pid" 2>/dev/null || continue
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    done
}

if [ "$command" = down ]; then
    down
    exit
fi
if [ "$command" = gateway ]; then
    port=${3:?}
    command -v radosgw >/dev/null || { echo "radosgw is not installed" >&2; exit 2; }
    export CEPH_CONF=$conf
    if ! [ -e "$directory/rgw.keyring" ]; then
        timeout 60 ceph auth get-or-create client.rgw.a mon 'allow rw' osd 'allow rwx' >"$directory/rgw.keyring"
    fi
    # It goes to the background by itself.
    radosgw -c "$conf" -n client.rgw.a --keyring "$directory/rgw.keyring" \
        --rgw-frontends "beast endpoint=127.0.0.1:$port" \
        >"$directory/gateway.log" 2>&1 || { tail -n 1 "$directory/gateway.log" >&2; exit 1; }
    for _ in $(seq 300); do
        # Its port is open when its pools are there.
        ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
        sleep 0.1
    done
    cat "$directory/run/client.rgw.a.pid"
    exit
fi
for tool in ceph-mon ceph-mgr ceph-osd ceph rbd monmaptool ceph-authtool; do
    command -v "$tool" >/dev/null || { echo "$tool is not installed" >&2; exit 2; }
done
classes=$(find /usr/lib -name libcls_rbd.so -printf '%h\n' 2>/dev/null | head -n 1)
[ -n "$classes" ] || { echo "libcls_rbd.so is not installed" >&2; exit 2; }

mkdir -p "$directory"/{run,log,mon.a,mgr.x}
port=$(python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
address="[v2:127.0.0.1:$port/0]"
fsid=$(cat /proc/sys/kernel/random/uuid)
# One machine: who reports that a daemon is gone may be on the same one (mon_osd_reporter_subtree_level). See
# docs/devices.md for what that, and the lease, mean.
cat >"$conf" <<C
[global]
fsid = $fsid
mon_host = $address
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
keyring = $directory/keyring
run_dir = $directory/run
admin_socket = $directory/run/\$cluster-\$name.\$pid.asok
pid_file = $directory/run/\$name.pid
log_file = $directory/log/\$name.log
crash_dir = $directory/crash
setuser_match_path =
ms_bind_ipv6 = false
osd_pool_default_size = 3
osd_pool_default_min_size = 2
osd_crush_chooseleaf_type = 0
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
[client]
admin_socket =
log_file = /dev/null
[client.rgw.a]
rgw_data = $directory/rgw.a
rgw_bucket_quota_ttl = 1
rgw_num_rados_handles = 1
rgw_thread_pool_size = 64
log_file = $directory/log/\$name.log
[mon]
mon_data = $directory/mon.\$id
mon_data_avail_crit = 1
mon_osd_reporter_subtree_level = osd
mon_osd_min_down_reporters = 1
[mgr]
mgr_data = $directory/mgr.\$id
[osd]
osd_data = $directory/osd.\$id
osd_objectstore = bluestore
bluestore_block_create = true
bluestore_block_size = 4294967296
bluestore_block_wal_create = false
bluestore_block_db_create = false
bluestore_cache_autotune = false
bluestore_cache_size = 67108864
osd_memory_target = 939524096
osd_memory_cache_min = 67108864
osd_op_num_shards = 1
osd_op_num_threads_per_shard = 2
osd_class_load_list = *
osd_class_default_list = *
osd_class_dir = $classes
C
export CEPH_CONF=$conf
trap 'down; tail -n 5 "$directory"/up.log >&2' ERR
{
    ceph-authtool --create-keyring "$directory/keyring" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$directory/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    monmaptool --create --clobber --fsid "$fsid" --addv a "$address" "$directory/monmap"
    ceph-mon -c "$conf" --mkfs -i a --monmap "$directory/monmap" --keyring "$directory/keyring"
    ceph-mon -c "$conf" -i a
    timeout 60 ceph auth get-or-create mgr.x mon 'allow profile mgr' osd 'allow *' mds 'allow *' >"$directory/mgr.x/keyring"
    ceph-mgr -c "$conf" -i x --keyring "$directory/mgr.x/keyring"
    for number in $(seq 0 $((daemons - 1))); do
        uuid=$(cat /proc/sys/kernel/random/uuid)
        key=$(ceph-authtool --gen-print-key)
        mkdir -p "$directory/osd.$number"
        echo "{\"cephx_secret\": \"$key\"}" | timeout 60 ceph osd new "$uuid" -i -
        ceph-authtool --create-keyring "$directory/osd.$number/keyring" -n "osd.$number" --add-key "$key"
        ceph-osd -c "$conf" -i "$number" --mkfs --osd-uuid "$uuid" --keyring "$directory/osd.$number/keyring"
        ceph-osd -c "$conf" -i "$number" --keyring "$directory/osd.$number/keyring"
    done
    timeout 60 ceph osd pool create rbd 8 8 replicated
    timeout 60 rbd pool init rbd
} >"$directory/up.log" 2>&1
echo "$conf"
