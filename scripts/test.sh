#!/usr/bin/env bash
# Runs every check that a change has to pass before it is merged.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- --deny warnings
scripts/features.sh
# With --no-fail-fast, one run names all failures.
cargo test --workspace --locked --no-fail-fast
scripts/valkey.sh
# loom runs the code of the memory store's locks and of the sketches in every order in which threads can take turns. The
# tests bound only the number of preemptions (switches away from a thread that could continue), to 1, 2 or 3.
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --config 'profile.dev.package.loom.opt-level=3' \
    --package spillgate --lib --locked tests::model
RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --locked

# Tests of the server's crate check links, snippets and tables of the book. Here the book only has to build.
scripts/docs.sh

# The benchmarks are in a workspace of their own, and have to pass the same checks.
bench=(--manifest-path bench/Cargo.toml)
cargo fmt "${bench[@]}" --all --check
cargo clippy "${bench[@]}" --workspace --all-targets --locked -- --deny warnings
cargo test "${bench[@]}" --workspace --locked

# scripts/fuzz.sh runs the fuzz targets. Here they only have to compile.
cargo check --manifest-path fuzz/Cargo.toml --target-dir target --locked
