#!/usr/bin/env bash
# Shows that a sketch admits no key above its bound: random streams and streams that are made to break it, on one thread
# and on eight. The program loom also runs the code in all orders of two threads with at most three preemptions. Among the tests are
# variants of a sketch without locks. These variants break the bound, so the tests can find such a mistake.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
tests_table "Sketches keep every bound" --release --package spillgate --lib -- sketch::
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom
tests_table "Sketches in all orders of two threads with at most three preemptions" --config 'profile.dev.package.loom.opt-level=3' --package spillgate --lib \
  -- sketch::tests::model
