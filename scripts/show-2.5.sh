#!/usr/bin/env bash
# Counts the allocations of a request on each path of the real server, in steady state over one kept connection,
# beside tonic and axum that answer the same message at once, in one process. Prints markdown for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/.."

# Debug builds count alike and are built sooner.
cargo run --quiet --manifest-path bench/Cargo.toml -p allocations
cat <<'EON'

What is left over HTTP/1, and why:

- 3 of hyper's: the channel of a request's body, and a new read buffer with its handle, since it reads on while the
  request still holds the old one. A request without a body saves the first.
- 2 of ours for an answer: one buffer for the body and the values of all header fields, and the handle that lets
  them share it. The answer's header map is the request's; only answers that nobody asks for often make a new one.
- Forward-auth makes a header map (2), since the descriptors borrow the request's, and the text of the client's address.
EON
