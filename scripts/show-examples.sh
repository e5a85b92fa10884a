#!/usr/bin/env bash
# Builds all examples of the library. Prints how many crates a program gets from the library without features, from the
# library with the feature `tower`, and from tower_governor.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --quiet --package spillgate --examples --all-features --locked

# Prints the number of crates of a program, counted by `cargo tree`. The program itself is not counted.
count() {
  cargo tree --quiet --manifest-path "$1/Cargo.toml" --edges normal --prefix none --target x86_64-unknown-linux-gnu |
    sed -e 's/ (\*)$//' -e '/^program /d' | sort --unique | wc -l
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
touch "$folder/src/lib.rs"
row() {
  printf '[package]\nname = "program"\nedition = "2024"\n[dependencies]\n%s\n' "$2" >"$folder/Cargo.toml"
  cp "$3" "$folder/Cargo.lock"
  printf '| %s | %s |\n' "$1" "$(count "$folder")"
}
printf '\n### What a program depends on\n\n| dependency | crates, itself included |\n|---|---|\n'
row '`spillgate`' "spillgate = { path = \"$PWD/crates/spillgate\" }" Cargo.lock
row '`spillgate` with `tower`' "spillgate = { path = \"$PWD/crates/spillgate\", features = [\"tower\"] }" Cargo.lock
row '`spillgate` with `axum`' "spillgate = { path = \"$PWD/crates/spillgate\", features = [\"axum\"] }" Cargo.lock
row '`tower_governor`' 'tower_governor = "0.8"' bench/Cargo.lock
