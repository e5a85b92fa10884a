#!/usr/bin/env bash
# Shows what a restart with a snapshot loses. After SIGTERM no counts are lost. After kill -9 at most the counts since the last
# snapshot are lost. Prints a table of the tests, and how many requests were forgotten.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
tests_table "Restarts of the real server" --package spillgate-server --test snapshot -- \
  a_terminated_server_loses_no_counts a_killed_server_loses_at_most_the_counts_since_the_last_snapshot \
  invalid_files_are_reported_and_three_of_them_are_kept
tests_table "Snapshots of the library" --package spillgate --test snapshot -- \
  a_restored_store_decides_as_if_it_had_never_been_saved a_snapshot_under_load_has_each_key_once_as_it_was_at_some_time \
  a_torn_file_is_rejected_wherever_it_is_torn no_flipped_bit_goes_unnoticed
