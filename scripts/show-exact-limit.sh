#!/usr/bin/env bash
# Shows that exactly the limit is admitted on one key, even if many clients ask at once. One test uses the library, in
# four processes with 64 tasks each. One test uses two servers over gRPC. Two tests use a cluster of six nodes; in one
# of them, a request has limits in several slots. Prints a table of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "Four processes, one Redis" --package spillgate-redis --test exactness -- \
  four_processes_of_64_tasks_on_one_key_are_admitted_exactly_the_limit
tests_table "A cluster of six nodes" --package spillgate-redis --test topology -- \
  a_key_is_admitted_exactly_its_limit_however_many_ask many_tasks_on_several_slots_are_never_admitted_above_a_limit
tests_table "Two servers, one Redis" --package spillgate-server --test store -- \
  two_servers_together_admit_as_much_as_one
