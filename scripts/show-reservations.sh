#!/usr/bin/env bash
# Shows that reservations keep their bound: a million random operations in memory and as many on Redis. The operations are
# reservations, commits, cancellations, drops, crashes, and settlements that are repeated or too late. The environment
# variable RESERVATIONS sets another number of operations.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
export RESERVATIONS="${RESERVATIONS:-1000000}"
tests_table "Reservations" --release --package spillgate-redis --test sources -- reservations
