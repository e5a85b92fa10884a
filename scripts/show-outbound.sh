#!/usr/bin/env bash
# Shows that a program keeps the limit of another service. Eight tasks in two processes on one Redis call a test server that
# has a limit of its own. In the first test they know the limit. In the second test they learn it from the answers of the
# server, and the server halves and restores it during the test. OUTBOUND_SECONDS sets how long each test runs.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
export OUTBOUND_SECONDS="${OUTBOUND_SECONDS:-60}"
tests_table "Calls to another service" --release --package spillgate --all-features --test outbound -- eight_tasks
