#!/usr/bin/env bash
# Nanoseconds per decision in process, against governor and against tables that decide nothing, in one run.
# Two threads, uniform and Zipf(1.0) keys; then the batch call against the single call, uniform over 10 million keys.
# Prints markdown for bench/RESULTS.md. Arguments go to `inprocess speed`: scripts/show-library-speed.sh --deny
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p inprocess
bench/target/release/inprocess speed "$@"
exec bench/target/release/inprocess batch
