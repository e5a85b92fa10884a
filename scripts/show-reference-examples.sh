#!/usr/bin/env bash
# Shows that spillgate answers the examples in the documentation of Envoy's reference server as that server does. Also shows that
# the error of each broken rules file has a line and says how to fix it. Prints a table of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
tests_table "Examples of the reference server" --package spillgate --test rules_reference
files=(crates/spillgate/tests/broken/*.yaml)
tests_table "Errors in rules files (${#files[@]} broken files)" --package spillgate --test rules_broken
