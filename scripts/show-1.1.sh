#!/usr/bin/env bash
# What a stranger does: a fresh clone of what is committed, served by one command, then all its tests, timed.
set -euo pipefail
cd "$(dirname "$0")/.."

limit_minutes=40
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
git clone --quiet . "$folder/spillgate"
cd "$folder/spillgate"
# The clone has nothing to do with a target folder that the caller shares, nor with the caller's settings.
unset CARGO_TARGET_DIR "${!SPILLGATE_@}"

echo "clone of $(git rev-parse --short HEAD); cargo run --release -- serve examples/quickstart.yaml"
# Free ports, learnt from the line that --json prints, so that nothing on this machine is in the way.
export SPILLGATE_HTTP=127.0.0.1:0 SPILLGATE_GRPC=127.0.0.1:0 SPILLGATE_ADMIN=127.0.0.1:0
began=$SECONDS
cargo run --quiet --release --locked -- serve examples/quickstart.yaml --json >"$folder/ready" &
server=$!
until [ -s "$folder/ready" ]; do
  kill -0 "$server" || { echo "it ended before it was ready" >&2; exit 1; }
  [ $((SECONDS - began)) -lt 1800 ] || { echo "not ready after 30 minutes" >&2; exit 1; }
  sleep 0.2
done
unset "${!SPILLGATE_@}"
echo "ready after $((SECONDS - began)) s, the build included: $(cat "$folder/ready")"
address=$(sed -n 's/.*"http":"\([^"]*\)".*/\1/p' "$folder/ready")
ask() {
  curl --silent --show-error --max-time 10 --output "$folder/answer" --write-out '%{http_code}' \
    --data '{"domain": "api", "descriptors": [{"user_id": "'"$1"'"}]}' "http://$address/v1/check"
}
for wanted in "7 200" "mallory 429"; do
  status=$(ask "${wanted% *}")
  echo "user_id=${wanted% *}: $status $(cat "$folder/answer")"
  [ "$status" = "${wanted#* }" ] || { echo "${wanted#* } was expected" >&2; exit 1; }
done
kill "$server"
wait "$server" || { echo "it did not drain well: exit status $?" >&2; exit 1; }
server=

began=$SECONDS
CI=true bash .ci/run
took=$((SECONDS - began))
echo "show-1.1: .ci/run is green after $((took / 60)) min $((took % 60)) s on $(nproc) cores (at most $limit_minutes min)"
[ "$took" -le $((limit_minutes * 60)) ]
