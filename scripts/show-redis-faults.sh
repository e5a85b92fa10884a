#!/usr/bin/env bash
# Shows what happens if Redis is killed, frozen or failed over under load. The tests check four things. Each request
# gets an answer, from the store or by `on_store_failure`. No request is charged twice. The store recovers by itself. No
# more is admitted than the bound allows. Then the script measures how long callers wait during a fault, and how soon
# the store decides again.
# Arguments go to `on-redis faults`: scripts/show-redis-faults.sh --repetitions 9
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "Faults of connections and servers" --package spillgate-redis --test transport
tests_table "Faults of clusters and sentinels" --package spillgate-redis --test topology
tests_table "The server while its store fails" --package spillgate-server --test store -- failing faults
cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
exec bench/target/release/on-redis faults "$@"
