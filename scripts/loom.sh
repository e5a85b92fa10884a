#!/usr/bin/env bash
# Runs the code of the memory store's locks and of the sketches in every order in which threads can take turns:
# scripts/loom.sh [PREEMPTIONS]. A preemption switches away from a thread that could continue. Each test bounds the
# number of preemptions, by 1 to 3, and PREEMPTIONS lowers this bound.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 0 ] || export PREEMPTIONS_MAX=$1
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --config 'profile.dev.package.loom.opt-level=3' \
  --package spillgate-limiter --lib --locked tests::model
