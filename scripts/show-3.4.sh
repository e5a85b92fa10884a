#!/usr/bin/env bash
# The systems that people build on Redis by hand, each made with spillgate on a real server and in memory: what they do,
# and that the faults they are known for are absent.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cargo test --package spillgate-redis --locked --test sources
