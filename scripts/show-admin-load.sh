#!/usr/bin/env bash
# 5,000 decisions a second while a client scrapes 100,000 metric series in a loop, against other processes that use as much
# CPU time without scraping. By the median of the rounds, the longest decision may take 10 ms more; otherwise it fails.
# Prints a table with the server's memory. Arguments: the number of rounds, and the seconds of each kind in a round.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml -p loadgen
exec python3 scripts/show_admin_load.py target/release/spillgate bench/target/release/loadgen "$@"
