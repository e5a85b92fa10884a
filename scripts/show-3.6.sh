#!/usr/bin/env bash
# Bytes a key in Redis, all in, for each algorithm at 10,000 keys; fails above the bounds of keys, names and states.
# Prints markdown for bench/RESULTS.md. Arguments go to `on-redis bytes`: scripts/show-3.6.sh --keys 100000
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
exec bench/target/release/on-redis bytes "$@"
