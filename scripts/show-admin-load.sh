#!/usr/bin/env bash
# Measures how much longer decisions take while a client scrapes 100,000 metric series in a loop. There are 5,000
# decisions a second. For comparison, the script also measures while no client scrapes, and other processes use as much
# CPU time as the scraping. Each round compares the longest decision of the two measurements. The script fails if the
# median difference is more than 10 ms. Prints a table, and the server's memory.
# Arguments: the number of rounds, and the seconds of each measurement in a round.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml -p loadgen
exec python3 scripts/show_admin_load.py target/release/spillgate bench/target/release/loadgen "$@"
