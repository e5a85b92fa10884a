#!/usr/bin/env bash
# Shows that all clones of a layer share one limit: over many connections of HTTP/1 and HTTP/2 to a real axum server, and
# with forged X-Forwarded-For fields. Prints a table of the tests, and how many requests were admitted.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
tests_table "One axum server" --package spillgate --all-features --test tower -- real::
