#!/usr/bin/env bash
# Shows that the deny cache refuses correctly and fast. This cache repeats refusals without asking Redis. The first part
# makes 100,000 random requests, with several limits and costs, through a real Redis. It compares each answer of the
# cache with the decision of the kernel (the pure decision code) on the states that Redis has at that time. Any
# difference is a failure. The second part measures decisions per second of a key that is refused, and of a key that is
# allowed. There are two comparisons. In one of them, each request has one limit. In the other, each request has a further
# limit, and other requests take from this limit too. In both comparisons, the refused key must have at least 20 times as
# many decisions per second as the allowed key, and Redis must receive no command for a refusal. If not, the script
# fails.
# Arguments go to the second part.
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
