#!/usr/bin/env bash
# Measures decisions per second of the server on one core. In the same run, gRPC is compared with a tonic server that
# answers without deciding, and with throttlecrab-server (another rate limiter). HTTP is compared with an axum server
# that answers without deciding. Then a server with two workers is compared with a server with one worker.
# Prints markdown for bench/results. Arguments go to the program `bench`: scripts/show-server-speed.sh grpc --repetitions 9
set -euo pipefail
cd "$(dirname "$0")/.."

PEER=throttlecrab-server
PEER_VERSION=0.4.40

command -v taskset >/dev/null || { echo "taskset is missing: install util-linux" >&2; exit 1; }
if [ "$(nproc)" -lt 2 ]; then
    echo "two cores are needed: one for the server, one for the client" >&2
    exit 1
fi

cargo build --release --quiet -p spillgate-server
cargo build --release --quiet --manifest-path bench/Cargo.toml -p compare -p limits -p loadgen
# If a program is installed already, Cargo ends at once. The build of throttlecrab-server needs the compiler protoc. The
# program protox accepts the arguments of protoc, so the script uses protox.
install() {
    cargo install --quiet --locked --root bench/target/peers --target-dir bench/target/peers/build "$@"
}
install protox --version 0.10.0 --features bin
PROTOC="$PWD/bench/target/peers/bin/protox" install "$PEER" --version "$PEER_VERSION"
if [ $# -eq 0 ]; then
    set -- grpc http scaling
fi
cd bench
echo "$PEER $PEER_VERSION is built with its own lock file and release profile."
echo
exec target/release/bench --throttlecrab "target/peers/bin/$PEER" "$@"
