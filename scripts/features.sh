#!/usr/bin/env bash
# Each feature of the library builds alone, and a bare dependency stays light.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests and the server switch every feature on, so only this notices one that needs another.
features=$(cargo metadata --format-version 1 --no-deps --locked | python3 -c '
import json, sys
package = next(package for package in json.load(sys.stdin)["packages"] if package["name"] == "spillgate")
print(*sorted(package["features"]))')
for set in "" $features "$features"; do
    echo "spillgate with features: ${set:-none}"
    cargo clippy --quiet --package spillgate --no-default-features --features "$set" --locked -- --deny warnings
done

# What a program gets that names the library and no feature. The versions are those of our lock file.
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
echo "a bare dependency on spillgate is $count crates, itself included"
if ((count > most)); then
    printf 'at most %s are allowed:\n%s\n' "$most" "$crates" >&2
    exit 1
fi
