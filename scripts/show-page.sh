#!/usr/bin/env bash
# Opens the page of the admin listener in headless Chromium, with a real server under load: every view, form and switch, the
# tasks of a new operator, hostile texts, tokens, a restart, and the updates of an hour. axe-core searches each view for what is
# hard to read. Writes screenshots into target/page.
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/tests_table.sh
scripts/setup.sh
folder=target/page
rm -rf "$folder"
mkdir -p "$folder"
export PAGE_PICTURES="$PWD/$folder"
tests_table "The page of the admin listener in Chromium" --package spillgate-server --test page
printf '\nLook at the pictures in %s, for example:\n' "$folder"
printf '    %s\n' "$folder"/{overview,limit,explain}-{light,dark,phone}.png
