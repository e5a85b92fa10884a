#!/usr/bin/env bash
# Runs the tests that start no foreign program with a clock that starts ten seconds before midnight (UTC) of a month's end:
# scripts/show-month-end.sh [OPTIONS OF NEXTEST]. Each test has such a clock of its own, together with the processes that it starts.
# The clock is that of libfaketime, in the Debian package faketime.
set -euo pipefail

# nextest starts each test as `show-month-end.sh TEST ARGUMENTS`, because this script is also the runner.
if [ -n "${MONTH_END:-}" ]; then
  exec faketime -f "@$MONTH_END" "$@"
fi

cd "$(dirname "$0")/.."
command -v faketime >/dev/null || { echo "faketime is missing: apt-get install faketime" >&2; exit 1; }
scripts/nextest.sh --build
end=$(date --utc --date "$(date --utc +%Y-%m-01) + 1 month" +%s)
# faketime reads the local time.
MONTH_END=$(date --date "@$((end - 10))" '+%F %T')
# Only the clock that has dates is changed.
export MONTH_END FAKETIME_DONT_FAKE_MONOTONIC=1 BUILT=1
host=$(rustc --version --verbose | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${host}_RUNNER=$PWD/scripts/show-month-end.sh"
scripts/nextest.sh "$@" -E 'not package(spillgate-redis)
  and not (package(spillgate-server)
    and test(/^(page|replay_page|envoy|python_client|store|scrape|forward_auth::(nginx|caddy)|access_log::servers|metrics::lint)/))'
