#!/usr/bin/env bash
# Allocations per request on each path of the server, over one kept connection, after it has served some requests. They
# are counted in one process with tonic and axum that answer without deciding. Prints markdown for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/.."

# A debug build makes the same allocations and compiles faster.
cargo run --quiet --manifest-path bench/Cargo.toml -p allocations
