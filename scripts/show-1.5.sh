#!/usr/bin/env bash
# Hostile input at every parser and at the real server, for as long as CI takes; `make soak` takes longer.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --package spillgate --locked --test rules_hostile
cargo test --package spillgate-server --locked --lib settings
cargo test --package spillgate-server --locked --test http random
cargo test --package spillgate-server --locked --test grpc hostile
cargo test --package spillgate-server --locked --test hostile
