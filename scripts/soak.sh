#!/usr/bin/env bash
# Random input for longer than CI has time for: scripts/soak.sh [MINUTES], at least 10.
# One third of the time goes to the fuzz targets, one to storms on the real server, one to the kernel's properties. Then
# the kernel, the memory store and Redis get a million random decisions of each algorithm, however long that takes.
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

# The storms run two at a time, so the five of them take about three times as long as one.
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
