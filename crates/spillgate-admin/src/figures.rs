//! The figures of the whole server: its requests, its store and its memory.
//!
//! The overview and the event stream show the same figures, and both get them from here.

use serde::Serialize;
use spillgate::Clock;
use spillgate_service::Totals;
use spillgate_service::metrics::resident_bytes;
use spillgate_service::shared_store::SharedStore;

use super::AdminState;

/// The figures of a server at one time.
#[derive(Serialize)]
pub(super) struct Figures<'a> {
    pub(super) at_ms: u64,
    pub(super) store: Store<'a>,
    pub(super) memory: Memory,
}

#[derive(Serialize)]
pub(super) struct Store<'a> {
    kind: &'static str,
    /// The URL of the shared store without its password. `None` if the store is memory.
    url: Option<&'a str>,
    up: Option<bool>,
    error: Option<&'static str>,
    latency_ns: Option<Latency>,
}

#[derive(Serialize)]
struct Latency {
    median: u64,
    p99: u64,
}

#[derive(Serialize)]
pub(super) struct Memory {
    keys: usize,
    keys_max: usize,
    full_requests: u64,
    process_bytes: Option<u64>,
}

/// The numbers of requests since the server started.
#[derive(Serialize)]
pub(super) struct Requests {
    allowed: u64,
    refused: u64,
    /// How many of the refused requests were refused by a block.
    blocked: u64,
    errors: u64,
}

impl From<Totals> for Requests {
    fn from(Totals { allowed, refused, blocked, errors }: Totals) -> Requests {
        Requests { allowed, refused, blocked, errors }
    }
}

impl<'a> Figures<'a> {
    pub(super) fn of<C: Clock>(state: &'a AdminState<C>) -> Figures<'a> {
        let service = &state.service;
        let health = service.limiter().store().health();
        let latency = health.as_ref().and_then(|health| service.store_latency(&health.calls.durations));
        let error = service.store_error();
        let memory = service.limiter().store().memory();
        Figures {
            at_ms: service.now_ms(),
            store: Store {
                kind: service.limiter().store().shared().map_or("memory", SharedStore::kind),
                url: state.store.as_deref(),
                up: health.is_some().then_some(error.is_none()),
                error: error.map(|kind| kind.explanation()),
                latency_ns: latency.map(|latency| Latency { median: latency.median_ns, p99: latency.p99_ns }),
            },
            memory: Memory {
                keys: memory.len(),
                keys_max: memory.max_keys(),
                full_requests: memory.full_requests(),
                process_bytes: resident_bytes(),
            },
        }
    }
}
