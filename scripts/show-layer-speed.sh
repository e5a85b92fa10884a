#!/usr/bin/env bash
# Measures the CPU time that the layer adds to a request. In the same run, it measures tower_governor, with the same key.
# First with one thread and 10,000 addresses, which fit into the caches of a processor. Then with two threads and a
# million addresses, which do not. Prints markdown for bench/RESULTS.md. Arguments go to the program `layer`.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet --manifest-path bench/Cargo.toml -p layer
bench/target/release/layer --threads 1 "$@"
exec bench/target/release/layer --threads 2 --addresses 1000000 --requests 1000000 "$@"
