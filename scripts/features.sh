#!/usr/bin/env bash
# Checks that each feature of the library builds alone. Also checks that the library without features, together with all
# crates that it depends on, has at most as many crates as the variable `most` says.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests and the server use all features together. So only this loop finds a feature that does not build without another
# feature.
features=$(cargo metadata --format-version 1 --no-deps --locked | python3 -c '
import json, sys
package = next(package for package in json.load(sys.stdin)["packages"] if package["name"] == "spillgate")
print(*sorted(package["features"]))')
for set in "" $features "$features"; do
    echo "spillgate with features: ${set:-none}"
    cargo clippy --quiet --package spillgate --no-default-features --features "$set" --locked -- --deny warnings
done

# A program that depends on the library without features. Its dependencies have the versions of our lock file.
most=17
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
touch "$folder/src/lib.rs"
cat >"$folder/Cargo.toml" <<EOF
[package]
name = "bare"
edition = "2024"
[dependencies]
spillgate = { path = "$PWD/crates/spillgate" }
EOF
cp Cargo.lock "$folder"
tree=$(cargo tree --manifest-path "$folder/Cargo.toml" --edges normal --prefix none --target x86_64-unknown-linux-gnu)
crates=$(sed -e 's/ (\*)$//' -e '/^bare /d' <<<"$tree" | sort --unique)
count=$(wc -l <<<"$crates")
echo "a program that depends on spillgate without features gets $count crates, spillgate included"
if ((count > most)); then
    printf 'at most %s crates are allowed, but the program gets these:\n%s\n' "$most" "$crates" >&2
    exit 1
fi
