#!/usr/bin/env bash
# The worked examples of Envoy's reference server get the same answers here, and each broken rules file is reported with its
# line and how to fix it. Prints a table of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
tests_table "Examples of the reference server" --package spillgate --test rules_reference
files=(crates/spillgate/tests/broken/*.yaml)
tests_table "Errors in rules files (${#files[@]} broken files)" --package spillgate --test rules_broken
