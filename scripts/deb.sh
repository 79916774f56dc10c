#!/bin/sh
# Makes Debian packages of what `make build tools man` has built: dist/deb/*.deb, with the line tables in packages of
# their own (-dbgsym). The packages' description is packaging/debian; debhelper does the rest, in a directory of its
# own, so that nothing of it is left in the tree.
#
# usage: scripts/deb.sh RELEASE
#
# RELEASE is cargo's directory of optimised programs. Needs debhelper (scripts/setup.sh deb), and no root.
set -eu

release=$(realpath "${1:?usage: scripts/deb.sh RELEASE}")
root=$(realpath "$(dirname "$0")/..")
stage=$(dirname "$release")/deb
tree=$stage/syncline

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
packaged=$(dpkg-parsechangelog -l "$root/packaging/debian/changelog" -S Version)
if [ "${packaged%-*}" != "$version" ]; then
    echo "deb: packaging/debian/changelog is of version $packaged, the workspace of $version; add an entry" >&2
    exit 1
fi

rm -rf "$stage"
mkdir -p "$tree" "$stage/bin"
cp -r "$root/packaging/debian" "$tree/debian"
cp -r "$root/CHANGELOG.md" "$root/README.md" "$root/docs" "$root/include" "$tree/"
for file in syncline syncline-bench syncline-demo libsyncline_sqlite.so libsyncline/libsyncline.so.1; do
    cp "$release/$file" "$stage/bin/"
done
chmod -x "$stage"/bin/*.so*

# The same sources make the same packages: the time is that of the last commit, or of the changelog.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || true)}
[ -n "$SOURCE_DATE_EPOCH" ] || unset SOURCE_DATE_EPOCH
[ -z "${SOURCE_DATE_EPOCH:-}" ] || export SOURCE_DATE_EPOCH

log=$stage/log
if ! (cd "$tree" && SOURCE=$root BUILT=$stage/bin dpkg-buildpackage --build=binary --no-sign) >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "deb: dpkg-buildpackage failed; the whole log is $log" >&2
    exit 1
fi
grep -E '^dpkg-(shlibdeps|gensymbols|gencontrol): (warning|error)' "$log" >&2 || true
rm -rf "$root/dist/deb"
mkdir -p "$root/dist/deb"
mv "$stage"/*.deb "$stage"/*.buildinfo "$stage"/*.changes "$root/dist/deb/"
(cd "$root" && ls -l dist/deb/*.deb)
