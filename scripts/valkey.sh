#!/usr/bin/env bash
# All that is tested on Redis, on two versions of Valkey too. Arguments go to the test programs: scripts/valkey.sh logs
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
for version in 8.1 9.1; do
  server="$PWD/target/venv/valkey/bin/valkey-server-$version"
  told=$("$server" --version)
  [[ $told == "Valkey server v=$version."* ]] || { echo "$server is no Valkey $version but $told" >&2; exit 1; }
  echo "== $told"
  # These builds have no TLS; the way there is the same for all.
  REDIS_SERVER="$server" DIFFERENTIAL_DECISIONS="${DIFFERENTIAL_DECISIONS:-10000}" \
    cargo test --quiet --package spillgate-redis --tests --locked -- --skip with_certificates --skip ways::a_certificate "$@"
done
