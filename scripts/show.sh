#!/usr/bin/env bash
# Shows one promise of the project: scripts/show.sh NAME [ARGUMENTS], as `make show-NAME` does. `make` lists the names.
#
# Prints markdown: a row for each test that passed, or the figures of a measurement. The script fails if a promise does
# not hold. Arguments go to the program that measures. A promise that needs more than a few lines has its own script,
# show-NAME.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

# tests TITLE PACKAGE [OPTION...] [-- FILTER...]
# Runs tests of the package, and prints a row for each, then what they printed. The name of a test says what it checks. A
# filter with `::` is the beginning of names, another filter (and any, for examples of the documentation) is a part of names.
# Without a filter all tests run. It is an error if a filter finds no test.
tests() {
  local title=$1 package=$2 log options=() filter names=() found
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
  log=$(mktemp)
  if [[ " ${options[*]} " == *" --doc "* ]]; then
    # rustdoc cannot pass on a name that has spaces, so examples are chosen by any part of their name.
    names=("$@")
  elif [ $# -gt 0 ]; then
    cargo test --quiet --locked --package "$package" "${options[@]}" -- --list --format terse >"$log"
    names=(--exact)
    for filter in "$@"; do
      mapfile -t found < <(sed -n 's/: test$//p' "$log" |
        awk -v filter="$filter" '{ at = index($0, filter) } at == 1 || (at && !index(filter, "::"))')
      [ ${#found[@]} -gt 0 ] || { echo "no test has the name '$filter'" >&2; rm "$log"; return 1; }
      names+=("${found[@]}")
    done
  fi
  if ! cargo test --locked --package "$package" "${options[@]}" -- --show-output "${names[@]}" >"$log" ||
    ! grep -q '^test .* ok$' "$log"; then
    cat "$log" >&2
    echo "a test failed, or none ran" >&2
    rm "$log"
    return 1
  fi
  printf '\n### %s\n\n| what is checked (one test in each row) | result |\n|---|---|\n' "$title"
  awk '/^test .* ok$/ { name = $0; sub(/^test /, "", name); sub(/ \.\.\. ok$/, "", name)
    gsub("::", ": ", name); gsub("_", " ", name); print "| " name " | passed |" }' "$log"
  awk '/^---- .* stdout ----$/ { name = $2; print ""; print "What `" name "` printed:"; print ""; shown = 1; next }
    /^(successes|failures):$/ { shown = 0 } shown && NF { print "    " $0 }' "$log"
  rm "$log"
}

two_cores() {
  [ "$(nproc)" -ge 2 ] || { echo "two cores are needed: one for the server, one for the client" >&2; exit 1; }
}

# Builds the server and programs of bench/.
server_and() { # PROGRAM...
  cargo build --release --quiet --locked --package spillgate-server
  programs "$@"
}

programs() { # PROGRAM...
  cargo build --release --quiet --manifest-path bench/Cargo.toml "${@/#/--package=}"
}

tool=bench/target/release
[ $# -gt 0 ] || { echo "usage: scripts/show.sh NAME [ARGUMENTS]; \`make\` lists the names" >&2; exit 2; }
name=$1
shift
case $name in
  # Real clients and proxies.
  envoy)
    scripts/setup.sh
    tests "spillgate behind Envoy" spillgate-server --test main -- envoy:: ;;
  replaced)
    scripts/setup.sh
    # How often both servers are replaced, how late Envoy learns of it, and the connections that reach their age.
    export REPLACED_ROUNDS="${REPLACED_ROUNDS:-20}" REPLACED_LATE_S="${REPLACED_LATE_S:-3}"
    export AGED_CONNECTIONS="${AGED_CONNECTIONS:-1000}" AGED_AGE_S="${AGED_AGE_S:-10}"
    tests "Rolling restarts behind Envoy" spillgate-server --test main -- envoy::replaced::
    tests "Connections that reach their age" spillgate-server --test main -- grpc::age:: ;;
  certificates)
    scripts/setup.sh
    # How often each of the three ways of writing replaces the certificate. One test at a time, because it shows times.
    export CERTIFICATES="${CERTIFICATES:-34}" RUST_TEST_THREADS=1
    tests "The certificate of the listeners is replaced under load" spillgate-server --test main -- envoy::certificates::
    tests "Certificates of clients" spillgate-server --test main -- tls::clients::
    tests "Certificates that change or end; sessions and connections of before" spillgate-server --test main -- \
      tls::changes:: tls::handshake::sessions ;;
  python-client)
    scripts/setup.sh
    tests "Answers to an independent Python client" spillgate-server --test main -- python_client:: ;;
  reference-examples)
    tests "Examples of the reference server" spillgate-rules --test main -- reference::
    tests "Errors in broken rules files" spillgate-rules --test main -- broken:: ;;

  start)
    cargo build --release --quiet --locked --package spillgate-server
    python3 scripts/show_start.py target/release/spillgate "$@" ;;

  # Hostile input. Each test takes as long as in `make test`; `make soak` takes longer.
  hostile-input)
    tests "Hostile rules files" spillgate-rules --test main -- hostile::
    tests "Hostile settings" spillgate-server --lib -- settings
    tests "Random HTTP requests" spillgate-server --test main -- http::random
    tests "Hostile gRPC clients" spillgate-server --test main -- grpc::hostile
    tests "Hostile connections to the real server" spillgate-server --test main -- hostile:: ;;
  hostile-logs)
    # BOMB_MIB is the MiB of text of the longest logs.
    export BOMB_MIB="${BOMB_MIB:-10240}"
    cargo test --release --quiet --locked --package spillgate-server --test access_log_memory -- --nocapture
    cargo test --release --quiet --locked --package spillgate-server --test main -- --nocapture \
      access_log::hostile access_log::random access_log::program ;;
  admin-security)
    tests "Rights, web pages of other sites, rate limits" spillgate-server --test main -- http::access:: http::browsers:: http::rates::
    tests "Web pages of other sites, hostile texts and tokens in a real browser" spillgate-server --test main -- \
      page::pages_of_other_sites page::texts_of_strangers page::the_page_asks_for_a_token
    tests "Event streams: rights, bounds, slow readers" spillgate-server --test main -- events::
    tests "Hostile keys, values and reasons of blocks" spillgate-server --test main -- http::blocks:: http::events::
    tests "Bounds of explanations" spillgate-server --test main -- bounded_size of_any_size beside_requests
    tests "A real server: settings, log lines, requests of every form" spillgate-server --test main -- serve::access::
    tests "Writes while the store is slow or away; explanations take nothing" spillgate-server --test main -- \
      store::writes:: store::explain:: ;;

  # Exactness. The environment variables set other numbers of requests.
  same-decisions)
    scripts/setup.sh
    export DIFFERENTIAL_DECISIONS="${DIFFERENTIAL_DECISIONS:-1000000}"
    tests "The same decisions by kernel, memory store and Redis" spillgate-redis --release --test main -- scripts::differential ;;
  exact-limit)
    scripts/setup.sh
    tests "Four processes, one Redis" spillgate-redis --test main -- \
      four_processes_of_64_tasks_on_one_key_are_admitted_exactly_the_limit
    tests "A cluster of six nodes" spillgate-redis --test main -- \
      a_key_is_admitted_exactly_its_limit_however_many_ask many_tasks_on_several_slots_are_never_admitted_above_a_limit
    tests "Two servers, one Redis" spillgate-server --test main -- two_servers_together_admit_as_much_as_one ;;
  quota-changes)
    # Several quotas use one state, with every algorithm, while they change at random. Then: the microseconds that Redis needs
    # for a request on a state that another quota has charged.
    scripts/setup.sh
    two_cores
    export SEVERAL_QUOTAS_ASKED="${SEVERAL_QUOTAS_ASKED:-1000}" SEVERAL_LIMITS_ASKED="${SEVERAL_LIMITS_ASKED:-10000}"
    tests "Several quotas in the kernel" spillgate-core --release --all-features --test main -- several_quotas:: late_requests::
    tests "Several quotas in memory" spillgate-limiter --release --test main -- several_quotas::
    tests "Several quotas on Redis" spillgate-redis --release --test main -- exactness::several_quotas
    tests "Several limits at two servers" spillgate-server --release --test main -- store::several_limits
    programs on-redis
    $tool/on-redis quotas "$@" ;;
  deny-cache)
    # Each answer of the cache is compared with the kernel on the states that Redis has then. After that: a refused key must
    # have at least 20 times as many decisions a second as an allowed one, and send nothing to Redis.
    scripts/setup.sh
    two_cores
    export DENY_CACHE_REQUESTS="${DENY_CACHE_REQUESTS:-100000}"
    tests "Answers of the deny cache against the kernel" spillgate-redis --release --test main -- scripts::repeated
    programs on-redis
    $tool/on-redis cached "$@" ;;
  reservations)
    scripts/setup.sh
    export RESERVATIONS="${RESERVATIONS:-1000000}"
    tests "Reservations" spillgate-redis --release --test main -- sources::reservations ;;
  redis-recipes)
    scripts/setup.sh
    tests "Limiters that people build on Redis by hand" spillgate-redis --test main -- sources:: ;;
  layer-limit)
    tests "One axum server" spillgate-tower --all-features --test main -- real:: ;;
  examples)
    scripts/show-examples.sh
    tests "Each example is run" spillgate --all-features --test main -- examples::
    tests "The code of the pages" spillgate --all-features --doc -- pages:: ;;

  # One limit in several regions.
  regions-model)
    # REGIONS_TRACES is the number of random traces, with a third for each algorithm. `make test` runs 20,000.
    export REGIONS_TRACES="${REGIONS_TRACES:-120000}"
    tests "Invariants of limits that regions share, and the mutations that break them" spillgate-limiter --release --lib -- \
      regions::tests:: ;;
  regions-script)
    scripts/setup.sh
    export MERGE_CHARGES="${MERGE_CHARGES:-20000}"
    tests "Charges of other regions, against the kernel" spillgate-redis --release --test main -- scripts::merge:: ;;
  regions-bound | regions-fair | regions-faults | regions-deploy | regions-attack | regions-slow-peer | regions-cost)
    scripts/setup.sh
    # REGIONS=all runs what `make test` leaves out, and REGIONS_SECONDS is how long each run lasts.
    export REGIONS=all REGIONS_SECONDS="${REGIONS_SECONDS:-20}"
    regions() { # TITLE FILTER...
      tests "$1" spillgate-redis --release --test main -- "${@:2}"
    }
    case $name in
      *-bound) regions "What three regions admit together, with and without messages" regions::bound:: ;;
      *-fair) regions "What each of three regions gets" regions::fair:: ;;
      *-faults) regions "Faults of regions, lines, stores and clocks" regions::faults:: ;;
      *-deploy) tests "Servers of three regions that end" spillgate-server --test main -- store::regions:: ;;
      *-attack)
        regions "A client that makes many keys" regions::attack::
        tests "The tables are bounded" spillgate-limiter --release --lib -- regions::tests::ledger:: ;;
      *-slow-peer)
        regions "A busy region, and a cluster with a node that stands still" a_busy_region a_node_of_a_cluster
        tests "How much is sent to a slow region" spillgate-limiter --release --lib -- regions::tests::pace:: \
          a_slow_region_gets_less a_dead_node ;;
      *-cost)
        regions "Entries against takes, and floods" an_entry_costs a_larger_flood
        two_cores
        server_and compare loadgen
        (cd bench && target/release/bench regions --repetitions 31 --seconds 1 --warmup 0.3 "$@") ;;
    esac ;;

  # What happens when things break.
  redis-faults)
    scripts/setup.sh
    tests "Faults of connections and servers" spillgate-redis --test main -- transport::
    tests "Faults of clusters and sentinels" spillgate-redis --test main -- topology::
    tests "The server while its store fails" spillgate-server --test main -- store::failing store::faults
    programs on-redis
    $tool/on-redis faults "$@" ;;
  restart)
    tests "Restarts of the real server" spillgate-server --test main -- \
      a_terminated_server_loses_no_counts a_killed_server_loses_at_most_the_counts_since_the_last_snapshot \
      invalid_files_are_reported_and_three_of_them_are_kept
    tests "Snapshots of the library" spillgate-limiter --all-features --test main -- \
      a_restored_store_decides_as_if_it_had_never_been_saved a_snapshot_under_load_has_each_key_once_as_it_was_at_some_time \
      a_torn_file_is_rejected_wherever_it_is_torn no_flipped_bit_goes_unnoticed ;;
  memory-of-clients)
    # Hostile clients drive each row of sizing.md to its bound with the default settings, while honest clients are served. The
    # server is optimized, as the one that users have.
    export MEMORY_OF_CLIENTS=full
    tests "Rows: what clients hold, its worst case, the memory that was seen, honest clients" spillgate-server --release \
      --test main -- hostile::memory:: unread:: ;;
  unread-answers)
    # 100 connections with 1,000 unread answers each, whose clients still answer every PING.
    server_and
    python3 scripts/show_unread_answers.py target/release/spillgate ;;

  # Calls to other services.
  outbound)
    # Eight tasks in two processes keep the limit of a service, a known one and one that they learn.
    scripts/setup.sh
    export OUTBOUND_SECONDS="${OUTBOUND_SECONDS:-60}"
    tests "Calls to another service" spillgate-outbound --release --all-features --test main -- eight_tasks ;;
  waiters)
    tests "10,000 callers in one queue" spillgate-outbound --release --all-features --test waiters
    tests "Callers that go away" spillgate-outbound --release --all-features --test main -- cancelled_turns ;;
  pacing-bound)
    # PACING_RUNS is the number of random runs of each test, in simulated time.
    export PACING_RUNS="${PACING_RUNS:-1000}"
    tests "Units that leave a pacer in any interval" spillgate-outbound --release --all-features --test main -- pacing_bound:: ;;

  # What happens when something breaks.
  late-answers)
    LATE_SECONDS=10 tests "Replies that come too late" spillgate-redis --test main -- transport::late:: ;;
  eviction)
    export NEW_KEYS_REQUESTS="${NEW_KEYS_REQUESTS:-200000}" NEW_KEYS_TAKES="${NEW_KEYS_TAKES:-20000}"
    tests "A client that makes many keys" spillgate-redis --release --test main -- modes::new_keys::
    tests "Newcomers in the local store" spillgate-limiter --test main -- new_keys::
    tests "The server" spillgate-server --test main -- store::new_keys:: ;;
  log-faults)
    tests "Standard error and standard output that take nothing" spillgate-server --test main -- log_faults::
    tests "The lines that wait" spillgate-server --lib -- serve::log:: ;;

  watch)
    scripts/setup.sh
    # How often each way of writing changes the rules. One test at a time, because it shows times.
    export WATCH_CHANGES="${WATCH_CHANGES:-50}" RUST_TEST_THREADS=1
    tests "Files that change while the server runs" spillgate-server --test main -- watch::
    cargo build --release --quiet --locked --package spillgate-server
    python3 scripts/show_watch.py target/release/spillgate "$@" ;;

  # Sketches.
  sketch-bounds)
    tests "Sketches keep every bound" spillgate-limiter --release --lib -- sketch::
    export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom
    tests "Sketches in all orders of two threads with at most three preemptions" spillgate-limiter \
      --config 'profile.dev.package.loom.opt-level=3' --lib -- sketch::tests::model ;;
  full-store)
    # Each algorithm, beside the exact model. `make test` makes one trace of each kind.
    export FULL_STORE_TRACES="${FULL_STORE_TRACES:-100}"
    tests "A full store with a sketch while rates change" spillgate-limiter --release --lib -- memory::tests::changed_rates::
    tests "The lines of its cells" spillgate-limiter --release --lib -- memory::overflow:: ;;
  sketch-refusals)
    # Sketches that are too small on purpose. --part 10 for a tenth of the run.
    programs sketch
    $tool/sketch refusals "$@" ;;
  sketch-memory)
    # A billion keys through 64 MB, at a million keys in a virtual second: about five minutes. --keys N for fewer.
    programs sketch
    $tool/sketch keys "$@" ;;
  sketch-edge)
    programs sketch
    $tool/sketch edge "$@" ;;
  sketch-speed)
    server_and inprocess compare loadgen
    cd bench
    for keys in 1000 1000000 10000000; do
      target/release/inprocess speed --keys "$keys" --cases pingora-rate sketch sketch-windows token-bucket
    done
    target/release/bench sketch --rules rules-shared.yaml
    target/release/bench sketch --sketch-rules rules-sketch-windows.yaml ;;

  # Insight, pages and reports.
  insight)
    export INSIGHT=all
    tests "What insight says about traffic whose truth is known" spillgate-insight --release --test main
    tests "What a replay says about logs whose truth is known" spillgate-server --test main -- replay::scenes:: ;;
  page)
    scripts/setup.sh
    export PAGE_PICTURES="$PWD/target/page"
    rm -rf "$PAGE_PICTURES"
    mkdir -p "$PAGE_PICTURES"
    tests "The page of the admin listener in Chromium" spillgate-server --test main -- page::
    printf '\nLook at the pictures in %s, for example:\n' "$PAGE_PICTURES"
    printf '    %s\n' "$PAGE_PICTURES"/{overview,limit,explain}-{light,dark,phone}.png \
      "$PAGE_PICTURES"/{overview,limit,long}-{3,60}-limits-{320,390,768,1024,1440}-{light,dark}.png ;;
  log-formats)
    tests "Logs of many servers" spillgate-server --release --test main -- log_formats:: ;;
  replay-report)
    scripts/setup.sh
    export REPLAY_PICTURES="$PWD/target/replay-report"
    rm -rf "$REPLAY_PICTURES"
    mkdir -p "$REPLAY_PICTURES"
    tests "Reports of a replay in Chromium" spillgate-server --test main -- replay_page::
    for file in "$REPLAY_PICTURES"/*-print.pdf; do
      pdftoppm -r 80 -l 8 -png "$file" "${file%.pdf}"
    done
    printf '\nLook at the pictures in %s, for example:\n' "$REPLAY_PICTURES"
    printf '    %s\n' "$REPLAY_PICTURES"/shop-{light,dark,phone,print-01}.png \
      "$REPLAY_PICTURES"/{shop,forty}-{320,390,768,1024,1440}-{light,dark}.png ;;

  # Speed and memory.
  library-speed)
    # Nanoseconds a decision, beside governor and hash tables that decide nothing. --deny measures refusals.
    programs inprocess
    $tool/inprocess speed "$@"
    $tool/inprocess batch ;;
  layer-speed)
    # 10,000 addresses fit into the caches of a processor, a million do not.
    programs layer
    $tool/layer --threads 1 "$@"
    $tool/layer --threads 2 --addresses 1000000 --requests 1000000 "$@" ;;
  redis-speed)
    for program in taskset redis-server redis-benchmark; do
      command -v "$program" >/dev/null || { echo "$program is missing: scripts/setup.sh installs it" >&2; exit 1; }
    done
    two_cores
    server_and on-redis compare limits loadgen
    cd bench
    target/release/on-redis speed "$@"
    for concurrency in 64 256; do
      target/release/bench shared --concurrency "$concurrency" "$@"
    done
    target/release/on-redis cached "$@" ;;
  redis-bytes-per-key)
    programs on-redis
    $tool/on-redis bytes "$@" ;;
  bytes-per-key)
    programs inprocess
    $tool/inprocess memory "$@" ;;
  slowest-batch)
    programs inprocess
    $tool/inprocess growth "$@" ;;
  allocations)
    # A debug build makes the same allocations and compiles faster.
    cargo run --quiet --manifest-path bench/Cargo.toml -p allocations ;;
  admin-load)
    # Arguments: rounds, and the seconds of each measurement.
    server_and loadgen
    python3 scripts/show_admin_load.py target/release/spillgate $tool/loadgen "$@" ;;
  admin-cost)
    server_and compare loadgen
    cd bench
    target/release/bench admin --repetitions 31 --seconds 1 --warmup 0.3 "$@" ;;
  tls)
    # Arguments: `handshakes` or `floods` for one of them, the number of runs, and the seconds of each.
    two_cores
    server_and compare loadgen
    if [ $# -eq 0 ]; then
      (cd bench && target/release/bench tls tls-http --repetitions 31 --seconds 1 --warmup 0.3)
    fi
    python3 scripts/show_tls.py target/release/spillgate $tool/loadgen "$@" ;;
  insight-cost)
    # Metrics cannot be switched off: show-no-regression measures what they cost.
    server_and compare loadgen
    cd bench
    target/release/bench insight insight-refused --repetitions 31 --seconds 1 --warmup 0.3 "$@" ;;

  *)
    echo "scripts/show.sh: '$name' is no name of a target show-NAME; \`make\` lists them" >&2
    exit 2 ;;
esac
