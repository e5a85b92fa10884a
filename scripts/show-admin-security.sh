#!/usr/bin/env bash
# Tests the rights of callers of the admin listener, and prints tables: each route with each kind of token, and requests of web
# pages of other sites (forms, DNS rebinding, frames). Also tests the rate limits, the log of writes, and the bounds of
# explanations.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
tests_table "Rights, web pages of other sites, rate limits" --package spillgate-server --test http -- access:: browsers:: rates::
tests_table "Web pages of other sites, hostile texts and tokens in a real browser" --package spillgate-server --test page -- \
    pages_of_other_sites texts_of_strangers asks_for_a_token
tests_table "Event streams: rights, bounds, slow readers" --package spillgate-server --test events
tests_table "Hostile keys, values and reasons of blocks" --package spillgate-server --test http -- blocks:: events::
tests_table "Bounds of explanations" --package spillgate-server --test http -- bounded_size of_any_size beside_requests
tests_table "A real server: settings, log lines, requests of every form" --package spillgate-server --test serve -- access::
tests_table "Writes while the store is slow or away; explanations take nothing" --package spillgate-server --test store -- writes:: explain::
