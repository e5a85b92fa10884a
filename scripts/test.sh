#!/usr/bin/env bash
# All that has to hold before a change lands.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- --deny warnings
# To the end, so that one run names all that fails.
cargo test --workspace --locked --no-fail-fast
scripts/valkey.sh
# Every order of events over the memory store's locks with up to three preemptions.
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --config 'profile.dev.package.loom.opt-level=3' \
    --package spillgate --lib --locked memory::model
RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --locked

# Links, snippets and tables of the book are tests of the server's crate; here it has to build.
scripts/docs.sh

# What measures is built apart from what is measured, and is held to the same.
bench=(--manifest-path bench/Cargo.toml)
cargo fmt "${bench[@]}" --all --check
cargo clippy "${bench[@]}" --workspace --all-targets --locked -- --deny warnings
cargo test "${bench[@]}" --workspace --locked

# Fuzz targets run elsewhere, but have to compile here.
cargo check --manifest-path fuzz/Cargo.toml --target-dir target --locked
