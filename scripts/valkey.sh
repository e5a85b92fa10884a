#!/usr/bin/env bash
# Runs the tests of the Redis store on two versions of Valkey. Arguments go to the test programs. For example,
# `scripts/valkey.sh logs` runs only tests with `logs` in their names.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
for version in 8.1 9.1; do
  server="$PWD/target/venv/valkey/bin/valkey-server-$version"
  reported=$("$server" --version)
  [[ $reported == "Valkey server v=$version."* ]] || { echo "$server is not Valkey $version but $reported" >&2; exit 1; }
  echo "== $reported"
  # These builds have no TLS. TLS is tested with Redis, and our code for TLS does not depend on the server.
  REDIS_SERVER="$server" DIFFERENTIAL_DECISIONS="${DIFFERENTIAL_DECISIONS:-10000}" \
    cargo test --quiet --package spillgate-redis --tests --locked -- --skip with_certificates --skip urls::a_certificate "$@"
done
