#!/usr/bin/env bash
# People often build some limiters on Redis by hand. Here each of these limiters is made with spillgate, on a real Redis
# and in memory. The tests check what each limiter does, and that the known faults of the original do not occur. Prints
# a table of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "Limiters that people build on Redis by hand" --package spillgate-redis --test sources
