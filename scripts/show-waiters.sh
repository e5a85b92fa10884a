#!/usr/bin/env bash
# Shows that 10,000 callers of one program go in the order in which they came. In one test 3,000 of them go away at random, in
# another one a third of them have deadlines. Prints how many turns were lost, and how much memory a waiting caller needs.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "10,000 callers in one queue" --release --package spillgate --all-features --test waiters
tests_table "Callers that go away" --release --package spillgate --all-features --test pace -- cancelled_turns
