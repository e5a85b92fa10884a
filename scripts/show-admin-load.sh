#!/usr/bin/env bash
# Decisions at 5,000 a second while 100,000 series are scraped in a loop, beside processes that burn the same CPU time
# without scraping: the longest may take 10 ms more, by the median of the rounds. Prints the server's memory. Fails if
# that is not so. Arguments: how many rounds, and how many seconds of each kind in a round.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml -p loadgen
exec python3 scripts/show_admin_load.py target/release/spillgate bench/target/release/loadgen "$@"
