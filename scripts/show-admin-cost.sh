#!/usr/bin/env bash
# Measures the server's CPU time per decision over gRPC while ten clients have an event stream of the admin listener open and
# read the overview every ten seconds, against the same server without such clients. Both servers have insight. Prints markdown
# for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml -p compare -p loadgen
cd bench
exec target/release/bench admin --repetitions 31 --seconds 1 --warmup 0.3 "$@"
