#!/usr/bin/env bash
# Counts the allocations per request for each interface of the server. The connection stays open, and has served some requests
# before. Servers with tonic and with axum that answer without deciding are measured too, in the same process.
# Prints markdown for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/.."

# A debug build makes the same allocations and compiles faster.
cargo run --quiet --manifest-path bench/Cargo.toml -p allocations
