#!/bin/sh
# Builds the book into dist/book, and checks that every link of it leads somewhere.
#
# usage: scripts/book.sh
#
# mdBook is taken from the PATH if it is the version below, and otherwise built once into the target directory, without
# its server and its search. Where it cannot be had (no network), the pages are laid out and their links checked as far
# as that goes, and the script says that no book was built.
set -eu
cd "$(dirname "$0")/.."

version=0.5.4
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
laid_out=$target/book
built=dist/book

xtask() { $cargo run --quiet ${PROFILE:+--profile "$PROFILE"} --locked -p xtask --no-default-features -- "$@"; }

xtask book "$laid_out"
mdbook=$(command -v mdbook || true)
if [ -z "$mdbook" ] || [ "$("$mdbook" --version)" != "mdbook v$version" ]; then
    mdbook=$target/tools/bin/mdbook
    if ! [ -x "$mdbook" ]; then
        echo "book: building mdbook $version"
        $cargo install --quiet --root "$target/tools" --target-dir "$target/mdbook" --version "=$version" --locked \
            --no-default-features --debug mdbook || {
            echo "skipped: book: mdbook $version cannot be built here"
            exit 0
        }
        rm -rf "$target/mdbook"
    fi
fi
rm -rf "$built"
"$mdbook" build "$laid_out" --dest-dir "$(pwd)/$built"
xtask book-links "$built"
