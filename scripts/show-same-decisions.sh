#!/usr/bin/env bash
# The kernel, the memory store and Redis must give the same answers. A million random requests of each algorithm go through
# all three: every operation, several limits, changed quotas, times on whole microseconds and between them, and 500
# requests in a pipeline. Any difference is a failure. DIFFERENTIAL_DECISIONS sets another number.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
export DIFFERENTIAL_DECISIONS="${DIFFERENTIAL_DECISIONS:-1000000}"
tests_table "The same decisions by kernel, memory store and Redis" \
  --release --package spillgate-redis --test scripts -- differential
