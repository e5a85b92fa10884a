#!/usr/bin/env bash
# Counts the allocations of a request on each path of the real server, in steady state over one kept connection,
# beside tonic and axum that answer the same message at once, in one process. Prints markdown for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/.."

# Debug builds count alike and are built sooner.
cargo run --quiet --manifest-path bench/Cargo.toml -p allocations
