//! How much memory clients can make the server hold, for all clients together.
//!
//! Each row is a bound times what one such thing takes at most. `make show-memory-of-clients` drives each row to its
//! bound, and compares the memory of the process with it.

use super::Limits;
use super::{in_flight, unread};

/// The buffers of a connection when its client has sent the largest unfinished head or frame: what was read, what was
/// decoded, and what is written. An HTTP/1 connection takes about 62 KiB. An HTTP/2 connection takes about 75 KiB, and
/// up to 20 KiB for its first streams.
const CONNECTION_BYTES: usize = 96 << 10;

/// What TLS adds to a connection: a message of up to 64 KiB that is not whole, a record that was decrypted, what was encrypted,
/// and the keys.
const TLS_BYTES: usize = 128 << 10;

/// The longest chain of certificates of a client. It is kept while the connection is open.
const CHAIN_BYTES: usize = 64 << 10;

/// What h2 can decode of the bytes of one turn before the server counts the requests. With references to its table of
/// header fields, a client needs one byte for a field of a request.
const TURN_BYTES: usize = 4 << 20;

/// Returns the bytes that clients can make the server hold, by what holds them. `listeners` is the number of listeners
/// for clients, and `workers` the number of threads that serve them. A shared store waits for late replies. `has_admin` and
/// `has_health` say whether these listeners are on, `encrypted` is the number of connections that can have TLS, and `certified`
/// is how many of them need a certificate of the client.
#[must_use]
pub fn worst_case(
    limits: &Limits,
    listeners: usize,
    (has_admin, has_health): (bool, bool),
    workers: usize,
    is_shared: bool,
    (encrypted, certified): (usize, usize),
) -> Vec<(&'static str, usize)> {
    let connections = limits.connections.saturating_mul(listeners);
    let own = in_flight::OWN_BYTES + unread::OWN_BYTES;
    let of_operators = limits.admin_connections().saturating_mul(CONNECTION_BYTES + own);
    let if_admin = |bytes| if has_admin { bytes } else { 0 };
    let if_health = |bytes| if has_health { bytes } else { 0 };
    vec![
        ("connections of clients", connections.saturating_mul(CONNECTION_BYTES + own)),
        ("connections of the admin listener", if_admin(of_operators)),
        ("connections of the health listener", if_health(of_operators)),
        ("TLS of connections", encrypted.saturating_mul(TLS_BYTES)),
        ("certificates of clients", certified.saturating_mul(CHAIN_BYTES)),
        ("requests in flight (limits.in_flight)", limits.in_flight),
        ("unread answers (limits.unread)", limits.unread),
        (
            "requests of one turn, 4MiB for each worker",
            (workers + usize::from(has_admin || has_health)).saturating_mul(TURN_BYTES),
        ),
        ("health watches and reflection over gRPC", spillgate_grpc::OPEN_CALLS_BYTES),
        ("charges of clients that hung up", spillgate_http::HANG_UPS_BYTES),
        ("settlements of clients that hung up", if is_shared { spillgate_service::SETTLEMENTS_BYTES } else { 0 }),
        ("late answers of a shared store", if is_shared { spillgate_redis::LATE_HITS_BYTES } else { 0 }),
        ("pages of the admin listener", if_admin(spillgate_admin::PAGES_BYTES)),
        ("pages of the health listener", if_health(spillgate_admin::HEALTH_PAGES_BYTES)),
        ("event streams of the admin listener", if_admin(spillgate_admin::EVENT_STREAMS_BYTES)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Sources, resolve};

    #[test]
    fn the_defaults_stay_below_1_gib_with_8_workers_and_a_shared_store() {
        let limits = resolve(&Sources::default()).expect("the defaults are valid").settings.limits.clients;
        let rows = worst_case(&limits, 2, (true, false), 8, true, (0, 0));
        let sum: usize = rows.iter().map(|(_, bytes)| bytes).sum();
        assert!(sum < 1 << 30, "{sum} bytes: {rows:?}");
    }
}
