#!/usr/bin/env bash
# Checks `spillgate` without features, with each feature alone, and with all. `scripts/features.sh all` does so with every
# crate. Also checks that a program that depends on `spillgate` without features gets at most `$most` crates, `spillgate`
# included.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests and the server use all features together. So only this loop finds a feature that does not build without another
# feature. Users choose the features of `spillgate`, and these choose the features of the other crates. Tests are not
# compiled: they enable every feature of their crate.
sets=$(cargo metadata --format-version 1 --no-deps --locked | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    features = sorted(package["features"])
    if package["name"] == "spillgate" or "all" in sys.argv:
        print(*sorted({" ".join([package["name"], *some]) for some in [[], *([one] for one in features), features]}), sep="\n")' "$@")
while read -r package set; do
    echo "$package with features: ${set:-none}"
    cargo clippy --quiet --package "$package" --no-default-features --features "$set" --locked -- --deny warnings </dev/null
done <<<"$sets"

# A program that depends on `spillgate` without features. Its dependencies have the versions of our lock file.
most=18
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
