#!/usr/bin/env bash
# Runs the tests with an independent client: a Python program that shares no code with spillgate. The program calls the
# real server, with published gRPC stubs. Prints a table of the tests, and a line for each case that a test checked.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "Answers to an independent Python client" --package spillgate-server --test python_client
