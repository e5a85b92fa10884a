//! Counts requests by protocol, by source of the decision, and by outcome.
//!
//! All these counters exist from the start, and a request computes the index of its counter instead of searching.

use spillgate::{Source, Verdict};

use super::registry::Registry;
use super::sharded::{Sharded, ThreadNumber};

/// The protocol under which a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Protocol {
    /// gRPC, with Envoy's rate limit service.
    Grpc,
    /// HTTP, whichever route was called. This includes RLS in JSON (`POST /json`).
    #[default]
    Http,
}

impl Protocol {
    const ALL: [Protocol; 2] = [Protocol::Grpc, Protocol::Http];

    const fn as_str(self) -> &'static str {
        match self {
            Protocol::Grpc => "grpc",
            Protocol::Http => "http",
        }
    }
}

const SOURCES: [Source; 4] = [Source::Store, Source::DenyCache, Source::Local, Source::Policy];
const OUTCOMES: [&str; 2] = ["refused", "allowed"];
/// The index of the counter of descriptors that no rule matched. It comes after the counters of requests.
const UNMATCHED: usize = Protocol::ALL.len() * SOURCES.len() * OUTCOMES.len();
const COUNTERS: usize = UNMATCHED + 1;

#[derive(Debug)]
pub(super) struct Requests(Sharded<COUNTERS>);

impl Requests {
    pub(super) fn new(registry: &mut Registry) -> Requests {
        let counters = Sharded::new();
        let all = Protocol::ALL.iter().flat_map(|protocol| {
            SOURCES.iter().flat_map(move |source| {
                OUTCOMES.map(|outcome| {
                    vec![("protocol", protocol.as_str()), ("source", source.as_str()), ("outcome", outcome)]
                })
            })
        });
        registry.sharded(
            "requests",
            "Requests that were allowed or refused, by source of the decision",
            all,
            (&counters, 0),
        );
        let help = "Descriptors that no rule matched";
        registry.sharded("unmatched_descriptors", help, [vec![]].into_iter(), (&counters, UNMATCHED));
        Requests(counters)
    }

    #[inline]
    pub(super) fn count(&self, thread: ThreadNumber, protocol: Protocol, verdict: &Verdict) {
        let index = (protocol as usize * SOURCES.len() + verdict.source as usize) * OUTCOMES.len();
        self.0.add(thread, index + usize::from(verdict.allowed), 1);
    }

    /// Counts a descriptor that no rule matched.
    #[inline]
    pub(super) fn count_unmatched(&self, thread: ThreadNumber) {
        self.0.add(thread, UNMATCHED, 1);
    }

    /// Returns how many descriptors no rule matched.
    pub(super) fn unmatched(&self) -> u64 {
        self.0.sums()[UNMATCHED]
    }

    /// Returns how many requests were allowed, or how many were refused.
    pub(super) fn count_of(&self, allowed: bool) -> u64 {
        let sums = self.0.sums();
        sums[..UNMATCHED].iter().skip(usize::from(allowed)).step_by(OUTCOMES.len()).sum()
    }
}
