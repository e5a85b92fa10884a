#!/usr/bin/env bash
# Refusals that the deny cache repeats. First 100,000 random requests, with several limits and costs, through a real Redis:
# each answer of the cache beside the kernel's on the states that Redis has, at the answer's own time; any difference is a
# failure. Then how fast a refused hot key is answered, alone and beside a limit that is taken from all the time, and an
# allowed one: fails below 20 times as fast, or if Redis is asked for it. Arguments go to the second part.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
DENY_CACHE_REQUESTS="${DENY_CACHE_REQUESTS:-100000}" \
  cargo test --release --package spillgate-redis --locked --test scripts repeated -- --nocapture
if [ "$(nproc)" -lt 2 ]; then
    echo "two cores are needed: one for the server, one for the client" >&2
    exit 1
fi
cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
bench/target/release/on-redis cached "$@"
