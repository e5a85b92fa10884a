#!/usr/bin/env bash
# Exactly the limit on one key: four processes of 64 tasks by the library, two servers by gRPC, a cluster of six nodes.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cargo test --package spillgate-redis --locked --test exactness
