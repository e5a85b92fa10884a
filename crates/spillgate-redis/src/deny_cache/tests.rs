use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use spillgate_core::{
    Anchor, Binding, Decision, Denied, Hit, MAX_HITS, Op, OpKind, Quota, QuotaBuilder, Reason, Source, State, Time,
    Verdict, Wait, decide,
};
use tokio::time::Instant;

use super::{DenyCache, Entry, Question, asked};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(1000);
/// The store's time at which its clock and ours begin.
const START_NS: u64 = 1_790_000_000_000_000_000;

fn build(builder: QuotaBuilder) -> Quota {
    builder.build().expect("valid")
}

/// One of each algorithm that refuses for a time that is known.
fn timed(limit: u64) -> [QuotaBuilder; 7] {
    [
        Quota::token_bucket(limit, SECOND),
        Quota::leaky_bucket(limit, SECOND),
        Quota::fixed_window(limit, SECOND),
        Quota::fixed_window(limit, SECOND).anchor(Anchor::FirstHit),
        Quota::sliding_window_counter(limit, SECOND),
        Quota::sliding_window_counter(limit, SECOND).segments(10),
        Quota::sliding_window_log(limit, SECOND),
    ]
}

/// xorshift64* (Vigna, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound.max(1)
    }

    fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// A store that decides by the kernel, at times of its own.
#[derive(Clone, Default)]
struct Model(BTreeMap<u128, State>);

impl Model {
    fn decide(&mut self, now: Time, hits: &[Hit<'_>]) -> (Verdict, Vec<Decision>) {
        let mut keys: Vec<u128> = hits.iter().map(Hit::state_key).collect();
        keys.sort_unstable();
        keys.dedup();
        let state_of: Vec<usize> = hits.iter().map(|hit| keys.partition_point(|key| *key < hit.state_key())).collect();
        let mut states: Vec<State> = keys.iter().map(|key| self.0.remove(key).unwrap_or_default()).collect();
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = decide(&mut states, &state_of, hits, now, &mut decisions);
        self.0.extend(keys.into_iter().zip(states));
        (verdict, decisions)
    }
}

/// A cache before a model, and both their clocks.
struct World {
    cache: Rc<DenyCache>,
    model: Model,
    /// Ours, in nanoseconds.
    at_ns: u64,
    /// By how many millionths the store's clock is faster.
    drift_ppm: i64,
    /// For each state, cost and longest wait the state that refused such a take last.
    refusing: BTreeMap<(u128, u64, u64), State>,
}

impl World {
    fn new(max_age: Duration) -> World {
        let (cache, model) = (Rc::new(DenyCache::new(64, max_age)), Model::default());
        World { cache, model, at_ns: 1, drift_ppm: 0, refusing: BTreeMap::new() }
    }

    fn at(&self) -> Instant {
        self.cache.start + Duration::from_nanos(self.at_ns)
    }

    fn now(&self) -> Time {
        let drift = i128::from(self.at_ns) * i128::from(self.drift_ppm) / 1_000_000;
        Time::from_nanos(START_NS + self.at_ns.saturating_add_signed(drift as i64))
    }

    /// What the cache says.
    fn known(&self, hits: &[Hit<'_>]) -> Option<(Verdict, Vec<Decision>)> {
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = self.cache.answer(hits, &mut decisions, self.at())?;
        Some((verdict, decisions))
    }

    /// Has the store decide.
    fn ask(&mut self, hits: &[Hit<'_>]) -> (Verdict, Vec<Decision>) {
        let (verdict, decisions) = self.model.decide(self.now(), hits);
        let question = self.cache.question(hits, self.at());
        question.learn(&decisions, verdict.now, self.at());
        for (hit, decision) in hits.iter().zip(&decisions) {
            if let (Some((cost, max_wait_ns)), false) = (asked(hit, hits), decision.allowed) {
                let state = self.model.0[&hit.state_key()].clone();
                self.refusing.insert((hit.state_key(), cost, max_wait_ns), state);
            }
        }
        (verdict, decisions)
    }

    /// How long the kernel would have the take wait, had nobody else taken since it was refused.
    fn wait_since_refused_ns(&self, hit: &Hit<'_>) -> u64 {
        let (cost, max_wait_ns) = asked(hit, &[*hit]).expect("a take that is refused for free");
        let mut decisions = [Decision::default()];
        let mut states = [self.refusing[&(hit.state_key(), cost, max_wait_ns)].clone()];
        decide(&mut states, &[0], &[*hit], self.now(), &mut decisions);
        wait_ns(&decisions[0])
    }

    /// As much as the store's clock may be ahead or behind of what was told by ours.
    fn drift_ns(&self) -> u64 {
        (u128::from(self.at_ns) * u128::from(self.drift_ppm.unsigned_abs())).div_ceil(1_000_000) as u64
    }

    /// Takes one unit after the other until they are refused.
    fn exhaust(&mut self, key: u128, quota: &Quota) -> Decision {
        let hits = [take(key, quota, 1)];
        loop {
            let (verdict, decisions) = self.ask(&hits);
            if !verdict.allowed {
                return decisions[0];
            }
        }
    }

    fn entries(&self) -> usize {
        self.cache.sets.iter().map(|set| set.lock().expect("nobody panicked").entries.len()).sum()
    }
}

fn wait_ns(decision: &Decision) -> u64 {
    decision.retry_after.nanos().expect("a wait that is known")
}

fn take(key: u128, quota: &Quota, cost: u64) -> Hit<'_> {
    Hit::new(key, quota, Op::take(cost), Binding::Enforce)
}

#[test]
fn a_refusal_is_repeated_as_the_store_would_tell_it() {
    for quota in timed(5).map(build) {
        let mut world = World::new(LONG);
        let told = world.exhaust(7, &quota);
        let Some(wait_ns) = told.retry_after.nanos() else { panic!("{told:?}") };
        let hits = [take(7, &quota, 1)];
        // Up to a thousandth before the wait is over.
        let until_ns = wait_ns - wait_ns.div_ceil(1000);
        for passed in [0, 1, until_ns / 3, until_ns - 1] {
            world.at_ns = 1 + passed;
            let (verdict, decisions) = world.known(&hits).expect("known");
            let (kernels, exact) = world.model.clone().decide(world.now(), &hits);
            assert_eq!(verdict, Verdict { source: Source::DenyCache, ..kernels }, "{quota:?} after {passed}");
            // What has come back meanwhile is not told.
            assert_eq!(decisions[0], Decision { remaining: told.remaining, ..exact[0] }, "{quota:?} after {passed}");
        }
        world.at_ns = 1 + until_ns;
        assert!(world.known(&hits).is_none(), "{quota:?}");
        assert_eq!(world.cache.answered(), 4);
    }
}

#[test]
fn only_the_same_quota_cost_and_wait_are_answered() {
    let queue = |queue| build(Quota::leaky_bucket(5, SECOND).queue(queue));
    let (quota, other) = (queue(5), queue(6));
    let mut world = World::new(LONG);
    let hit = |quota, cost, max_wait_ns| [Hit::new(7, quota, Op::Take { cost, max_wait_ns }, Binding::Enforce)];
    while world.ask(&hit(&quota, 3, u64::MAX)).0.allowed {}
    assert!(world.known(&hit(&quota, 3, u64::MAX)).is_some());
    assert!(world.known(&hit(&quota, 4, u64::MAX)).is_none(), "a higher cost, which has to wait for longer");
    assert!(world.known(&hit(&quota, 2, u64::MAX)).is_none(), "a lower cost");
    assert!(world.known(&hit(&quota, 7, u64::MAX)).is_none(), "a cost that never fits: the store says never");
    assert!(world.known(&hit(&quota, 3, u64::MAX - 1)).is_none(), "another wait");
    assert!(world.known(&hit(&other, 3, u64::MAX)).is_none(), "another quota");
    assert!(world.known(&[Hit::new(7, &quota, Op::Look, Binding::Enforce)]).is_none(), "a look");
    for binding in [Binding::Shadow, Binding::Quota] {
        let hits = hit(&quota, 3, u64::MAX).map(|hit| Hit { binding, ..hit });
        assert!(world.known(&hits).is_none(), "{binding:?}");
    }
}

#[test]
fn a_request_that_does_more_than_being_refused_is_asked() {
    let free = build(Quota::token_bucket(5, SECOND));
    let charged = build(Quota::token_bucket(5, SECOND * 2).denied(Denied::Charged));
    let punished = build(Quota::token_bucket(5, SECOND * 3).penalty(SECOND));
    let mut world = World::new(LONG);
    world.exhaust(7, &free);
    let beside = |quota, op, binding| [take(7, &free, 1), Hit::new(8, quota, op, binding)];
    for binding in [Binding::Enforce, Binding::Shadow, Binding::Quota] {
        for op in [Op::take(2), Op::Look, Op::take(0)] {
            let (verdict, decisions) = world.known(&beside(&free, op, binding)).expect("known");
            assert_eq!((verdict.allowed, verdict.binding, verdict.source), (false, Some(0), Source::DenyCache));
            assert_eq!(verdict.retry_after, decisions[0].retry_after);
            let not_asked = Decision { reason: Reason::NotAsked, limit: 5, ..Decision::default() };
            assert_eq!(decisions[1], not_asked);
            assert!(world.known(&beside(&charged, op, binding)).is_none(), "{op:?} that may be charged");
            assert!(world.known(&beside(&punished, op, binding)).is_none(), "{op:?} that may be punished");
        }
        for op in [Op::Force { cost: 1 }, Op::Refund { cost: 1, receipt: None }, Op::Reset] {
            assert!(world.known(&beside(&free, op, binding)).is_none(), "{op:?}");
        }
    }
}

#[test]
fn what_may_end_otherwise_than_by_time_is_not_learnt() {
    let mut world = World::new(LONG);
    let quotas = [
        build(Quota::token_bucket(5, SECOND).denied(Denied::Charged)),
        build(Quota::token_bucket(5, SECOND * 2).penalty(SECOND)),
        build(Quota::concurrency(5)),
        build(Quota::token_bucket(0, SECOND)),
    ];
    for quota in &quotas {
        world.exhaust(7, quota);
    }
    let quota = build(Quota::token_bucket(5, SECOND * 3));
    // Two hits on one state are judged together.
    while world.ask(&[take(7, &quota, 1), take(7, &quota, 2)]).0.allowed {}
    assert_eq!(world.entries(), 0);
    // A time that is over before the answer is there.
    let short = build(Quota::token_bucket(1, Duration::from_nanos(900)).burst(1));
    let hits = [take(9, &short, 1)];
    while world.ask(&hits).0.allowed {}
    assert_eq!(world.entries(), 1, "899 ns are worth it at once");
    let question = world.cache.question(&hits, world.at());
    question.learn(
        &[Decision { allowed: false, retry_after: Wait::After(1), ..Decision::default() }],
        world.now(),
        world.at(),
    );
    world.at_ns += 899;
    assert!(world.known(&hits).is_none());
}

#[test]
fn an_entry_lasts_no_longer_than_it_may() {
    let quota = build(Quota::fixed_window(1, LONG).anchor(Anchor::FirstHit));
    let hits = [take(7, &quota, 1)];
    for (max_age, lasts) in [(SECOND, SECOND), (SECOND / 50, SECOND / 50), (LONG * 2, LONG - SECOND)] {
        let mut world = World::new(max_age);
        world.model.decide(world.now(), &hits);
        let (verdict, decisions) = world.model.decide(world.now(), &hits);
        let sent = world.at();
        // However late the answer comes.
        world.cache.question(&hits, sent).learn(&decisions, verdict.now, sent + lasts / 2);
        world.at_ns += lasts.as_nanos() as u64 - 1;
        assert!(world.known(&hits).is_some(), "{max_age:?}");
        world.at_ns += 1;
        assert!(world.known(&hits).is_none(), "{max_age:?}");
        world.cache.question(&hits, sent).learn(&decisions, verdict.now, sent + lasts);
        assert!(world.known(&hits).is_none(), "an answer that comes as late as that");
    }
}

#[test]
fn there_are_no_more_entries_than_places() {
    let quota = build(Quota::fixed_window(1, LONG));
    for places in [0, 1, 2, 3, 4, 5, 64, 1000] {
        let mut world = World::new(LONG);
        world.cache = Rc::new(DenyCache::new(places, LONG));
        // Keys that are no hashes, too.
        for key in (0..4000).chain((0..4000).map(|key| key << 64)) {
            world.exhaust(key, &quota);
            assert!(places < 2 || world.known(&[take(key, &quota, 1)]).is_some(), "the newest is kept");
        }
        let kept = world.entries();
        assert!(kept <= places && kept >= places / 4 * 4, "{kept} entries in {places} places");
        let owned: usize = world.cache.sets.iter().map(|set| set.lock().expect("held").entries.capacity()).sum();
        assert!(owned <= places, "room for {owned} entries in {places} places");
    }
    assert!(size_of::<Entry>() <= 256, "{} bytes an entry", size_of::<Entry>());
    let world = World::new(LONG);
    assert!(world.known(&vec![take(1, &quota, 1); MAX_HITS]).is_none());
}

#[test]
fn a_reset_or_refund_ends_the_entry_and_what_was_asked_before_it_is_not_learnt() {
    let quota = build(Quota::fixed_window(2, LONG));
    for op in [Op::Reset, Op::Refund { cost: 1, receipt: None }] {
        let mut world = World::new(LONG);
        let hits = [take(7, &quota, 1)];
        world.exhaust(7, &quota);
        assert!(world.known(&hits).is_some());
        let (early, undo) = (world.at(), [Hit::new(7, &quota, op, Binding::Enforce)]);
        let cache = Rc::clone(&world.cache);
        let question = cache.question(&hits, early);
        let (verdict, refused) = world.model.decide(world.now(), &hits);
        assert!(!verdict.allowed);
        world.ask(&undo);
        assert!(world.known(&hits).is_none(), "{op:?}");
        question.learn(&refused, verdict.now, world.at());
        assert!(world.known(&hits).is_none(), "an answer from before the {op:?}");
        drop(question);
        // Nobody waits for the end of one that fails, or is given up.
        world.exhaust(7, &quota);
        assert!(world.known(&hits).is_some(), "a question from after it");
        drop(world.cache.question(&undo, world.at()));
        assert!(world.known(&hits).is_none(), "{op:?} without an answer");
    }
}

#[test]
fn a_question_of_another_quota_on_the_state_ends_the_entry() {
    let (slow, fast) = (build(Quota::token_bucket(1, LONG).burst(5)), build(Quota::token_bucket(100, LONG).burst(5)));
    let mut world = World::new(LONG);
    world.exhaust(7, &slow);
    let look = [Hit::new(7, &fast, Op::Look, Binding::Shadow)];
    world.ask(&look);
    assert_eq!(world.entries(), 0, "a look converts debt, too");
    // Then it is paid sooner than was told.
    world.at_ns += 60 * 1_000_000_000;
    world.ask(&look);
    assert!(world.ask(&[take(7, &slow, 1)]).0.allowed);
}

/// What is under way in a world.
struct InFlight<'w> {
    question: Question<'w, 'w, 'w>,
    decided: Option<(Verdict, Vec<Decision>)>,
    is_undone: bool,
}

/// Quotas on the same states, of all kinds.
fn siblings() -> Vec<Quota> {
    let all = timed(5).into_iter().chain(timed(3)).chain(timed(8));
    let odd = [
        Quota::token_bucket(3, SECOND).burst(7),
        Quota::sliding_window_log(4, SECOND).denied(Denied::Charged),
        Quota::token_bucket(4, SECOND).penalty(SECOND / 3),
        Quota::fixed_window(4, SECOND).soft_ppm(500_000),
        Quota::concurrency(3).lease(SECOND),
        Quota::token_bucket(0, SECOND),
    ];
    all.chain(odd).map(build).collect()
}

fn random_hit<'q>(random: &mut Random, quota: &'q Quota) -> Hit<'q> {
    let cost = *random.pick(&[1, 1, 1, 1, 2, 3, 4]);
    let op = match random.below(40) {
        0 => Op::Look,
        1 => Op::Force { cost },
        2 => Op::Refund { cost, receipt: None },
        3 => Op::Reset,
        4 => Op::take(0),
        5 => Op::take(9),
        _ => Op::Take { cost, max_wait_ns: *random.pick(&[u64::MAX, u64::MAX, 100_000_000]) },
    };
    let bindings = [Binding::Enforce, Binding::Enforce, Binding::Enforce, Binding::Shadow, Binding::Quota];
    Hit::new(u128::from(random.below(2)), quota, op, *random.pick(&bindings))
}

/// Holds what the cache says to what the kernel would, where a wait may be told as that much longer.
fn check(world: &World, hits: &[Hit<'_>], verdict: &Verdict, decisions: &[Decision], late_ns: u64) {
    let (kernels, exact) = world.model.clone().decide(world.now(), hits);
    assert!(!kernels.allowed && !verdict.allowed, "{hits:?}: {decisions:?} where the kernel says {exact:?}");
    assert_eq!(verdict.source, Source::DenyCache);
    let binding = verdict.binding.expect("one binds");
    assert_eq!(verdict.retry_after, decisions[binding].retry_after);
    assert!(hits[binding].binding == Binding::Enforce && !exact[binding].allowed);
    for (decision, exact) in decisions.iter().zip(&exact) {
        assert_eq!(decision.limit, exact.limit);
        assert_eq!((decision.receipt, decision.delay_ns, decision.soft_over), (None, 0, false));
        if decision.allowed {
            assert_eq!((decision.reason, decision.remaining), (Reason::NotAsked, 0));
        } else {
            let reasons = [Reason::Exceeded, Reason::WaitTooLong];
            assert!(
                !exact.allowed && reasons.contains(&decision.reason) && reasons.contains(&exact.reason),
                "{exact:?}"
            );
            assert!(decision.retry_after > Wait::NONE && decision.remaining < decision.limit, "{decision:?}");
            // What others took since it was refused may have it wait for longer.
            assert!(wait_ns(decision) <= wait_ns(exact) + late_ns, "{decision:?}, by the kernel {exact:?}");
        }
    }
}

/// One request after the other: quotas of all kinds on the same states.
#[test]
fn nothing_is_refused_that_the_kernel_would_allow() {
    let (quotas, mut random) = (siblings(), Random(3));
    let (mut answered, mut asked) = (0, 0);
    for i in 0..400 {
        let mut world = World::new(if i % 4 == 0 { SECOND / 4 } else { LONG });
        world.drift_ppm = [0, 900, -900][i % 3];
        // Mostly one quota, and some that share its states.
        let focus = &quotas[i % quotas.len()];
        let kin: Vec<&Quota> = quotas.iter().filter(|quota| quota.identity() == focus.identity()).collect();
        for _ in 0..500 {
            let several = if random.below(3) > 0 { 1 } else { 1 + random.below(3) };
            let foreign = random.below(30) == 0;
            let hits: Vec<Hit<'_>> = (0..several)
                .map(|_| {
                    let quota = if foreign { *random.pick(&kin) } else { focus };
                    random_hit(&mut random, quota)
                })
                .collect();
            match world.known(&hits) {
                Some((verdict, decisions)) => {
                    answered += 1;
                    check(&world, &hits, &verdict, &decisions, world.drift_ns());
                    for (hit, decision) in hits.iter().zip(&decisions).filter(|(_, decision)| !decision.allowed) {
                        let (told, kernels) = (wait_ns(decision), world.wait_since_refused_ns(hit));
                        assert!(
                            told.abs_diff(kernels) <= world.drift_ns(),
                            "{told} for {hit:?}, by the kernel {kernels}"
                        );
                    }
                }
                None => {
                    asked += 1;
                    world.ask(&hits);
                }
            }
            world.at_ns += *random.pick(&[0, 1, 1_000, 1_000_000, 30_000_000, 200_000_000]);
        }
    }
    assert!(answered > 5_000 && asked > 10_000, "{answered} answered, {asked} asked");
}

/// Many requests at once, whose answers come in any order: what is under way may still be refused, and nothing after it.
#[test]
fn nothing_is_refused_that_the_kernel_would_allow_whatever_the_order_of_answers() {
    let (quotas, mut random) = (timed(4).map(build), Random(4));
    let (mut answered, mut overtaken) = (0, 0);
    for i in 0..300 {
        let quota = &quotas[i % quotas.len()];
        let hits: Vec<[Hit<'_>; 1]> = (0..500).map(|_| [random_hit(&mut random, quota)]).collect();
        let mut world = World::new(LONG);
        let cache = Rc::clone(&world.cache);
        let (mut under_way, mut latest_ns): (Vec<InFlight<'_>>, _) = (Vec::new(), 0);
        for hits in &hits {
            let at = cache.start + Duration::from_nanos(world.at_ns);
            let mut decisions = [Decision::default()];
            if let Some(verdict) = cache.answer(hits, &mut decisions, at) {
                let undone = under_way.iter().any(|other| other.is_undone && other.question.hits[0].key == hits[0].key);
                if undone {
                    overtaken += 1;
                } else {
                    answered += 1;
                    // A wait counts from when it was told.
                    check(&world, hits, &verdict, &decisions, latest_ns);
                }
            } else {
                let question = cache.question(hits, at);
                under_way.push(InFlight { question, decided: None, is_undone: false });
            }
            // The store decides some, and some answers arrive.
            for _ in 0..random.below(5) {
                if under_way.is_empty() {
                    break;
                }
                let place = random.below(under_way.len() as u64) as usize;
                world.at_ns += random.below(3_000_000);
                let one = &mut under_way[place];
                if one.decided.is_none() {
                    one.decided = Some(world.model.decide(world.now(), one.question.hits));
                    one.is_undone = matches!(one.question.hits[0].op.kind(), OpKind::Refund | OpKind::Reset);
                } else {
                    let one = under_way.swap_remove(place);
                    let told = cache.start + Duration::from_nanos(world.at_ns);
                    let (verdict, decisions) = one.decided.expect("decided");
                    latest_ns = latest_ns.max(world.now().as_nanos() - verdict.now.as_nanos());
                    one.question.learn(&decisions, verdict.now, told);
                }
            }
            world.at_ns += *random.pick(&[0, 1_000, 1_000_000, 20_000_000]);
        }
    }
    assert!(answered > 5_000 && overtaken > 100, "{answered} answered, {overtaken} beside what was under way");
}
