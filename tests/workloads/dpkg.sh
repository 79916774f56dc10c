#!/usr/bin/env bash
# dpkg installs a package of many files under another root, upgrades it, verifies it, and removes it: dpkg writes each
# file beside its place, syncs it, and renames it.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need dpkg-deb=dpkg
make_volume 512
files=$(quick_or_full 500 5000)
root=$MNT/root

# build VERSION: a package whose content differs with its version.
build() {
    local tree=$WORK/package-$1 i
    mkdir -p "$tree/DEBIAN" "$tree/usr/share/many/deep/er" "$tree/etc"
    cat >"$tree/DEBIAN/control" <<CONTROL
Package: many-files
Version: $1
Architecture: all
Maintainer: nobody <nobody@localhost>
Description: a package of many files
CONTROL
    for ((i = 0; i < files; i++)); do
        # Sizes from some bytes to some pages.
        printf "%0$((1 + i * 37 % 9000))d" "$1$i" >"$tree/usr/share/many/$i"
    done
    ln -s ../many/1 "$tree/usr/share/many/deep/link"
    ln "$tree/usr/share/many/2" "$tree/usr/share/many/deep/er/hard"
    echo "version $1" >"$tree/etc/many.conf"
    dpkg-deb --root-owner-group -Zgzip -z1 --build "$tree" "$WORK/$1.deb" >/dev/null
}

dpkg_there() {
    dpkg --root="$root" --force-not-root --force-script-chrootless --force-depends --log=/dev/null "$@"
}

matches() {
    diff -r --no-dereference --exclude=DEBIAN "$WORK/package-$1/usr/share/many" "$root/usr/share/many"
    expect "" "$(dpkg_there --verify many-files)" "dpkg --verify"
    expect "$(stat -c %i "$root/usr/share/many/2")" "$(stat -c %i "$root/usr/share/many/deep/er/hard")" "hard link"
}

install_and_upgrade() {
    mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
    : >"$root/var/lib/dpkg/status"
    build 1
    build 2
    dpkg_there --install "$WORK/1.deb" >/dev/null
    matches 1
    dpkg_there --install "$WORK/2.deb" >/dev/null
    matches 2
    remount_volume
    matches 2
}

remove() {
    dpkg_there --purge many-files >/dev/null
    expect "" "$(find "$root/usr" -type f 2>/dev/null)" "files left"
}

downloaded() {
    local package=tzdata
    (cd "$WORK" && timeout 30 apt-get -qq download "$package" 2>&1) || { echo "apt-get cannot download $package here"; exit "$SKIP"; }
    dpkg_there --unpack "$WORK/$package"_*.deb >/dev/null
    remount_volume
    mkdir "$WORK/unpacked"
    dpkg-deb --extract "$WORK/$package"_*.deb "$WORK/unpacked"
    diff -r --no-dereference "$WORK/unpacked/usr/share/zoneinfo" "$root/usr/share/zoneinfo"
    expect "" "$(dpkg_there --verify "$package")" "dpkg --verify"
}

run_case "install and upgrade" install_and_upgrade
run_case "remove" remove
run_case "a package of the distribution" downloaded
finish
