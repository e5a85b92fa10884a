#!/usr/bin/env bash
# Runs `make test` in a fresh clone of the last commit, and prints the seconds of each step: scripts/show-test-time.sh [RUN...]
# A cold run begins with an empty target folder. A warm run has the target folder of the run before, so it compiles only the examples
# of the documentation. A busy run is a warm one while an endless loop runs on each core. Without arguments: cold warm warm busy busy. CLONE is the
# folder of the clone, which is kept if it is given. The log of a run that failed is kept.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=("$@")
[ $# -gt 0 ] || runs=(cold warm warm busy busy)
folder=${CLONE:-}
log=$(mktemp)
loops=()
finish() {
  [ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null || true
  rm -f "$log"
  [ -n "${CLONE:-}" ] || rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' HUP INT TERM
if [ -z "$folder" ]; then
  folder=$(mktemp -d)
fi
if [ -e "$folder/.git" ]; then
  git -C "$folder" fetch --quiet "$PWD" HEAD
  git -C "$folder" checkout --quiet FETCH_HEAD
else
  git clone --quiet . "$folder"
fi
cd "$folder"
unset CARGO_TARGET_DIR "${!SPILLGATE_@}"

failed=
built= # whether a run of this commit has compiled everything
printf '### `make test` at %s on %s cores\n' "$(git rev-parse --short HEAD)" "$(nproc)"
for run in "${runs[@]}"; do
  [ -n "$built" ] || [ "$run" = cold ] || echo "this run may compile, because no cold run came before it"
  case $run in
    cold) rm -rf target ;;
    warm) ;;
    busy)
      for _ in $(seq "$(nproc)"); do
        # A loop ends by itself if this script is killed.
        (while kill -0 $$; do :; done) 2>/dev/null &
        loops+=($!)
      done ;;
    *) echo "scripts/show-test-time.sh: '$run' is not cold, warm or busy" >&2; exit 2 ;;
  esac
  began=$SECONDS
  result=passed
  CI=true bash .ci/run >"$log" 2>&1 </dev/null || result=failed
  took=$((SECONDS - began))
  [ ${#loops[@]} -eq 0 ] || { kill "${loops[@]}"; wait "${loops[@]}" 2>/dev/null || true; }
  loops=()
  printf '\n%s: %s in %d min %02d s\n\n| seconds | step |\n|---|---|\n' "$run" "$result" $((took / 60)) $((took % 60))
  sed -n 's/^ *\([0-9]\{1,\}\)  \(.*\)$/| \1 | \2 |/p' "$log"
  grep -a '^ *Summary \[' "$log" || true
  if [ "$result" = passed ]; then
    built=yes
  else
    failed=yes
    kept=$(mktemp)
    cp "$log" "$kept"
    echo "the whole log: $kept"
    grep -aE '^ *(FAIL|TIMEOUT|SIGABRT|SIGSEGV) |^error' "$log" || tail -20 "$log"
  fi
done
[ -z "$failed" ]
