#!/usr/bin/env bash
# Measures the speed of sketches: the library against `Rate::observe` of pingora-limits (which counts, but does not limit) at
# equal bytes, and against the exact store; then the server with sketches against the server with exact states.
# Prints markdown for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml -p inprocess -p compare -p loadgen
cd bench
for keys in 1000 1000000 10000000; do
    target/release/inprocess speed --keys "$keys" --cases pingora-rate sketch sketch-windows token-bucket
done
target/release/bench sketch --rules rules-shared.yaml
exec target/release/bench sketch --sketch-rules rules-sketch-windows.yaml
