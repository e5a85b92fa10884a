#!/usr/bin/env bash
# Runs the tests of the workspace with cargo-nextest, each in a process of its own: scripts/nextest.sh [OPTIONS]
# For example, `scripts/nextest.sh -E 'test(hostile)'` runs the tests with `hostile` in their names. The build is the same
# for every choice, because it is always that of the whole workspace.
#
# `scripts/nextest.sh --build` only builds the tests. With BUILT=1 the script then runs them without Cargo, so that it does
# not wait for the lock of a build that runs at the same time.
set -euo pipefail
cd "$(dirname "$0")/.."

nextest=target/venv/nextest/bin/cargo-nextest
binaries=target/nextest/binaries.json
packages=target/nextest/packages.json
if [ "${1:-}" = --build ]; then
  [ $# -eq 1 ] || { echo "usage: scripts/nextest.sh --build, or scripts/nextest.sh [OPTIONS]" >&2; exit 2; }
  mkdir -p target/nextest
  "$nextest" nextest list --workspace --locked --list-type binaries-only --message-format json >"$binaries"
  cargo metadata --format-version 1 --locked >"$packages"
elif [ "${BUILT:-}" = 1 ]; then
  exec "$nextest" nextest run --binaries-metadata "$binaries" --cargo-metadata "$packages" "$@"
else
  exec "$nextest" nextest run --workspace --locked "$@"
fi
