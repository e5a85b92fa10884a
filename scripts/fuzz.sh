#!/usr/bin/env bash
# Runs each fuzz target for a bounded time, on stable Rust: scripts/fuzz.sh [SECONDS_EACH] [TARGET...]
# Inputs that make a target fail are written to fuzz/artifacts/. Inputs that reach new code are written to fuzz/corpus/.
# Git ignores both folders.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "cargo-fuzz is missing: cargo install cargo-fuzz --version 0.13.2 --locked" >&2
    exit 1
fi

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t targets < <(cd fuzz && cargo fuzz list)
fi

for target in "${targets[@]}"; do
    echo "== $target, $seconds s"
    # The option `-s none` switches off the sanitizers. Sanitizers need nightly Rust, and would find little, because our
    # code has no unsafe block.
    seeds=()
    if [ -d "fuzz/seeds/$target" ]; then
        mkdir -p "fuzz/corpus/$target"
        seeds=("fuzz/seeds/$target")
    fi
    mkdir -p "fuzz/corpus/$target"
    (cd fuzz && cargo fuzz run -s none "$target" "corpus/$target" "${seeds[@]/#fuzz\//}" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 2>&1 | tail -n 40)
done
