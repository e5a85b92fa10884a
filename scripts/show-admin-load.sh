#!/usr/bin/env bash
# Measures how much longer decisions take while a client scrapes 100,000 metric series in a loop. There are 5,000
# decisions a second. For comparison, other processes use as much CPU time without scraping. The script fails if
# scraping makes the longest decision more than 10 ms longer, in the median of the rounds. Prints a table, and the
# server's memory.
# Arguments: the number of rounds, and the seconds of each measurement in a round.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml -p loadgen
exec python3 scripts/show_admin_load.py target/release/spillgate bench/target/release/loadgen "$@"
