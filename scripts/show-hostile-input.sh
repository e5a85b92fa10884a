#!/usr/bin/env bash
# Runs the tests that send hostile input to the parsers and to the real server. Nothing may panic or hang, and the
# server must still serve honest clients. Each test takes as long as in CI. `make soak` takes longer. Prints a table of
# the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
tests_table "Hostile rules files" --package spillgate --test rules_hostile
tests_table "Hostile settings" --package spillgate-server --lib -- settings
tests_table "Random HTTP requests" --package spillgate-server --test http -- random
tests_table "Hostile gRPC clients" --package spillgate-server --test grpc -- hostile
tests_table "Hostile connections to the real server" --package spillgate-server --test hostile
