#!/usr/bin/env bash
# Shows that the deny cache refuses correctly and fast, without asking Redis. The first part makes 100,000 random
# requests, with several limits and costs, through a real Redis. Each answer of the cache is compared with the kernel's
# decision on the states that Redis has at that time. Any difference is a failure. The second part measures decisions
# per second: a refused hot key against an allowed key, first with one limit, then with a second limit that other
# requests take from. The script fails if the refused key is not at least 20 times as fast as the allowed key, or if
# Redis receives a command for a refusal. Arguments go to the second part.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
export DENY_CACHE_REQUESTS="${DENY_CACHE_REQUESTS:-100000}"
tests_table "Answers of the deny cache against the kernel" \
  --release --package spillgate-redis --test scripts -- repeated
if [ "$(nproc)" -lt 2 ]; then
    echo "two cores are needed: one for the server, one for the client" >&2
    exit 1
fi
cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
bench/target/release/on-redis cached "$@"
