#!/bin/sh
# Makes RPM packages of what `make build tools man` has built: dist/rpm/*.rpm, as packaging/syncline.spec describes
# them. Needs rpmbuild (scripts/setup.sh rpm), and no root.
#
# usage: scripts/rpm.sh STAGE
#
# STAGE is a directory for rpmbuild. LIBDIR is where libraries lie on the machines they are for (/usr/lib64).
set -eu

stage=${1:?usage: scripts/rpm.sh STAGE}
root=$(realpath "$(dirname "$0")/..")
rm -rf "$stage"
mkdir -p "$stage"
stage=$(realpath "$stage")

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

if ! rpmbuild -bb --define "_topdir $stage" --define "_dbpath $stage/database" --define "source $root" \
    --define "version_built $version" --define "_libdir ${LIBDIR:-/usr/lib64}" --define "_licensedir /usr/share/licenses" \
    --define "_build_id_links none" --define "use_source_date_epoch_as_buildtime 1" --define "_buildhost localhost" \
    --define "clamp_mtime_to_source_date_epoch 1" "$root/packaging/syncline.spec" >"$stage/log" 2>&1; then
    tail -n 30 "$stage/log" >&2
    echo "rpm: rpmbuild failed; the whole log is $stage/log" >&2
    exit 1
fi
rm -rf "$root/dist/rpm"
mkdir -p "$root/dist/rpm"
mv "$stage"/RPMS/*/*.rpm "$root/dist/rpm/"
(cd "$root" && ls -l dist/rpm/*.rpm)
