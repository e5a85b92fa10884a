#!/usr/bin/env bash
# 100 connections with 1,000 answers each that nobody reads, on both ports, from clients that answer every PING: at most
# 4 MiB is held for a connection, and it is closed by limits.idle + 2 s. Fails if that is not so.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --quiet -p spillgate-server
exec python3 scripts/show_unread_answers.py target/release/spillgate
