#!/usr/bin/env bash
# Exactly the limit on one key: four processes of 64 tasks by the library, two servers by gRPC, and a cluster of six
# nodes, on which a request's limits lie in several slots.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
# A test that has got another name is no test that passes.
show() {
  local name
  for name in "${@:3}"; do
    cargo test --quiet --package "$1" --locked --test "$2" -- --list | grep "\b$name: test" >/dev/null ||
      { echo "$2 has no test $name" >&2; exit 1; }
  done
  cargo test --package "$1" --locked --test "$2" -- "${@:3}"
}
show spillgate-redis exactness four_processes_of_64_tasks_on_one_key_are_admitted_exactly_the_limit
show spillgate-redis topology a_key_is_admitted_exactly_its_limit_however_many_ask \
  many_tasks_on_several_slots_are_never_admitted_above_a_limit
show spillgate-server store two_servers_admit_together_what_one_would
