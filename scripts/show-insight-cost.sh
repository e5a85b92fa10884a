#!/usr/bin/env bash
# Measures the server's CPU time per decision over gRPC with insight, against the same server without it: with a million callers,
# and with 1,000 callers nearly all of whose requests are refused. Prints markdown for bench/RESULTS.md.
#
# Both servers count their metrics, which cannot be switched off. show-no-regression.sh measures a server with metrics against one of
# an earlier commit, which had fewer of them.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml -p compare -p loadgen
cd bench
exec target/release/bench insight insight-refused --repetitions 31 --seconds 1 --warmup 0.3 "$@"
