#!/usr/bin/env bash
# Measures how many bytes a key needs in Redis, for each algorithm, with 10,000 keys. The bytes include the name, the
# state, and the memory that Redis itself needs for a key. The script fails if a key, a name or a state is larger than
# its bound.
# Prints markdown for bench/RESULTS.md. Arguments go to `on-redis bytes`: scripts/show-redis-bytes-per-key.sh --keys 100000
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
exec bench/target/release/on-redis bytes "$@"
