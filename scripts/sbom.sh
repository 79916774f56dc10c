#!/bin/sh
# The bill of materials of what ships, as SPDX 2.3 in JSON: dist/syncline-VERSION.spdx.json. cargo-sbom writes it from
# Cargo.lock, with the licence of each crate.
#
# usage: scripts/sbom.sh TOOLS
#
# TOOLS is a directory to which cargo-sbom and the validator of SPDX are installed where they are missing. Without the
# validator (it needs Python) it says so.
set -eu

root=$(realpath "$(dirname "$0")/..")
tools=$(realpath -m "${1:?usage: scripts/sbom.sh TOOLS}")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
into=$root/dist/syncline-$version.spdx.json

[ -x "$tools/bin/cargo-sbom" ] || ${CARGO:-cargo} install --quiet --locked --root "$tools" cargo-sbom@0.10.0
mkdir -p "$root/dist"
"$tools/bin/cargo-sbom" --project-directory "$root" --output-format spdx_json_2_3 >"$into.new"
mv "$into.new" "$into"
ls -l "$into"

if ! [ -x "$tools/spdx/bin/pyspdxtools" ]; then
    if ! { python3 -m venv "$tools/spdx" && "$tools/spdx/bin/pip" --quiet --disable-pip-version-check install 'spdx-tools>=0.8,<0.9'; }; then
        echo "sbom: spdx-tools cannot be installed; the file is not validated" >&2
        exit 0
    fi
fi
"$tools/spdx/bin/pyspdxtools" --infile "$into" && echo "sbom: valid SPDX"
