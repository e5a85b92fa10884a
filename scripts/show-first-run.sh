#!/usr/bin/env bash
# Does the first steps of a newcomer: clones the last commit, starts a server with the rules of the quick start, and
# runs all tests. Prints a table with the seconds of each step.
set -euo pipefail
cd "$(dirname "$0")/.."

limit_minutes=40
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
git clone --quiet . "$folder/spillgate"
cd "$folder/spillgate"
# The clone must not use a target folder or settings of the caller.
unset CARGO_TARGET_DIR "${!SPILLGATE_@}"

echo "clone of $(git rev-parse --short HEAD); cargo run --release -- serve examples/quickstart.yaml"
# Port 0 asks for free ports; the server prints them because of --json.
export SPILLGATE_HTTP=127.0.0.1:0 SPILLGATE_GRPC=127.0.0.1:0 SPILLGATE_ADMIN=127.0.0.1:0
began=$SECONDS
cargo run --quiet --release --locked -- serve examples/quickstart.yaml --json >"$folder/ready" &
server=$!
until [ -s "$folder/ready" ]; do
  kill -0 "$server" || { echo "the server ended before it was ready" >&2; exit 1; }
  [ $((SECONDS - began)) -lt 1800 ] || { echo "the server is not ready after 30 minutes" >&2; exit 1; }
  sleep 0.2
done
unset "${!SPILLGATE_@}"
ready_s=$((SECONDS - began))
cat "$folder/ready"
address=$(sed -n 's/.*"http":"\([^"]*\)".*/\1/p' "$folder/ready")
ask() {
  curl --silent --show-error --max-time 10 --output "$folder/answer" --write-out '%{http_code}' \
    --data '{"domain": "api", "descriptors": [{"user_id": "'"$1"'"}]}' "http://$address/v1/check"
}
for wanted in "7 200" "mallory 429"; do
  status=$(ask "${wanted% *}")
  echo "user_id=${wanted% *}: $status $(cat "$folder/answer")"
  [ "$status" = "${wanted#* }" ] || { echo "the status ${wanted#* } was expected" >&2; exit 1; }
done
kill "$server"
wait "$server" || { echo "the server did not end cleanly: exit status $?" >&2; exit 1; }
server=

began=$SECONDS
CI=true bash .ci/run
took=$((SECONDS - began))
printf '\n### From a fresh clone, on %s cores\n\n| step | seconds | bound, seconds |\n|---|---|---|\n' "$(nproc)"
echo "| \`cargo run --release -- serve\` answers, with its build | $ready_s | 1800 |"
echo "| \`make test\`: set-up, lints and all tests pass | $took | $((limit_minutes * 60)) |"
[ "$took" -le $((limit_minutes * 60)) ]
