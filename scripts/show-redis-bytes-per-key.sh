#!/usr/bin/env bash
# Measures how many bytes a key needs in Redis, for each algorithm, with 10,000 keys. The bytes of a key are the
# bytes of its name, of its state, and of the memory that Redis itself needs for it. There is a bound for the name, for
# the state, and for all bytes of a key together. The script fails if one of these bounds is exceeded.
# Prints markdown for bench/RESULTS.md. Arguments go to `on-redis bytes`: scripts/show-redis-bytes-per-key.sh --keys 100000
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
exec bench/target/release/on-redis bytes "$@"
