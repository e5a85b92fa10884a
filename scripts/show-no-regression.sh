#!/usr/bin/env bash
# Compares the cost of a decision with the cost at an earlier commit, in three ways:
# * instructions of the library and of Service::decide, counted by valgrind;
# * CPU time of the server over gRPC, over HTTP, and over gRPC with Redis, in pairs of runs;
# * allocations per request.
# Prints markdown. The script fails if one of these costs grew too much, or if the measurement is too noisy for a verdict.
#
#     scripts/show-no-regression.sh [COMMIT [OPTIONS]]
#
# OPTIONS go to the program `bench`, for example --repetitions 61.
set -euo pipefail
cd "$(dirname "$0")/.."

BASE=${1:-8498c92}
[ $# -eq 0 ] || shift
WORK=$PWD/target/no-regression
# valgrind counts the instructions I(N) of N decisions, and I(2N) of 2N decisions. One decision has (I(2N) - I(N)) / N
# instructions. DECISIONS is N.
DECISIONS=4000
# The first commits have no program that counts instructions. If the base is older than the commit COUNTER, the script
# measures the base with the counting program of COUNTER. The present counting program does not compile with such a
# base, because the interface of the library changed after COUNTER.
COUNTER=a71aeeb

for program in git valgrind taskset redis-server; do
    command -v "$program" >/dev/null || { echo "$program is missing: install it (apt-get install $program)" >&2; exit 1; }
done
if [ "$(nproc)" -lt 2 ]; then
    echo "two cores are needed: one for the server, one for the client" >&2
    exit 1
fi
commit=$(git rev-parse --verify --quiet "$BASE^{commit}") || { echo "there is no commit $BASE here: git fetch it" >&2; exit 1; }

# The earlier commit has a worktree of its own.
base=$WORK/base
if [ -e "$base/.git" ]; then
    git -C "$base" reset --quiet --hard
    git -C "$base" clean --quiet -fdx
    git -C "$base" checkout --quiet --detach "$commit"
else
    git worktree prune
    git worktree add --quiet --detach "$base" "$commit"
fi
if ! git merge-base --is-ancestor "$COUNTER" "$commit"; then
    rm -rf "$base/bench/instructions"
    git archive "$COUNTER" bench/instructions | tar -x -C "$base"
    grep -q '^members = .*"instructions"' "$base/bench/Cargo.toml" ||
        sed -i 's/^members = \[/members = ["instructions", /' "$base/bench/Cargo.toml"
fi

# Each build has a target folder of its own. In a shared folder, Cargo would reuse files of the other build if they are
# newer than the sources. The profile of the benchmarks has another panic strategy than the server. This variable gives
# all programs the panic strategy of the server.
export CARGO_PROFILE_RELEASE_PANIC=unwind
build() { # TREE NAME
    echo "building the commit '$2', which takes some minutes" >&2
    export CARGO_TARGET_DIR=$WORK/$2.build
    nice -n 5 cargo build --release --quiet --locked --manifest-path "$1/Cargo.toml" -p spillgate-server
    nice -n 5 cargo build --release --quiet --manifest-path "$1/bench/Cargo.toml" -p instructions -p allocations
    mkdir -p "$WORK/$2.bin"
    cp "$CARGO_TARGET_DIR"/release/{spillgate,instructions,allocations} "$WORK/$2.bin/"
}
build "$base" base
build "$PWD" now
nice -n 5 cargo build --release --quiet --manifest-path bench/Cargo.toml -p compare -p loadgen

failed=()

collected() { # NAME CASE COUNT
    local log
    log=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null "$WORK/$1.bin/instructions" "$2" "$3" 2>&1) || {
        echo "$1, $2: $log" >&2
        return 1
    }
    awk '/Collected/ { print $NF }' <<<"$log"
}

each() { # NAME CASE
    local few many
    few=$(collected "$1" "$2" "$DECISIONS")
    many=$(collected "$1" "$2" $((2 * DECISIONS)))
    awk -v few="$few" -v many="$many" -v n="$DECISIONS" 'BEGIN { printf "%.1f", (many - few) / n }'
}

echo "Base: $(git log -1 --format='%h %s' "$commit")"
echo "Now: $(git log -1 --format='%h %s')$(git diff --quiet HEAD || echo ', with changes that are not committed')"
echo
echo "| instructions per decision | base | now | now / base, at most 1.01 | verdict |"
echo "|---|---|---|---|---|"
while IFS= read -r case; do
    was=$(each base "$case")
    now=$(each now "$case")
    ratio=$(awk -v a="$now" -v b="$was" 'BEGIN { printf "%.4f", a / b }')
    word="no regression"
    if awk -v r="$ratio" 'BEGIN { exit !(r > 1.01) }'; then
        word="**REGRESSION**"
        failed+=("instructions of $case")
    fi
    echo "| ${case/,/, } | $was | $now | $ratio | $word |"
done < <("$WORK/now.bin/instructions")

echo
echo "| allocations per request | base | now | verdict |"
echo "|---|---|---|---|"
while IFS='|' read -r path was now; do
    word="no regression"
    if awk -v a="$now" -v b="$was" 'BEGIN { exit !(a > b + 0.5) }'; then
        word="**REGRESSION**"
        failed+=("allocations of $path")
    fi
    echo "| $path | $was | $now | $word |"
done < <(awk -F ' *\\| *' 'NR == FNR { base[$2] = $3; next } $3 + 0 == $3 && $2 in base { print $2 "|" base[$2] "|" $3 }' \
    <("$WORK/base.bin/allocations") <("$WORK/now.bin/allocations"))

echo
cd bench
"$CARGO_TARGET_DIR/release/bench" grpc http shared --base "$WORK/base.bin/spillgate" \
    --spillgate "$WORK/now.bin/spillgate" --tools "$CARGO_TARGET_DIR/release" \
    --repetitions 31 --seconds 0.6 --warmup 0.2 "$@" || failed+=("server CPU time")

echo
if [ ${#failed[@]} -gt 0 ]; then
    (IFS=';'; echo "Verdict: slower than $BASE in: ${failed[*]}")
    exit 1
fi
echo "Verdict: no regression against $BASE"
