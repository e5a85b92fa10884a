//! Bounds the calls that clients can keep open: `Watch` of the health service, and reflection.
//!
//! Each of them needs about 15 kB as long as the client wants. Without a bound, a few clients could take gigabytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// The maximum number of such calls on one connection. A client needs one of each kind.
pub(super) const OF_CONNECTION: usize = 4;

/// The maximum number of such calls on all connections of a listener.
pub(super) const OF_LISTENER: usize = 512;

/// The method that Kubernetes and proxies call again and again. It is answered at once, so it needs no bound, and no
/// open call may keep it from its answer.
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// The places for open calls of a listener.
#[derive(Clone, Debug)]
pub(super) struct OfListener(Arc<Semaphore>);

/// The places for open calls of one connection.
#[derive(Debug)]
pub(super) struct OfConnection {
    listener: Arc<Semaphore>,
    connection: Arc<Semaphore>,
}

/// The place of one call. It is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permits: Option<[OwnedSemaphorePermit; 2]>,
}

impl OfListener {
    pub(super) fn new() -> OfListener {
        OfListener(Arc::new(Semaphore::new(OF_LISTENER)))
    }

    pub(super) fn connection(&self) -> OfConnection {
        OfConnection { listener: Arc::clone(&self.0), connection: Arc::new(Semaphore::new(OF_CONNECTION)) }
    }
}

impl OfConnection {
    /// Takes a place for a call of the method `path`.
    pub(super) fn take(&self, path: &str) -> Result<Place, Status> {
        if path == CHECK {
            return Ok(Place { _permits: None });
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
        Ok(Place { _permits: Some([connection, listener]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_calls_have_a_bound_on_a_connection_and_on_a_listener() {
        let listener = OfListener::new();
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
        open.pop();
        open.push(take(last).expect("a place is free again, and the refusals took none"));
        assert!(take(last).is_err());
    }
}
