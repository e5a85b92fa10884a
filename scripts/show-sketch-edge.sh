#!/usr/bin/env bash
# Shows what is admitted at the edge of two windows: by a well-known design that begins with an empty Bloom filter and an empty
# Count-Min sketch in each window, by spillgate's sketch, and by spillgate's exact store.
# Prints markdown for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p sketch
exec bench/target/release/sketch edge
