#!/usr/bin/env bash
# Opens reports of `spillgate replay` in headless Chromium: a day of a shop, and extremes such as hostile texts. axe-core
# searches them for what is hard to read. Writes the pages, their screenshots and their printed pages into target/replay-report.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
folder=target/replay-report
rm -rf "$folder"
mkdir -p "$folder"
export REPLAY_PICTURES="$PWD/$folder"
tests_table "Reports of a replay in Chromium" --package spillgate-server --test replay_page
for file in "$folder"/*-print.pdf; do
  pdftoppm -r 80 -l 8 -png "$file" "${file%.pdf}"
done
printf '\nLook at the pictures in %s, for example:\n' "$folder"
printf '    %s\n' "$folder"/shop-{light,dark,phone,print-01}.png
