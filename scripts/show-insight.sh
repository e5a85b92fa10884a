#!/usr/bin/env bash
# Runs traffic whose truth is known, and checks what insight says about it: verdicts, bursts, distinct callers, and the callers
# with the most units. Prints markdown for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
export INSIGHT=all
tests_table "What insight says about traffic whose truth is known" --release --package spillgate --test insight
