#!/usr/bin/env bash
# People often build limiters on Redis by hand. Each test makes one of these limiters with spillgate, on a real Redis
# and in memory. The test checks what the limiter does, and that the known faults of the hand-made limiter do not occur.
# Prints a table of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "Limiters that people build on Redis by hand" --package spillgate-redis --test sources
