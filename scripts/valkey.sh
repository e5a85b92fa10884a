#!/usr/bin/env bash
# Runs the tests of the Redis store on Valkey: scripts/valkey.sh [VERSION [OPTIONS OF NEXTEST]]. VERSION is 8.1 or 9.1.
# Without a version, the tests run on both.
set -euo pipefail
cd "$(dirname "$0")/.."

versions=(8.1 9.1)
if [ $# -gt 0 ]; then
  versions=("$1")
  shift
fi
scripts/setup.sh
for version in "${versions[@]}"; do
  server="$PWD/target/venv/valkey/bin/valkey-server-$version"
  reported=$("$server" --version)
  [[ $reported == "Valkey server v=$version."* ]] || { echo "$server is not Valkey $version but $reported" >&2; exit 1; }
  echo "== $reported"
  # These builds of Valkey have no TLS. TLS is tested with Redis, and our code for TLS does not depend on the server.
  REDIS_SERVER="$server" DIFFERENTIAL_DECISIONS="${DIFFERENTIAL_DECISIONS:-10000}" \
    scripts/nextest.sh --profile valkey "$@" \
    -E 'package(spillgate-redis) and kind(test) and not test(/with_certificates/) and not test(/urls::a_certificate/)'
done
