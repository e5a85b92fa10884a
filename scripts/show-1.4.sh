#!/usr/bin/env bash
# The reference server's worked examples answer as there; each broken rules file gives its line and its mend.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --package spillgate --locked --test rules_reference --test rules_broken -- --nocapture
files=(crates/spillgate/tests/broken/*.yaml)
echo "show-1.4: ${#files[@]} broken files"
