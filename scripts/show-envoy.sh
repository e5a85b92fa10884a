#!/usr/bin/env bash
# A real Envoy in front of a real upstream. Prints a table of the tests, and what Envoy answered.
# The tests check allowed and refused requests, their header fields, and both failure modes after spillgate is killed.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "spillgate behind Envoy" --package spillgate-server --test envoy
