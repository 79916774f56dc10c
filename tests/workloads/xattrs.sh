#!/usr/bin/env bash
# Extended attributes of every size, on files, directories and links; flags and errors; ACLs by setfacl.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need python3=python3 setfacl=acl setfattr=attr
make_volume 256

verify_again() {
    remount_volume
    python3 "$TOOLS/xattrs.py" verify "$MNT"
}

acls() {
    mkdir "$MNT/acl"
    cd "$MNT/acl"
    setfacl -d -m u:1234:rwx,g:99:r-x,m::rwx .
    setfacl -m u:1234:rwx .
    touch file
    mkdir sub
    getfacl -cp file sub . >"$WORK/acl.before"
    grep -q 'user:1234:rwx' "$WORK/acl.before" || fail "the default ACL was not inherited"
    setfacl -m u:nobody:r file
    chmod 640 file
    getfacl -cp file sub . >"$WORK/acl.before"
    cd /
    remount_volume
    cd "$MNT/acl"
    getfacl -cp file sub . | cmp - "$WORK/acl.before"
    cd /
}

run_case "all sizes" python3 "$TOOLS/xattrs.py" make "$MNT"
run_case "all sizes after a remount" verify_again
run_case "ACLs" acls
finish
