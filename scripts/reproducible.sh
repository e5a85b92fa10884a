#!/usr/bin/env bash
# Builds the server twice from the last commit, in two folders with names of different lengths, and compares the bytes:
# scripts/reproducible.sh. It fails if they differ. The two builds take twice as long as `cargo build --release`.
#
# docs/src/operating/deploy.md says what the bytes depend on.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/target/reproducible
rm -rf "$folder"
trap 'rm -rf "$folder"' EXIT

# build NAME: prints the path of the program.
build() {
  local sources=$folder/$1
  mkdir -p "$sources"
  git archive HEAD | tar -x -C "$sources"
  (
    cd "$sources"
    # Cargo would otherwise read the variable, and both builds would share one folder.
    unset CARGO_TARGET_DIR
    RUSTFLAGS="--remap-path-prefix=$sources=/spillgate --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
      cargo build --release --quiet --locked --package spillgate-server
  )
  echo "$sources/target/release/spillgate"
}

one=$(build one)
two=$(build the-second-folder)
sha256sum "$one" "$two"
if ! cmp "$one" "$two"; then
  echo "the two builds differ: look at the first different bytes with \`cmp -l\` and \`strings -t d\`" >&2
  exit 1
fi
echo "two builds in two folders have the same bytes"
