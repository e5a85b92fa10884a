#!/usr/bin/env bash
# Builds the book of docs/ into target/book. If mdbook is not in target/, the script first installs mdbook there.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.5.4
mdbook=target/mdbook/bin/mdbook
mkdir -p target
# The lock keeps two builds from installing mdbook at the same time.
exec 9>target/mdbook.lock
flock 9
if [ "$("$mdbook" --version 2>/dev/null)" != "mdbook v$version" ]; then
  echo "docs: installing mdbook $version in target/mdbook; this takes about a minute" >&2
  # A debug build compiles sooner, and builds this book as well.
  cargo install --debug --locked --quiet mdbook --version "$version" --no-default-features --features search \
    --root target/mdbook
fi
"$mdbook" build docs
echo "docs: open target/book/index.html"
