#!/usr/bin/env bash
# Shows that the kernel (the pure decision code), the memory store and Redis give the same answers. For each algorithm,
# a million random requests go through all three. The requests use every operation, several limits, changed quotas, and
# times that are whole microseconds or fall between two microseconds. Redis gets the requests in pipelines of 500. Any
# difference is a failure. The environment variable DIFFERENTIAL_DECISIONS sets another number of requests.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
export DIFFERENTIAL_DECISIONS="${DIFFERENTIAL_DECISIONS:-1000000}"
tests_table "The same decisions by kernel, memory store and Redis" \
  --release --package spillgate-redis --test scripts -- differential
