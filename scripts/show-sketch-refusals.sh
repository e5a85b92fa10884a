#!/usr/bin/env bash
# Counts the wrong refusals of sketches that are too small on purpose, and compares them with the formula. The command
# fails if they are more than twice what the formula expects and three standard deviations, or if any key exceeds its limit.
# Prints markdown for bench/RESULTS.md. Arguments go to `sketch refusals`: scripts/show-sketch-refusals.sh --part 10
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p sketch
exec bench/target/release/sketch refusals "$@"
