#!/usr/bin/env bash
# Reads logs that are small as files and have up to BOMB_MIB (default 10,240) MiB of text, and prints how much memory this needs.
# Logs of short lines have less text, because short lines need more time for each MiB. Then reads other hostile logs: control
# characters, long lines, broken files, impossible years. The program `spillgate replay` reads such logs too.
set -euo pipefail
cd "$(dirname "$0")/.."

export BOMB_MIB=${BOMB_MIB:-10240}
cargo test --release --quiet --locked --package spillgate-server --test access_log_memory -- --nocapture
cargo test --release --quiet --locked --package spillgate-server --test access_log -- hostile random program --nocapture
