#!/usr/bin/env bash
# Shows what happens if several quotas (limits) use one state (the counts of one key). In the first part, tests send
# requests on one state, under two or three quotas that change at random, with every algorithm. The kernel (the pure
# decision code), the memory store, Redis, one server and two servers decide such requests. In one test, reloads cut a
# limit and restore it. In another test, one server has a limit of 1000 an hour, and a second server has a limit of 10
# an hour for the same key. This test runs with the deny cache (it repeats refusals without asking Redis) and without
# it. The first part fails if more is admitted than the largest quota allows.
# The second part measures how many microseconds Redis needs for a request on a state that another quota has charged.
# Redis has a short script for usual requests, and a general script for all requests. The second part fails if a refusal
# takes longer than a request that runs only the general script.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
export SEVERAL_QUOTAS_ASKED="${SEVERAL_QUOTAS_ASKED:-1000}" SEVERAL_LIMITS_ASKED="${SEVERAL_LIMITS_ASKED:-10000}"
tests_table "Several quotas in the kernel" \
  --release --package spillgate-core --all-features --test several_quotas --test late_requests
tests_table "Several quotas in memory" --release --package spillgate --test several_quotas
tests_table "Several quotas on Redis" --release --package spillgate-redis --test exactness -- several_quotas
tests_table "Several limits at two servers" --release --package spillgate-server --test store -- several_limits
if [ "$(nproc)" -lt 2 ]; then
    echo "two cores are needed: one for the server, one for the client" >&2
    exit 1
fi
cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
bench/target/release/on-redis quotas "$@"
