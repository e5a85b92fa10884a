#!/usr/bin/env bash
# Runs every check that a change has to pass before it is merged, and prints how many seconds each step took.
# `make soak` runs the checks that take longer.
set -euo pipefail
cd "$(dirname "$0")/.."

times=()
aside= # the process of the checks that run beside the tests
log=target/beside-the-tests.log
finish() {
  if [ -n "$aside" ]; then
    kill -- "-$aside" 2>/dev/null || true
    wait "$aside" 2>/dev/null || true
    printf '\n== the checks beside the tests, until they were stopped\n'
    cat "$log"
  fi
  [ ${#times[@]} -eq 0 ] || printf '%s\n' "" "seconds by step:" "${times[@]}"
}
trap 'exit 1' HUP INT TERM
trap finish EXIT

step() { # NAME COMMAND...
  local name=$1 began=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  "$@"
  times+=("$(printf '%6d  %s' $((SECONDS - began)) "$name")")
}

# The benchmarks are in a workspace of their own, and share the target folder, the profile and the versions.
bench=(--manifest-path bench/Cargo.toml --target-dir target --workspace --locked)

step "setup" scripts/setup.sh
step "the last soak" scripts/soak.sh --age
step "formatting" cargo fmt --all --check
step "formatting of the benchmarks" cargo fmt --manifest-path bench/Cargo.toml --all --check
step "one version of each crate in all lock files" python3 scripts/lock_files.py
step "build of the tests" scripts/nextest.sh --build

# These checks compile, and most tests wait: together they take little longer than the tests alone. The tests go first, because
# some give up after minutes.
compile() {
  renice -n 19 -p "$BASHPID" >/dev/null
  step "lints" cargo clippy --workspace --all-targets --locked -- --deny warnings
  step "lints of the benchmarks" cargo clippy "${bench[@]}" --all-targets -- --deny warnings
  step "the fuzz targets compile" cargo check --manifest-path fuzz/Cargo.toml --target-dir target --locked
  step "each feature alone" scripts/features.sh
  step "examples of the documentation" cargo test --doc --workspace --locked
  step "all orders of threads, with one preemption" scripts/loom.sh 1
  step "rustdoc" env RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --locked
  step "the book" scripts/docs.sh
}
set -m # gives the process a group of its own, so that `finish` ends its children too
(trap - EXIT HUP INT TERM; times=(); compile; printf '\n%s\n' "${times[@]/%/ (beside the tests)}") >"$log" 2>&1 &
aside=$!
set +m

export BUILT=1
step "tests" scripts/nextest.sh
step "tests of the store on Valkey" scripts/valkey.sh 9.1
passed=yes
wait "$aside" || passed=
aside=
cat "$log"
[ -n "$passed" ]
