#!/usr/bin/env bash
# Runs the checks that take too long for every change: scripts/soak.sh [MINUTES]. Random input gets MINUTES (at least
# 10): one third for the fuzz targets, one third for storms (random load) on the real server, one third for the property
# tests of the kernel. Then come the long forms of checks that `make test` runs in a short form. CONTRIBUTING.md says
# which is the short form of which check. A pass is written to bench/SOAK.md.
#
# scripts/soak.sh --age prints when it last passed.
set -euo pipefail
cd "$(dirname "$0")/.."

passes=bench/SOAK.md
if [ "${1:-}" = --age ]; then
  last=$(tail -n 1 "$passes")
  day=$(cut -d '|' -f 2 <<<"$last" | tr -d ' ')
  if [[ $day == 2* ]]; then
    echo "the last soak that passed is $((($(date +%s) - $(date --utc --date "$day" +%s)) / 86400)) days old:$last"
  else
    echo "no soak has passed yet: make soak"
  fi
  exit
fi
minutes=${1:-10}
if ! [ "$minutes" -ge 10 ] 2>/dev/null; then
  echo "MINUTES is a whole number of at least 10, not '$minutes'" >&2
  exit 2
fi
third=$((minutes * 20))
whole=$SECONDS
scripts/setup.sh

mapfile -t targets < <(sed -n 's/^path = "fuzz_targets\/\(.*\)\.rs"$/\1/p' fuzz/Cargo.toml)
echo "== fuzz targets, $third s"
scripts/fuzz.sh $((third / ${#targets[@]})) "${targets[@]}"

# There are five storms, and two of them run at a time. So all storms together take about three times as long as one
# storm.
echo "== storms, $third s"
HOSTILE_SECONDS=$((third / 3)) cargo test --release --quiet --locked --package spillgate-server --test main \
  -- --test-threads=2 --skip ::hostile:: hostile::

echo "== properties, $third s"
began=$SECONDS
until [ $((SECONDS - began)) -ge "$third" ]; do
  # Every run draws new cases.
  cargo test --release --quiet --locked --package spillgate-core --tests
done

echo "== a million decisions of each algorithm by kernel, memory store and Redis"
scripts/show.sh same-decisions
echo "== all orders of threads, with up to three preemptions"
scripts/loom.sh
echo "== the Redis store on both versions of Valkey"
scripts/valkey.sh
echo "== each crate alone, and each feature alone"
scripts/features.sh all
echo "== each published crate compiles from its package"
cargo package --workspace --exclude spillgate-testkit --locked --allow-dirty
echo "== tests of each crate compile without the features that other crates ask for"
for crate in crates/*/; do
  cargo check --quiet --tests --manifest-path "$crate/Cargo.toml" --locked
done
echo "== two builds in two folders have the same bytes"
scripts/reproducible.sh
echo "== tests of the benchmarks"
cargo test --manifest-path bench/Cargo.toml --target-dir target --workspace --locked
echo "== small logs with gigabytes of text"
scripts/show.sh hostile-logs
echo "== pages in the browser, with screenshots"
scripts/show.sh page
scripts/show.sh replay-report

printf '| %s | %s | %s | %s |\n' "$(date --utc +%F)" "$(git rev-parse --short HEAD)" "$minutes" $(((SECONDS - whole) / 60)) >>"$passes"
echo "soak passed; commit $passes"
