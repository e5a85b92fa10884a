#!/usr/bin/env bash
# Decisions per second of the server, in one run and on one server core: gRPC against tonic that answers without deciding
# and against throttlecrab-server, HTTP against axum that answers without deciding. Then two workers against one.
# Prints markdown for bench/RESULTS.md. Arguments go to the driver: scripts/show-server-speed.sh grpc --repetitions 9
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
# If a program is installed already, this ends at once. The peer needs protoc for its build; protox has the same arguments.
install() {
    cargo install --quiet --locked --root bench/target/peers --target-dir bench/target/peers/build "$@"
}
install protox --version 0.10.0 --features bin
PROTOC="$PWD/bench/target/peers/bin/protox" install "$PEER" --version "$PEER_VERSION"
if [ $# -eq 0 ]; then
    set -- grpc http scaling
fi
cd bench
echo "Peer: $PEER $PEER_VERSION, built with its own lock file and release profile."
echo
exec target/release/bench --throttlecrab "target/peers/bin/$PEER" "$@"
