#!/usr/bin/env bash
# A million random decisions of each algorithm through kernel, memory store and Redis: all operations, several hits,
# changed quotas, times on whole microseconds and between them, 500 requests in a pipeline. Any difference is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
DIFFERENTIAL_DECISIONS="${DIFFERENTIAL_DECISIONS:-1000000}" \
  cargo test --release --package spillgate-redis --locked --test scripts differential -- --nocapture
