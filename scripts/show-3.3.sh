#!/usr/bin/env bash
# Every fault, on real servers that the tests start: each request answered by decision or policy, none lost, none charged
# twice, recovery by itself, and never more admitted than the fault's bound. Then what being killed, frozen and
# failed over costs those who ask meanwhile, and how soon the store decides again, as markdown for bench/RESULTS.md.
# Arguments go to `on-redis faults`: scripts/show-3.3.sh --repetitions 9
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cargo test --package spillgate-redis --locked --test transport --test topology
cargo test --package spillgate-server --locked --test store -- failing faults
cargo build --release --quiet --manifest-path bench/Cargo.toml -p on-redis
exec bench/target/release/on-redis faults "$@"
