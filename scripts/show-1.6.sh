#!/usr/bin/env bash
# Measures spillgate against tonic and axum that answer the same message at once, one server core, in one run.
# Prints markdown for bench/RESULTS.md. Arguments go to the driver: scripts/show-1.6.sh grpc --repetitions 9
set -euo pipefail
cd "$(dirname "$0")/.."

command -v taskset >/dev/null || { echo "taskset is missing: install util-linux" >&2; exit 1; }
if [ "$(nproc)" -lt 2 ]; then
    echo "two cores are needed: one for the server, one for the client" >&2
    exit 1
fi

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml
cd bench
exec target/release/bench "$@"
