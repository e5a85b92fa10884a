//! Bounds the calls that clients can keep open: `Watch` of the health service, and reflection.
//!
//! Each of them needs about 15 kB as long as the client wants. Without a bound, a few clients could take gigabytes. The
//! messages of reflection that the server has not read are not part of these bytes: the listener counts them.

use std::sync::Arc;

use spillgate_service::metrics::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// The maximum number of such calls on one connection. A client needs one of each kind.
pub(super) const OF_CONNECTION: usize = 4;

/// The maximum number of such calls on all connections of a listener.
pub(super) const OF_LISTENER: usize = 512;

/// What one such call takes at most, without the messages that have arrived and are not read.
const CALL_BYTES: usize = 16 << 10;

/// The maximum length of a message to reflection, which names a file or a symbol. Only the last piece of these messages is
/// counted as memory in flight, so what came before it must be a small part of [`CALL_BYTES`].
pub(super) const REFLECTION_MESSAGE_BYTES: usize = 1 << 10;

/// What all such calls of a listener take at most.
pub const OPEN_CALLS_BYTES: usize = OF_LISTENER * CALL_BYTES;

/// The method that Kubernetes and proxies call again and again. It is answered at once, so it needs no bound, and no
/// open call may keep it from its answer.
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// The places for open calls of a listener.
#[derive(Clone, Debug)]
pub(super) struct OfListener {
    places: Arc<Semaphore>,
    open: Gauge,
}

/// The places for open calls of one connection.
#[derive(Debug)]
pub(super) struct OfConnection {
    listener: Arc<Semaphore>,
    connection: Arc<Semaphore>,
    open: Gauge,
}

/// The place of one call. It is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _taken: Option<Taken>,
}

#[derive(Debug)]
struct Taken {
    _permits: [OwnedSemaphorePermit; 2],
    open: Gauge,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl OfListener {
    /// Makes the places. The gauge `open` counts those that are taken.
    pub(super) fn new(open: Gauge) -> OfListener {
        OfListener { places: Arc::new(Semaphore::new(OF_LISTENER)), open }
    }

    pub(super) fn connection(&self) -> OfConnection {
        let (listener, connection) = (Arc::clone(&self.places), Arc::new(Semaphore::new(OF_CONNECTION)));
        OfConnection { listener, connection, open: self.open.clone() }
    }
}

impl OfConnection {
    /// Takes a place for a call of the method `path`.
    pub(super) fn take(&self, path: &str) -> Result<Place, Status> {
        if path == CHECK {
            return Ok(Place { _taken: None });
        }
        let take = |places: &Arc<Semaphore>, of: &str, at_most: usize| {
            let full = |_| {
                let text = format!("too many health watches and reflection calls are open: at most {at_most} {of}");
                Status::resource_exhausted(text)
            };
            Arc::clone(places).try_acquire_owned().map_err(full)
        };
        let connection = take(&self.connection, "on a connection", OF_CONNECTION)?;
        let listener = take(&self.listener, "on a listener", OF_LISTENER)?;
        self.open.inc();
        let taken = Taken { _permits: [connection, listener], open: self.open.clone() };
        Ok(Place { _taken: Some(taken) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_calls_have_a_bound_on_a_connection_and_on_a_listener() {
        let gauge = Gauge::default();
        let listener = OfListener::new(gauge.clone());
        let connections: Vec<_> = (0..OF_LISTENER / OF_CONNECTION + 1).map(|_| listener.connection()).collect();
        let take = |at: usize| connections[at].take("/grpc.health.v1.Health/Watch");
        let mut open: Vec<_> = (0..OF_CONNECTION).map(|_| take(0).expect("there is a place")).collect();
        let full = take(0).expect_err("the connection has no place");
        assert!(full.message().ends_with("at most 4 on a connection"), "{full}");
        open.extend((OF_CONNECTION..OF_LISTENER).map(|at| take(at / OF_CONNECTION).expect("there is a place")));
        let last = connections.len() - 1;
        let full = take(last).expect_err("the listener has no place");
        assert!(full.message().ends_with("at most 512 on a listener"), "{full}");
        assert!(connections[0].take(CHECK).is_ok() && connections[last].take(CHECK).is_ok());
        assert_eq!(gauge.get(), 512);
        open.pop();
        assert_eq!(gauge.get(), 511);
        open.push(take(last).expect("a place is free again, and the refusals took none"));
        assert!(take(last).is_err());
    }
}
