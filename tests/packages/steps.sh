#!/bin/bash
# The steps of tests/packages/run, inside of the fresh root: a stranger's first hour, one step after the other. What a
# step leaves is what the next one finds. The first that fails ends the run.
# Whatever writes into a pipe is read to its end: behind "grep -q" it may die of the closed pipe.
set -uo pipefail
cd /root || exit

passed=0
log=/tmp/step.log

step() {
    local name=$1
    shift
    # Not as a condition, under which set -e means nothing.
    ("$@") >"$log" 2>&1
    local status=$?
    if [ "$status" != 0 ]; then
        echo "FAILED $name"
        tail -n 40 "$log"
        echo "$passed passed, 1 failed"
        exit 1
    fi
    echo "ok     $name"
    grep '^skipped: ' "$log"
    passed=$((passed + 1))
}

fail() {
    echo "$*"
    exit 1
}

# Whether a program is there. Where the root has only what its machine has (HERE), what needs it is left out.
has() {
    command -v "$1" >/dev/null && return
    [ -n "$HERE" ] || fail "$1 is not here"
    echo "skipped: packages: $1 is not installed"
    return 1
}

# What is installed, apart from what the package manager keeps for itself and what the steps make.
files() {
    find / -xdev \( -path /proc -o -path /dev -o -path /tmp -o -path /packages -o -path /steps -o -path /root -o -path /data \
        -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /run \) -prune -o -print | sort
}

# The base has no documentation left out: minbase keeps it.
prepare() {
    if [ -n "$HERE" ]; then
        files >/tmp/before
        return
    fi
    apt-get update || return
    # What a stranger has already, and the programs of the other steps.
    apt-get install -y --no-install-recommends gcc libc6-dev pkg-config python3-minimal man-db sqlite3 bash-completion zsh fish fuse3 \
        libgcc-s1 kmod udev file systemd || return
    files >/tmp/before
}

install_old() { apt-get install -y --no-install-recommends /packages/old/*.deb; }

# Mounted by the old version, upgraded under it: the mount goes on, and the new command unmounts it.
upgrade_under_a_mount() {
    set -e
    syncline mkfs --size 64M /root/upgrade.img
    mkdir -p /root/upgrade
    syncline mount /root/upgrade.img /root/upgrade
    echo before >/root/upgrade/file
    apt-get install -y --no-install-recommends /packages/*.deb
    for package in syncline libsyncline1 libsyncline-dev libsqlite3-mod-syncline syncline-bench; do
        [ "$(dpkg-query -W -f '${Version}' "$package")" != 0.0.9-1 ]
    done
    echo after >>/root/upgrade/file
    [ "$(wc -l </root/upgrade/file)" = 2 ]
    # As systemd does it: it returns when the daemon has closed the volume.
    umount -c /root/upgrade
    syncline check /root/upgrade.img
    [ "$(syncline cat /root/upgrade.img /file | tail -n 1)" = after ]
}

purge_all() {
    set -e
    apt-get purge -y syncline libsyncline1 libsyncline-dev libsqlite3-mod-syncline syncline-bench
    files >/tmp/after
    diff /tmp/before /tmp/after
    if dpkg-query -W -f '${Package} ${Status}\n' '*syncline*' | grep -v not-installed; then fail "still known"; fi
}

install_command() {
    # The words of the README, with the file that the stranger has downloaded.
    cd /packages && apt-get install -y ./syncline_*.deb
}

everything_is_where_it_is_looked_for() {
    set -e
    syncline --version
    for name in mkfs fsck mount umount; do "$name.syncline" --version; done
    for name in mount umount; do for kind in fuse fuseblk; do [ -x "/sbin/$name.$kind.syncline" ]; done; done
    if has man; then
        for page in syncline syncline-mount mount.syncline umount.fuse.syncline fsck.syncline; do
            man -w "$page"
            man "$page" | cat >/tmp/page
            [ "$(wc -l </tmp/page)" -gt 15 ]
        done
    fi
    # Each shell finds its completions by itself.
    if [ -z "$HERE" ] || [ -f /usr/share/bash-completion/bash_completion ]; then
        bash -ic '. /usr/share/bash-completion/bash_completion; _completion_loader syncline || true; complete -p syncline'
    fi
    if has zsh; then zsh -fc 'autoload -U compinit; compinit -u -d /tmp/zcompdump; [ "${_comps[syncline]}" = _syncline ]'; fi
    if has fish; then fish -c 'complete -C "syncline mk"' | grep mkfs; fi
    [ -f /usr/share/doc/syncline/copyright ]
    [ -f /usr/share/doc/syncline/changelog.gz ]
}

a_volume_in_fstab() {
    set -e
    mkfs -t syncline --size 256M /root/disk.img
    mkdir -p /data
    echo '/root/disk.img  /data  syncline  noatime,commit=5  0  2' >>/etc/fstab
    mount /data
    grep ' /data fuse.syncline ' /proc/mounts
    cp -a /usr/share/doc /data/
    echo 'here before the reboot' >/data/note
}

# What udev makes of a disk: type, UUID and label, and the links that mount(8) follows. No udev runs here, so its rules
# are tried on the disk, and the link is made by hand.
a_disk_by_its_label() {
    set -e
    [ -n "$DISK" ] || { echo "skipped: packages: there is no loop device"; return; }
    mkfs -t syncline -L 'my disk' -U 2f6c1e0a-5d0b-4c43-9a53-7d3f0c1b2a99 "$DISK"
    if has udevadm; then
        udevadm test --action=add "/sys/class/block/${DISK##*/}" >/tmp/udev 2>&1
        grep 'ID_FS_TYPE=syncline' /tmp/udev
        grep 'ID_FS_LABEL_ENC=my\\x20disk' /tmp/udev
        grep 'DEVLINKS=.*disk/by-uuid/2f6c1e0a-5d0b-4c43-9a53-7d3f0c1b2a99' /tmp/udev
        grep 'DEVLINKS=.*disk/by-label/my\\x20disk' /tmp/udev
    fi
    # blkid and wipefs know nothing of it. lsblk shows what udev knows, in whose table the rule's words are put here.
    if blkid -p "$DISK"; then fail "blkid knows a volume, and docs/packaging.md says that it does not"; fi
    [ -z "$(wipefs "$DISK")" ]
    mkdir -p /run/udev/data
    touch /run/udev/control
    { echo I:1; syncline probe "$DISK" | sed 's/^/E:/'; } >"/run/udev/data/b$(cat "/sys/class/block/${DISK##*/}/dev")"
    lsblk -f "$DISK" | grep 'syncline .*my disk .*2f6c1e0a-5d0b-4c43-9a53-7d3f0c1b2a99'
    rm -r /run/udev
    mkdir -p /dev/disk/by-label /mnt
    ln -sf "$DISK" '/dev/disk/by-label/my\x20disk'
    mount -t syncline -L 'my disk' /mnt
    grep ' /mnt fuseblk' /proc/mounts
    echo there >/mnt/file
    fstrim -v /mnt
    # A block device's umount returns when the volume is closed, with the helper and without.
    umount -i /mnt
    fsck -T -t syncline -a "$DISK" | grep 'closed properly'
    has file || return 0
    file -m /usr/share/doc/syncline/examples/magic -s "$DISK" | grep 'Syncline volume, version 2, label "my disk", 16384 blocks'
}

units_are_understood() {
    set -e
    has systemd-analyze || return 0
    mkdir -p /tmp/units
    cp /usr/share/doc/syncline/examples/data.* /tmp/units/
    systemd-analyze verify --recursive-errors=no --man=no /tmp/units/data.mount /tmp/units/data.automount
}

# umount -a, then mount -a, as at a reboot. Only the entries of this root's own fstab exist here.
a_reboot() {
    set -e
    umount -a -t fuse.syncline
    if grep ' fuse.syncline ' /proc/mounts; then fail "still mounted"; fi
    # umount has waited: nobody holds the image, and it was closed properly.
    fsck -T -t syncline -a /root/disk.img | tee /tmp/fsck
    grep -q 'closed properly' /tmp/fsck
    mount -a
    [ "$(cat /data/note)" = 'here before the reboot' ]
    diff -r /usr/share/doc /data/doc
}

a_c_program_on_it() {
    set -e
    has cc || return 0
    cat >/data/durable.c <<'END'
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void)
{
	int file = open("/data/ledger", O_WRONLY | O_CREAT | O_APPEND, 0644);
	if (file < 0 || write(file, "42 coins\n", 9) != 9 || fsync(file) != 0)
		return perror("ledger"), 1;
	return close(file);
}
END
    cc -Wall -Werror -o /data/durable /data/durable.c
    /data/durable
    /data/durable
    [ "$(wc -l </data/ledger)" = 2 ]
    syncline stats /data >/tmp/stats
    grep -qi fsync /tmp/stats
}

a_python_script_on_it() {
    set -e
    has python3 || return 0
    cat >/data/script.py <<'END'
import os, pathlib
there = pathlib.Path("/data/letters")
there.mkdir()
for number in range(200):
    with open(there / f"{number}.new", "w") as file:
        file.write("word " * number)
        file.flush()
        os.fsync(file.fileno())
    os.rename(there / f"{number}.new", there / str(number))
assert sorted(os.listdir(there)) == sorted(str(number) for number in range(200))
END
    python3 /data/script.py
    [ "$(wc -w </data/letters/199)" = 199 ]
}

# The library, by the first program of its documentation.
a_program_with_the_library() {
    set -e
    cd /packages && apt-get install -y ./libsyncline1_*.deb ./libsyncline-dev_*.deb
    cd /root
    { has cc && has pkg-config; } || return 0
    awk '/^```c$/ { on = 1; next } /^```$/ { exit } on' /steps/c.md >ledger.c
    # shellcheck disable=SC2046 # words on purpose
    cc -Wall -Werror -o ledger ledger.c $(pkg-config --cflags --libs syncline)
    ./ledger ledger.img && ./ledger ledger.img | grep 'entries: 2'
    # shellcheck disable=SC2046
    cc -o ledger-static ledger.c $(pkg-config --cflags syncline) "$(pkg-config --variable=libdir syncline)/libsyncline.a" \
        -lgcc_s -lpthread -lm -ldl
    ./ledger-static ledger.img | grep 'entries: 3'
    if ldd ledger-static | grep libsyncline; then fail "linked with the shared library"; fi
    ldd ledger | grep libsyncline.so.1
}

sqlite_in_process() {
    set -e
    cd /packages && apt-get install -y ./libsqlite3-mod-syncline_*.deb
    has sqlite3 || return 0
    cd /root && syncline mkfs --size 64M db.img
    sqlite3 :memory: '.load libsyncline_sqlite' ".open 'file:/db?vfs=syncline&volume=db.img'" \
        'create table t(x); insert into t values (42);' 'select x from t;' | grep -x 42
}

the_benchmark_is_found() {
    set -e
    cd /packages && apt-get install -y --no-install-recommends ./syncline-bench_*.deb
    syncline bench --help >/tmp/help
    grep -qi usage /tmp/help
    if has man; then man -w syncline-bench; fi
}

# A package that is purged while its volume is mounted leaves the volume to its users.
purge_under_a_mount() {
    set -e
    syncline umount /data
    mount /data
    echo last >/data/last
    apt-get purge -y syncline syncline-bench
    [ "$(cat /data/last)" = last ]
    # Without the helper it is the kernel's own umount; the daemon closes the volume a moment later.
    umount /data
    cd /packages && apt-get install -y ./syncline_*.deb
    for _ in $(seq 100); do mount /data 2>/dev/null && break; sleep 0.1; done
    [ "$(cat /data/last)" = last ]
    syncline umount /data
    syncline check /root/disk.img
    sed -i '/syncline/d' /etc/fstab
    rmdir /data
}

step "the root has what a stranger's machine has" prepare
step "an earlier version is installed" install_old
step "it is upgraded under a mount" upgrade_under_a_mount
step "all of it is purged, and nothing is left" purge_all
step "apt install ./syncline_*.deb" install_command
step "commands, pages, completions are where they are looked for" everything_is_where_it_is_looked_for
step "a volume stands in /etc/fstab" a_volume_in_fstab
step "it is there after a reboot" a_reboot
step "udev and mount find a disk by its label" a_disk_by_its_label
step "the units of the examples are understood" units_are_understood
step "a C program syncs on it" a_c_program_on_it
step "a Python script works on it" a_python_script_on_it
step "it is there after another reboot" a_reboot
step "a C program has a volume inside of itself" a_program_with_the_library
step "SQLite finds the extension by its name" sqlite_in_process
step "syncline bench is found" the_benchmark_is_found
step "a purge under a mount leaves the volume to its users" purge_under_a_mount
step "all of it is purged again, and nothing is left" purge_all
echo "$passed passed, 0 failed"
