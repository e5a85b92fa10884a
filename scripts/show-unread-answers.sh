#!/usr/bin/env bash
# 100 connections with 1,000 answers each that the client never reads, on both ports; the clients still answer every PING.
# It fails if more than 4 MiB is held for a connection, or if one is open longer than limits.idle + 2 s. Prints a table.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
exec python3 scripts/show_unread_answers.py target/release/spillgate
