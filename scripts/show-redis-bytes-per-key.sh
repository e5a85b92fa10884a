#!/usr/bin/env bash
# Measures how many bytes a counter needs in Redis, for each algorithm, with 10,000 counters. In Redis, each counter is
# a key. Three parts need memory: the name of the key, the state (the value of the key), and the data that Redis itself
# adds. There is a bound for the name, for the state, and for the three parts together. The script fails if one of these
# bounds is exceeded.
# Prints markdown for bench/RESULTS.md. Arguments go to `on-redis bytes`: scripts/show-redis-bytes-per-key.sh --keys 100000
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
exec bench/target/release/on-redis bytes "$@"
