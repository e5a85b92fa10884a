#!/usr/bin/env bash
# An independent Python client with published stubs drives the real binary; one line for each case.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cargo test --package spillgate-server --locked --test python_client -- --nocapture
