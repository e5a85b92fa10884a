#!/usr/bin/env bash
# Redis is killed, frozen and failed over under load. Tests check that each request is answered by the store or by its
# policy, that none is charged twice, that the store recovers by itself, and that no more is admitted than the bound.
# Then tables: how long callers wait during a fault, and how soon the store decides again.
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
