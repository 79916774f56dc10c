#!/bin/bash
# The steps of tests/packages/boot, run by systemd in the root that it has booted. The first that fails ends the
# machine.
set -uo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
cd /root || exit

step() {
    local name=$1
    shift
    # Not as a condition, under which set -e means nothing.
    ("$@") >/root/log 2>&1
    local status=$?
    if [ "$status" != 0 ]; then
        {
            echo "$name"
            cat /root/log
            systemctl status --no-pager data.mount second.mount fstrim.service
            journalctl -b --no-pager -n 40
        } >/root/failed 2>&1
        systemctl --no-block poweroff
        exit 1
    fi
    echo "ok     $name" >>/root/steps
}

mounted_at_boot() {
    set -ex
    grep ' /data fuse.syncline ' /proc/mounts
    [ "$(systemctl show -P SubState data.mount)" = mounted ]
}

mounted_at_first_use() {
    set -ex
    if ! [ -c /dev/autofs ]; then
        echo "skipped: boot: this kernel has no automounts" >>/root/steps
        grep ' /second fuse.syncline ' /proc/mounts
        return
    fi
    if grep ' /second fuse.syncline ' /proc/mounts; then exit 1; fi
    [ "$(systemctl show -P SubState second.automount)" = waiting ]
    echo first >/second/file
    grep ' /second fuse.syncline ' /proc/mounts
    # Nobody mounts it again while it is being unmounted, and it is mounted again at its next use.
    for command in "systemctl stop second.mount" "syncline umount /second"; do
        $command
        fsck.syncline -a /srv/volumes/second.img | tee /root/fsck
        grep 'closed properly' /root/fsck
        if grep ' /second fuse.syncline ' /proc/mounts; then exit 1; fi
        [ "$(cat /second/file)" = first ]
    done
}

trimmed() {
    set -ex
    dd if=/dev/urandom of=/data/large bs=1M count=64 conv=fsync
    local before after
    before=$(du -m /srv/volumes/data.img | cut -f1)
    rm /data/large
    sync /data
    systemctl start fstrim.timer
    systemctl is-active fstrim.timer
    # What the timer starts.
    systemctl start fstrim.service
    [ "$(systemctl show -P Result fstrim.service)" = success ]
    after=$(du -m /srv/volumes/data.img | cut -f1)
    [ "$after" -lt $((before - 50)) ]
}

closed_when_stopped() {
    set -ex
    for round in 1 2 3; do
        for number in $(seq 200); do echo "$round" >"/data/$number"; done
        dd if=/dev/urandom of=/data/large bs=1M count=16
        systemctl stop data.mount
        fsck.syncline -a /srv/volumes/data.img | tee /root/fsck
        grep 'closed properly' /root/fsck
        systemctl start data.mount
        [ "$(cat /data/200)" = "$round" ]
    done
}

step "a line of /etc/fstab is mounted at boot" mounted_at_boot
step "a unit of the examples mounts at the first use" mounted_at_first_use
step "fstrim.timer's service gives back what is free" trimmed
step "systemctl stop returns when the volume is closed" closed_when_stopped
for directory in /data /second; do echo "not synced" >"$directory/late"; done
touch /root/done
systemctl --no-block poweroff
