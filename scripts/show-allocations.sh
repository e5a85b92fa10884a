#!/usr/bin/env bash
# Counts the allocations per request for each interface of the server. The requests come on a connection that is already
# open and has served some requests. For comparison, the script also measures a server with tonic and a server with
# axum. These two servers answer without deciding.
# Prints markdown for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/.."

# A debug build makes the same allocations and compiles faster.
cargo run --quiet --manifest-path bench/Cargo.toml -p allocations
