//! The quotas of the random requests. For each algorithm except the leaky bucket (a queue), several quotas share one
//! state. These quotas differ in their limits, penalties and soft limits, and in whether refusals are charged. Queues
//! share no state, because their rates differ.

use std::time::Duration;

use spillgate_core::{Anchor, Denied, MAX_UNITS, Quota, QuotaBuilder};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn build(builders: impl IntoIterator<Item = QuotaBuilder>) -> Vec<Quota> {
    builders.into_iter().map(|builder| builder.build().expect("the quota is valid")).collect()
}

/// Returns a usual quota, and other quotas of the same algorithm and window.
fn siblings(of: impl Fn(u64) -> QuotaBuilder) -> Vec<QuotaBuilder> {
    vec![
        of(5),
        of(5),
        of(8),
        of(3).denied(Denied::Charged),
        of(4).penalty(Duration::from_millis(700)),
        of(2).penalty(Duration::new(1, 7)).denied(Denied::Charged),
        of(4).soft_ppm(500_000),
        of(0).penalty(SECOND),
    ]
}

pub(crate) fn token_buckets() -> Vec<Quota> {
    let mut all = siblings(|limit| Quota::token_bucket(limit, SECOND));
    all.extend([
        Quota::token_bucket(3, SECOND).burst(7),
        Quota::token_bucket(1_000_000_000, SECOND).burst(1),
        Quota::token_bucket(7, Duration::from_nanos(10_007)),
        Quota::token_bucket(150, DAY),
        Quota::token_bucket(1, 30 * YEAR).burst(2),
        Quota::token_bucket(3, 30 * YEAR).burst(7),
        Quota::token_bucket(1, Duration::from_nanos(1)).burst(1 << 53 >> 1),
    ]);
    build(all)
}

pub(crate) fn queues() -> Vec<Quota> {
    let mut all = siblings(|limit| Quota::leaky_bucket(limit, SECOND));
    all.extend([
        Quota::leaky_bucket(3, SECOND).queue(7),
        Quota::leaky_bucket(7, Duration::from_nanos(10_007)).queue(2),
        Quota::leaky_bucket(2, 20 * YEAR).queue(2),
        Quota::leaky_bucket(1, 20 * YEAR).queue(1),
    ]);
    build(all)
}

pub(crate) fn epoch_windows() -> Vec<Quota> {
    let mut all = siblings(|limit| Quota::fixed_window(limit, SECOND));
    all.extend([
        Quota::fixed_window(2, Duration::from_micros(1_234_567)),
        Quota::fixed_window(2, Duration::from_micros(1)),
        Quota::fixed_window(150, DAY),
        Quota::fixed_window(MAX_UNITS, 70 * YEAR),
    ]);
    build(all)
}

pub(crate) fn first_hit_windows() -> Vec<Quota> {
    let first_hit = |limit, window| Quota::fixed_window(limit, window).anchor(Anchor::FirstHit);
    let mut all = siblings(|limit| first_hit(limit, SECOND));
    all.extend([
        first_hit(2, Duration::from_nanos(10_007)),
        first_hit(2, Duration::from_nanos(1)),
        first_hit(150, DAY),
        first_hit(MAX_UNITS, 140 * YEAR),
    ]);
    build(all)
}

pub(crate) fn counters() -> Vec<Quota> {
    let mut all = siblings(|limit| Quota::sliding_window_counter(limit, SECOND));
    all.extend([
        Quota::sliding_window_counter(2, Duration::from_micros(1_234_567)),
        Quota::sliding_window_counter(2, Duration::from_micros(1)),
        Quota::sliding_window_counter(150, DAY),
        Quota::sliding_window_counter(150_000_000, DAY),
        Quota::sliding_window_counter(1 << 39, DAY),
        Quota::sliding_window_counter(MAX_UNITS, YEAR),
        Quota::sliding_window_counter(MAX_UNITS - 1, YEAR),
        Quota::sliding_window_counter(1 << 45, 70 * YEAR),
    ]);
    build(all)
}

pub(crate) fn segments() -> Vec<Quota> {
    let mut all = siblings(|limit| Quota::sliding_window_counter(limit, SECOND).segments(10));
    all.extend([
        Quota::sliding_window_counter(5, Duration::from_micros(1_234_569)).segments(3),
        Quota::sliding_window_counter(5, SECOND).segments(4).penalty(SECOND),
        Quota::sliding_window_counter(9, Duration::from_micros(128)).segments(128),
        Quota::sliding_window_counter(MAX_UNITS, 64 * YEAR).segments(128),
        Quota::sliding_window_counter(1 << 41, DAY).segments(2),
        Quota::sliding_window_counter((1 << 41) + 1, DAY).segments(2),
    ]);
    build(all)
}

pub(crate) fn logs() -> Vec<Quota> {
    let mut all = siblings(|limit| Quota::sliding_window_log(limit, SECOND));
    all.extend([
        Quota::sliding_window_log(2, Duration::from_nanos(10_007)),
        Quota::sliding_window_log(2, Duration::from_nanos(1)),
        Quota::sliding_window_log(40, DAY).denied(Denied::Charged),
        Quota::sliding_window_log(150, DAY),
        Quota::sliding_window_log(5, 140 * YEAR),
    ]);
    build(all)
}

/// Returns quotas with limits so high that one take can run the same Redis command several times.
pub(crate) fn large_logs() -> Vec<Quota> {
    build([
        Quota::sliding_window_log(10_000, SECOND),
        Quota::sliding_window_log(9_000, SECOND).denied(Denied::Charged),
        Quota::sliding_window_log(4_000, SECOND),
    ])
}

pub(crate) fn concurrency() -> Vec<Quota> {
    let of = |limit, lease| Quota::concurrency(limit).lease(lease);
    build([
        of(5, SECOND),
        of(8, SECOND * 3),
        of(3, Duration::from_nanos(700_000_001)).penalty(Duration::from_millis(700)),
        of(4, SECOND).soft_ppm(500_000),
        of(0, SECOND).penalty(SECOND),
        of(40, SECOND / 2),
    ])
}

/// Returns quotas whose windows pass during a test.
pub(crate) fn short() -> Vec<Quota> {
    let window = Duration::from_millis(70);
    let builders = [
        Quota::token_bucket(5, window),
        Quota::leaky_bucket(5, window),
        Quota::fixed_window(5, window),
        Quota::fixed_window(5, window).anchor(Anchor::FirstHit),
        Quota::sliding_window_counter(5, window),
        Quota::sliding_window_counter(5, window).segments(7),
        Quota::sliding_window_log(5, window),
    ];
    let charged = builders.map(|builder| builder.denied(Denied::Charged).penalty(window / 3));
    let leases = Quota::concurrency(5).lease(window);
    build(builders.into_iter().chain(charged).chain([leases, leases.penalty(window / 3)]))
}

/// Returns some quotas of each algorithm, so that a request can have hits of several algorithms.
pub(crate) fn mixed() -> Vec<Quota> {
    let all = [
        token_buckets(),
        queues(),
        epoch_windows(),
        first_hit_windows(),
        counters(),
        segments(),
        logs(),
        concurrency(),
    ];
    all.into_iter().flat_map(|quotas| quotas.into_iter().take(9)).collect()
}
