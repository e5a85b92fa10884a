//! The metrics of other regions, with which this server shares limits.
//!
//! What the server sees of them is copied when a client reads the page of metrics. Without other regions, the page shows
//! none of these metrics.

use std::fmt::{Display, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;
use spillgate::Charged;
use spillgate::regions::{PeerStatus, Peers};

use super::histogram;
use super::registry::{Kind, Registry, labels};

const DELAY_BOUNDS_NS: [u64; PeerStatus::DELAY_BOUNDS_MS.len()] = {
    let mut bounds = PeerStatus::DELAY_BOUNDS_MS;
    let mut i = 0;
    while i < bounds.len() {
        bounds[i] *= 1_000_000;
        i += 1;
    }
    bounds
};

/// What the server sees of other regions.
#[derive(Debug, Default)]
struct Seen {
    regions: Vec<PeerStatus>,
    untold_units: u64,
    guaranteed: u64,
}

#[derive(Debug)]
pub struct RegionMetrics(Arc<Mutex<Seen>>);

impl RegionMetrics {
    pub(super) fn new(registry: &mut Registry) -> RegionMetrics {
        let metrics = RegionMetrics(Arc::default());
        let add = &mut Add { registry, seen: &metrics.0 };
        add.of_regions(
            "region_cut_off",
            Kind::Gauge,
            "1 while another region is cut off: something was sent to it, and it has accepted \
            nothing for 5 seconds",
            |status, line| line(&[], &u8::from(status.cut_off.is_some())),
        );
        add.of_regions(
            "region_waiting_keys",
            Kind::Gauge,
            "Entries with units that another region has not acknowledged. An entry is a key in one \
            span of time. Rests that are too small to be told wait too, so the number is seldom 0 \
            if limits are large",
            |status, line| {
                line(&[], &status.counts.waiting);
            },
        );
        add.of_regions(
            "region_differs",
            Kind::Gauge,
            "1 if another region differs in what has to agree. With `format`, `secret` or \
            `own_store`, it is told nothing",
            |status, line| {
                for (what, differs) in status.differs.all() {
                    line(&[("what", what)], &u8::from(differs));
                }
            },
        );
        add.of_regions(
            "region_entries",
            Kind::Counter,
            "Entries that another region has answered, by result. An entry is what was \
            admitted of one key in one span of time",
            |status, line| {
                for (result, count) in Charged::ALL.iter().zip(status.results) {
                    line(&[("result", result.as_str())], &count);
                }
            },
        );
        add.of_regions("region_units_sent", Kind::Counter, "Units that were sent to another region", |status, line| {
            line(&[], &status.counts.units_sent);
        });
        add.of_regions(
            "region_units_dropped",
            Kind::Counter,
            "Units that another region never acknowledged, and that are told no more: their span \
            is over, or the list of keys was full while the region was away. Rests that are too \
            small to be told are among them, so the number grows in normal work too",
            |status, line| line(&[], &status.counts.units_dropped),
        );
        add.all(
            "region_units_untold",
            "Units that no other region is told of, because the list of keys (regions.max_keys) was \
            full",
            |seen| seen.untold_units,
        );
        add.all(
            "guaranteed",
            "Requests that were admitted by the share of a limit that this region always has",
            |seen| seen.guaranteed,
        );
        let delays = "Time from when an entry had something to send until another region has acknowledged it";
        let seen = Arc::clone(&metrics.0);
        add.registry.lines("region_delay_seconds", delays, Kind::Histogram, move |name, out| {
            for status in &seen.lock().regions {
                let of = labels(&[("region", &status.name)]);
                let buckets = (&DELAY_BOUNDS_NS[..], status.delays.iter().copied());
                histogram::write_lines(name, &of, buckets, status.delay_sum_ns, out);
            }
        });
        metrics
    }

    /// Copies what the server sees of other regions. `guaranteed` is the number of requests that guaranteed shares have
    /// admitted.
    pub(crate) fn update(&self, peers: &Peers, guaranteed: u64) {
        *self.0.lock() = Seen { regions: peers.status(), untold_units: peers.untold_units(), guaranteed };
    }
}

/// Gets the further labels of a line, and its value.
type Line<'a> = dyn FnMut(&[(&str, &str)], &dyn Display) + 'a;

struct Add<'a> {
    registry: &'a mut Registry,
    seen: &'a Arc<Mutex<Seen>>,
}

impl Add<'_> {
    /// Adds a metric with the label `region`.
    fn of_regions(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &'static str,
        write: fn(&PeerStatus, &mut Line<'_>),
    ) {
        let seen = Arc::clone(self.seen);
        let total = if kind == Kind::Counter { "_total" } else { "" };
        self.registry.lines(name, help, kind, move |name, out| {
            for status in &seen.lock().regions {
                write(status, &mut |more, value| {
                    let all: Vec<_> = [("region", &*status.name)].into_iter().chain(more.iter().copied()).collect();
                    // Writing to a string cannot fail.
                    let _ = writeln!(out, "spillgate_{name}{total}{{{}}} {value}", labels(&all));
                });
            }
        });
    }

    /// Adds a counter of all regions together.
    fn all(&mut self, name: &'static str, help: &'static str, count: fn(&Seen) -> u64) {
        let seen = Arc::clone(self.seen);
        self.registry.lines(name, help, Kind::Counter, move |name, out| {
            let seen = seen.lock();
            if !seen.regions.is_empty() {
                let _ = writeln!(out, "spillgate_{name}_total {}", count(&seen));
            }
        });
    }
}
