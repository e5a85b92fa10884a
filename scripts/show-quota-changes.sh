#!/usr/bin/env bash
# Several quotas on one state: two and three of them in any order, of every algorithm, in the kernel, in memory and on
# Redis, by one node and by two; a limit that is cut and restored by reloads; a fleet of 1000 and of 10 an hour, with the
# deny cache and without; and the microseconds of Redis that a question costs on a state that another quota charged. Fails
# if more is ever admitted than by the largest quota, or if a refusal takes Redis longer than the general script does.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
test=(cargo test --release --locked)
"${test[@]}" --package spillgate-core --all-features --test several_quotas --test late_requests
"${test[@]}" --package spillgate --test several_quotas
SEVERAL_QUOTAS_ASKED="${SEVERAL_QUOTAS_ASKED:-1000}" \
  "${test[@]}" --package spillgate-redis --test exactness several_quotas -- --nocapture
SEVERAL_LIMITS_ASKED="${SEVERAL_LIMITS_ASKED:-10000}" \
  "${test[@]}" --package spillgate-server --test store several_limits -- --nocapture
if [ "$(nproc)" -lt 2 ]; then
    echo "two cores are needed: one for the server, one for the client" >&2
    exit 1
fi
cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
bench/target/release/on-redis quotas "$@"
