#!/usr/bin/env bash
# Tests with random input for a longer time than CI has: scripts/soak.sh [MINUTES]. MINUTES is at least 10. One third of
# the time is for the fuzz targets, one third for storms (random load) on the real server, and one third for the
# property tests of the kernel. After that, a million random requests for each algorithm go to the kernel (the pure
# decision code), to the memory store and to Redis. This last part takes additional time.
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-10}
if ! [ "$minutes" -ge 10 ] 2>/dev/null; then
  echo "MINUTES is a whole number of at least 10, not '$minutes'" >&2
  exit 2
fi
third=$((minutes * 20))
scripts/setup.sh

mapfile -t targets < <(sed -n 's/^path = "fuzz_targets\/\(.*\)\.rs"$/\1/p' fuzz/Cargo.toml)
echo "== fuzz targets, $third s"
scripts/fuzz.sh $((third / ${#targets[@]})) "${targets[@]}"

# There are five storms, and two of them run at a time. So all storms together take about three times as long as one
# storm.
echo "== storms, $third s"
HOSTILE_SECONDS=$((third / 3)) cargo test --release --quiet --locked --package spillgate-server --test hostile \
  -- --test-threads=2

echo "== properties, $third s"
began=$SECONDS
until [ $((SECONDS - began)) -ge "$third" ]; do
  # Every run draws new cases.
  cargo test --release --quiet --locked --package spillgate-core --tests
done

echo "== a million decisions of each algorithm by kernel, memory store and Redis"
scripts/show-same-decisions.sh
