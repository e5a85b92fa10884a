#!/usr/bin/env bash
# A restart with a snapshot. After SIGTERM nothing is forgotten; after kill -9 at most what came since the last snapshot.
# Prints a table of the tests, and how many requests were forgotten.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
tests_table "Restarts of the real server" --package spillgate-server --test snapshot -- \
  a_terminated_server_forgets_nothing a_killed_server_forgets_at_most_what_came_since_the_last_snapshot \
  bad_files_are_told_and_three_are_kept_aside
tests_table "Snapshots of the library" --package spillgate --test snapshot -- \
  a_restored_store_decides_as_if_it_had_never_been_saved a_snapshot_under_load_has_each_key_once_as_it_was_at_some_time \
  a_torn_file_is_rejected_wherever_it_is_torn no_flipped_bit_goes_unnoticed
