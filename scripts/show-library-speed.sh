#!/usr/bin/env bash
# Measures nanoseconds per decision in process, against governor and against tables that decide nothing, in one run. Two threads
# use uniform keys, and then Zipf(1.0) keys. After that, the batch call is compared with the single call, on 10 million uniform
# keys.
# Prints markdown for bench/RESULTS.md. Arguments go to `inprocess speed`: scripts/show-library-speed.sh --deny
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p inprocess
bench/target/release/inprocess speed "$@"
exec bench/target/release/inprocess batch
