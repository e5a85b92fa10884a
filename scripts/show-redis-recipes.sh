#!/usr/bin/env bash
# The limiters that people often build on Redis by hand, each made with spillgate on a real server and in memory.
# The tests check what each does, and that its known faults are absent. Prints a table of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "Limiters that people build on Redis by hand" --package spillgate-redis --test sources
