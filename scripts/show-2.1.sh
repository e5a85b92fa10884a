#!/usr/bin/env bash
# Nanoseconds a decision in process, beside governor and bare tables, in one run: uniform and Zipf(1.0), two threads;
# then the batch call beside the single one, uniform over 10 million keys.
# Prints markdown for bench/RESULTS.md. Arguments go to `inprocess speed`: scripts/show-2.1.sh --deny
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p inprocess
bench/target/release/inprocess speed "$@"
exec bench/target/release/inprocess batch
