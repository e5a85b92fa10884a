#!/usr/bin/env bash
# Measures the memory for answers that clients never read. On the HTTP port and on the gRPC port, there are 100
# connections with 1,000 unread answers each. The clients still answer every PING. The script fails if the server holds
# more than 4 MiB for a connection, or if a connection is open longer than limits.idle + 2 s. Prints a table.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
exec python3 scripts/show_unread_answers.py target/release/spillgate
