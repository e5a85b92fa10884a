#!/usr/bin/env bash
# Measures the nanoseconds per decision of the library. In the same run, it measures governor (another rate limiter in
# Rust), and hash tables that decide nothing. Two threads use keys that are all equally frequent, and then keys with
# Zipf(1.0) frequencies. After that, the call that decides many keys is compared with the call that decides one key, on
# 10 million keys.
# Prints markdown for bench/RESULTS.md. Arguments go to `inprocess speed`. For example, --deny measures refusals.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p inprocess
bench/target/release/inprocess speed "$@"
exec bench/target/release/inprocess batch
