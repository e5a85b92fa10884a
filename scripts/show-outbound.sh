#!/usr/bin/env bash
# Shows that eight tasks in two processes on one Redis keep the limit of a server that counts for itself: first a known limit,
# then a limit that they learn from its answers, and that is halved and restored meanwhile. OUTBOUND_SECONDS sets how long each
# test runs.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
export OUTBOUND_SECONDS="${OUTBOUND_SECONDS:-60}"
tests_table "Calls to another service" --release --package spillgate --all-features --test outbound -- eight_tasks
