#!/usr/bin/env bash
# A real Envoy in front of a real upstream: allowed, refused with headers, and spillgate killed under both failure modes.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cargo test --package spillgate-server --locked --test envoy -- --nocapture
