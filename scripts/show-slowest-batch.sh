#!/usr/bin/env bash
# Measures how long the slowest batch of decisions takes, while a store grows to 20 million keys, and while these keys
# expire. For comparison, the growth is also measured with governor (another rate limiter in Rust).
# Prints markdown for bench/RESULTS.md. Arguments go to `inprocess growth`: scripts/show-slowest-batch.sh --keys 5000000
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p inprocess
exec bench/target/release/inprocess growth "$@"
