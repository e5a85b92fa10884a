#!/usr/bin/env bash
# Measures decisions per second on Redis, and how many commands and bytes Redis receives for a decision. Three pairs are
# compared in one run:
# * the library, and redis-benchmark with the Lua script of the library;
# * spillgate over gRPC, and a server that calls this Lua script once for each request;
# * a key that is refused, and a key that is allowed. The run fails if Redis receives anything for a refusal.
# Prints markdown for bench/RESULTS.md. Arguments go to all three programs: scripts/show-redis-speed.sh --repetitions 9
set -euo pipefail
cd "$(dirname "$0")/.."

for program in taskset redis-server redis-benchmark; do
    command -v "$program" >/dev/null || { echo "$program is missing: scripts/setup.sh installs it" >&2; exit 1; }
done
if [ "$(nproc)" -lt 2 ]; then
    echo "two cores are needed: one for the server, one for the client" >&2
    exit 1
fi

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis -p compare -p limits -p loadgen
cd bench
target/release/on-redis speed "$@"
for concurrency in 64 256; do
    target/release/bench shared --concurrency "$concurrency" "$@"
done
target/release/on-redis cached "$@"
