#!/usr/bin/env bash
# git: init, commits, gc, fsck, clone, on a tree of some thousand files; all again after a remount.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need git=git
make_volume 1024
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.c GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.c
commits=$(quick_or_full 5 50)

history() {
    git -c init.defaultBranch=main init -q "$MNT/repo"
    cd "$MNT/repo"
    git config core.fsync all
    git config gc.auto 0
    cp -r "$(quick_or_full /usr/include/linux /usr/include)" tree
    # git keeps no empty directories.
    find tree -type d -empty -delete
    git add -A
    git commit -qm 0
    local i
    for ((i = 1; i <= commits; i++)); do
        find tree -type f -name "*$((i % 10)).h" -exec sed -i "1i /* $i */" {} +
        echo "$i" >counter
        git add -A
        git commit -qm "$i"
        git tag "t$i"
    done
    git branch side t1
    git mv counter moved
    git commit -qm moved
    git fsck --full --strict
    expect "" "$(git status --porcelain)" "status"
    git rev-parse HEAD >"$WORK/head"
    git rev-list --objects --all | sort >"$WORK/objects"
}

collect() {
    cd "$MNT/repo"
    git reflog expire --expire=now --all
    git gc -q --aggressive --prune=now
    git fsck --full --strict
    git rev-list --objects --all | sort | cmp - "$WORK/objects"
    git count-objects | grep -q '^0 objects'
}

clones() {
    git clone -q "$MNT/repo" "$MNT/clone"
    git clone -q --no-local "$MNT/repo" "$MNT/copy"
    local other
    for other in clone copy; do
        git -C "$MNT/$other" fsck --full --strict
        diff -r --exclude=.git "$MNT/repo" "$MNT/$other"
        expect "$(cat "$WORK/head")" "$(git -C "$MNT/$other" rev-parse HEAD)" "head of $other"
    done
}

after_remount() {
    cd /
    manifest "$MNT" >"$WORK/before"
    remount_volume
    manifest "$MNT" >"$WORK/after"
    diff "$WORK/before" "$WORK/after"
    local repo
    for repo in repo clone copy; do
        git -C "$MNT/$repo" fsck --full --strict
        expect "" "$(git -C "$MNT/$repo" status --porcelain)" "status of $repo"
    done
}

run_case "init, add, commit, fsck" history
run_case "gc" collect
run_case "clone" clones
run_case "fsck after a remount" after_remount
finish
