#!/bin/sh
# Installs the Debian or Ubuntu packages that a make target needs and the machine lacks, if the user says so.
#
# usage: scripts/setup.sh [--yes] TARGET
#
# TARGET is build, test, test-python, wheel-arm64, test-full, fuzz, bench, bench-replica, demo, deb, test-deb or rpm.
#
# It asks on a terminal. With --yes, SETUP=yes or CI=true it does not ask; where nobody can be asked and nobody has said
# so, it says what to install and goes on.
#
# A linker is necessary, so that its absence ends the target. Everything else only makes tests skip, with a sentence
# each, so a machine without root or without a network is told what is missing and goes on.
set -eu

agreed=no
if [ "${SETUP:-}" = yes ] || [ "${CI:-}" = true ] || [ "${CI:-}" = 1 ]; then agreed=yes; fi
if [ "${1:-}" = --yes ]; then
    agreed=yes
    shift
fi
target=${1:?usage: scripts/setup.sh [--yes] TARGET}

# command=package pairs; a command that is found needs no package.
required="cc=gcc"
case $target in
    build) wanted="" ;;
    fuzz) wanted="c++=g++" ;;
    test-python) wanted="python3=python3" ;;
    wheel-arm64) wanted="python3=python3 aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu qemu-aarch64=qemu-user" ;;
    # Not Go, which is large: the example in Go is skipped without it, by name.
    test)
        wanted="fusermount3=fuse3 losetup=util-linux mkfs.ext4=e2fsprogs sqlite3=sqlite3 python3=python3 c++=g++
            valgrind=valgrind pkg-config=pkg-config git=git make=make mandoc=mandoc shellcheck=shellcheck dh=debhelper
            dpkg-buildpackage=dpkg-dev lintian=lintian man=man-db file=file udevadm=udev
            systemctl=systemd nbdkit=nbdkit qemu-nbd=qemu-utils zsh=zsh fish=fish"
        ;;
    bench)
        wanted="fusermount3=fuse3 losetup=util-linux mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs fio=fio
            fs_mark=fsmark dbench=dbench sqlite3=sqlite3 pg_ctlcluster=postgresql"
        ;;
    # versitygw and Litestream are Go's to install.
    bench-replica)
        wanted="fusermount3=fuse3 losetup=util-linux mkfs.ext4=e2fsprogs python3=python3 nbdkit=nbdkit nbdfuse=libnbd-bin
            ceph-mon=ceph-mon ceph-mgr=ceph-mgr ceph-osd=ceph-osd rbd=ceph-common"
        ;;
    deb) wanted="dh=debhelper dpkg-buildpackage=dpkg-dev lintian=lintian" ;;
    rpm) wanted="rpmbuild=rpm" ;;
    test-deb) wanted="debootstrap=debootstrap unshare=util-linux buildah=buildah systemctl=systemd" ;;
    demo) wanted="fusermount3=fuse3 sqlite3=sqlite3" ;;
    test-full)
        wanted="fusermount3=fuse3 losetup=util-linux python3=python3 setfacl=acl setfattr=attr sqlite3=sqlite3 fio=fio dbench=dbench
            fs_mark=fsmark rsync=rsync git=git mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs mkfs.ext4=e2fsprogs
            pg_ctlcluster=postgresql nbdkit=nbdkit qemu-nbd=qemu-utils ceph-mon=ceph-mon ceph-mgr=ceph-mgr ceph-osd=ceph-osd
            rbd=ceph-common radosgw=radosgw faketime=faketime"
        ;;
    *)
        echo "setup: no such target: $target" >&2
        exit 2
        ;;
esac

PATH=$PATH:/usr/sbin:/sbin

missing() {
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null 2>&1 || echo "${pair#*=}"
    done | sort -u
}

# Debian's python3 makes environments only with another package, which brings no command.
missing_venv() {
    case $target in test | test-python | wheel-arm64) ;; *) return ;; esac
    command -v python3 >/dev/null 2>&1 && python3 -c 'import ensurepip' >/dev/null 2>&1 || echo python3-venv
}

# Whether to install: agreed to before, or now, by somebody at a terminal.
may_install() {
    [ "$agreed" = yes ] && return 0
    [ -t 0 ] && [ -t 2 ] || return 1
    printf 'setup: %s needs %s. Install with apt-get%s? [y/N] ' "$target" "$packages" \
        "$([ "$(id -u)" = 0 ] || echo " (by sudo)")" >&2
    read -r answer || return 1
    case $answer in [yY] | [yY][eE][sS]) return 0 ;; esac
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# shellcheck disable=SC2086 # the lists are words on purpose
packages=$({ missing $required $wanted; missing_venv; } | tr '\n' ' ')
packages=${packages% }
if [ -n "$packages" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: no apt-get here; please install what $target needs: $packages" >&2
    elif ! may_install; then
        echo "setup: not installed, though $target needs it: $packages (apt-get install $packages, or SETUP=yes make ...)" >&2
    else
        echo "setup: installing what $target needs: $packages"
        as_root apt-get -qq update >/dev/null 2>&1 || true
        # One by one: a package that this release lacks must not keep the others away.
        # shellcheck disable=SC2086 # as above
        for package in $packages; do
            # A compiler for another machine is of no use without its C library.
            case $package in gcc-aarch64-linux-gnu) package="$package libc6-dev-arm64-cross" ;; esac
            as_root env DEBIAN_FRONTEND=noninteractive \
                apt-get -qq install -y --no-install-recommends $package >/dev/null 2>&1 ||
                echo "setup: $package could not be installed (needs root or sudo, and a package mirror)" >&2
        done
    fi
fi

# Prometheus' package starts a server wherever it is installed. The tests want one program of it, and take that out.
promtool=${CARGO_TARGET_DIR:-target}/tools/bin/promtool
if [ "$target" = test ] && [ "$agreed" = yes ] && ! [ -x "$promtool" ] && ! command -v promtool >/dev/null 2>&1 &&
    command -v dpkg-deb >/dev/null 2>&1; then
    echo "setup: taking promtool out of the package prometheus"
    work=$(mktemp -d)
    mkdir -p "${promtool%/*}"
    # Root's downloads belong to a user of apt's own.
    chmod 0777 "$work"
    (cd "$work" && apt-get -qq download prometheus >/dev/null 2>&1 && dpkg-deb -x prometheus_*.deb .) &&
        install -m 0755 "$work/usr/bin/promtool" "$promtool" ||
        echo "setup: promtool could not be had; its tests are skipped" >&2
    rm -rf "$work"
fi

# Node's driver of SQLite, where Node is: compiled where there is none ready for it, which takes a minute.
node=${CARGO_TARGET_DIR:-target}/tools/node
if [ "$target" = test ] && [ "$agreed" = yes ] && ! [ -d "$node/node_modules/better-sqlite3" ] && command -v npm >/dev/null 2>&1; then
    echo "setup: installing better-sqlite3 of Node"
    mkdir -p "$node"
    (cd "$node" && timeout 600 npm install --silent --no-save --no-audit --no-fund better-sqlite3@12 >/dev/null 2>&1) || {
        echo "setup: better-sqlite3 could not be had; its test is skipped" >&2
        rm -rf "$node"
    }
fi

# shellcheck disable=SC2086
if [ -n "$(missing $required)" ]; then
    echo "setup: no C compiler to link with; install gcc and try again" >&2
    exit 1
fi
if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: no Rust toolchain; install one (https://rustup.rs) and try again" >&2
    exit 1
fi
