//! Tests of sketches. Loom is a model checker for threads. Its atomics work only inside its own models, so a build for
//! loom has only the module `model`.

#[cfg(not(loom))]
mod beside;
#[cfg(not(loom))]
mod bounds;
#[cfg(not(loom))]
mod clocks;
#[cfg(not(loom))]
mod data;
#[cfg(not(loom))]
mod exact;
#[cfg(not(loom))]
mod forecast;
#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod unlocked;

#[cfg(not(loom))]
mod common {
    use std::time::Duration;

    use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, QuotaBuilder, State, Time, decide};

    pub(super) const SECOND: u64 = 1_000_000_000;

    /// Returns a quota of each algorithm that a sketch supports: at most `limit` units in `window_ns`.
    pub(super) fn quotas(limit: u64, window_ns: u64) -> Vec<Quota> {
        let window = Duration::from_nanos(window_ns);
        let build = |builder: QuotaBuilder| builder.build().expect("the quota is valid");
        vec![
            build(Quota::token_bucket(limit, window)),
            build(Quota::token_bucket(limit, window).burst(2).soft_ppm(500_000)),
            build(Quota::leaky_bucket(limit, window).queue(3)),
            build(Quota::fixed_window(limit, window).anchor(Anchor::Epoch)),
            build(Quota::sliding_window_counter(limit, window)),
            build(Quota::sliding_window_counter(limit, window).soft_ppm(300_000)),
        ]
    }

    /// Takes `cost` units, and accepts any delay in a queue.
    pub(super) fn take(cost: u64) -> Op {
        Op::Take { cost, max_wait_ns: u64::MAX }
    }

    /// The exact state of a key, with all units that the sketch admitted.
    #[derive(Clone, Default)]
    pub(super) struct Exact(State);

    impl Exact {
        /// Decides the same hit on the exact state.
        pub(super) fn decide(&mut self, quota: &Quota, op: Op, now: Time) -> Decision {
            let mut decision = [Decision::default()];
            let hit = Hit::new(7, quota, op, Binding::Enforce);
            let _ = decide(std::slice::from_mut(&mut self.0), &[0], &[hit], now, &mut decision);
            decision[0]
        }
    }
}
