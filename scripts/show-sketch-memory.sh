#!/usr/bin/env bash
# Sends a billion different keys through a sketch of 64 MB, at a million keys in a virtual second, while 2,000 other keys ask
# five times as often as their limit allows. The command fails if the memory of the process grows, or if one of these 2,000
# keys is admitted above its bound. It takes about five minutes.
# Prints markdown for bench/RESULTS.md. Arguments go to `sketch keys`: scripts/show-sketch-memory.sh --keys 10000000
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p sketch
exec bench/target/release/sketch keys "$@"
