#!/usr/bin/env bash
# Runs the tests that need no Redis, browser, proxy or Cargo with a clock that starts ten seconds before midnight (UTC) of a month's end:
# scripts/show-month-end.sh [PART OF A NAME...]. Each test has such a clock of its own, together with the processes that it
# starts. The clock is that of libfaketime, in the Debian package faketime.
set -euo pipefail

# nextest starts each test as `show-month-end.sh TEST ARGUMENTS`, because this script is also the runner.
if [ -n "${MONTH_END:-}" ]; then
  # The difference to the real clock is the same for all processes of the test.
  exec faketime -f "+$((MONTH_END - 10 - $(date +%s)))s" "$@"
fi

cd "$(dirname "$0")/.."
command -v faketime >/dev/null || { echo "faketime is missing: apt-get install faketime" >&2; exit 1; }
scripts/nextest.sh --build
# The end of the next month, because this month could end during the run.
MONTH_END=$(date --utc --date "$(date --utc +%Y-%m-01) + 2 months" +%s)
# Only the clock that has dates is changed.
export MONTH_END FAKETIME_DONT_FAKE_MONOTONIC=1 BUILT=1
host=$(rustc --version --verbose | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${host}_RUNNER=$PWD/scripts/show-month-end.sh"
# Redis, Chromium, Cargo and other foreign programs hang or fail with libfaketime.
scripts/nextest.sh "$@" -E 'not package(spillgate-redis)
  and not (package(spillgate) and test(redis))
  and not (package(spillgate-outbound) and test(/^outbound::(eight_tasks|on_redis)/))
  and not (package(spillgate-server) and test(/^(docs|page|replay_page|envoy|python_client|store|scrape|tidy|access_log::servers|metrics::(lint|deploy))::/))
  and not (package(spillgate-server) and test(/^forward_auth::(nginx|caddy)_|several_servers_are_shown|callers_of_two_servers|a_failing_store_is_a_source|in_redis|deny_cache_is_a_source/))'
