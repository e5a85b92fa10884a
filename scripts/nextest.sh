#!/usr/bin/env bash
# Runs the tests of the workspace with cargo-nextest, each in a process of its own: scripts/nextest.sh [OPTIONS]
# For example, `scripts/nextest.sh -E 'test(hostile)'` runs the tests with `hostile` in their names. The build is the same
# for every choice, because it is always that of the whole workspace.
set -euo pipefail
cd "$(dirname "$0")/.."
exec target/venv/nextest/bin/cargo-nextest nextest run --workspace --locked "$@"
