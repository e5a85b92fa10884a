#!/usr/bin/env bash
# Runs the tests with a real Envoy. This Envoy asks spillgate about each request, and forwards allowed requests to a
# real server. The tests check allowed and refused requests, and header fields. They also kill spillgate, and check that
# Envoy then allows or refuses all requests, as its setting says. Prints a table of the tests, and Envoy's answers.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "spillgate behind Envoy" --package spillgate-server --test envoy
