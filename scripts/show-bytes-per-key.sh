#!/usr/bin/env bash
# Measures bytes per key of spillgate and of governor (another rate limiter in Rust), at 1 to 20 million keys. Each
# measurement runs in a new process.
# Prints markdown for bench/RESULTS.md. Arguments go to `inprocess memory`: scripts/show-bytes-per-key.sh --keys 1000000
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p inprocess
exec bench/target/release/inprocess memory "$@"
