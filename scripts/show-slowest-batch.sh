#!/usr/bin/env bash
# Measures the slowest batch of decisions while a store grows to 20 million keys, and while these keys expire. The growth is also
# measured with governor.
# Prints markdown for bench/RESULTS.md. Arguments go to `inprocess growth`: scripts/show-slowest-batch.sh --keys 5000000
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p inprocess
exec bench/target/release/inprocess growth "$@"
