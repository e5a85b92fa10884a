//! Sends random requests through a store to a real Redis. Whenever the deny cache repeats a refusal, the states are
//! read from Redis at once. The kernel decides on these states, and its decision is compared with the refusal.
//!
//! `DENY_CACHE_REQUESTS` sets the number of requests.

#![allow(clippy::print_stdout, reason = "`make show-deny-cache` shows how many requests there were")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use spillgate_core::{
    Algorithm, Anchor, Binding, Decision, Denied, Hit, Op, OpKind, Quota, Reason, Receipt, Source, State, Store as _,
    Time, Timing, Verdict, decide,
};
use spillgate_redis::{LogForm, RedisStore, Settings};
use spillgate_testkit::Random;
use tokio::time::sleep;

use crate::scripts::differential::fixture::{reads, stored_state};
use crate::support::client::{Client, RedisServer};

const PATIENCE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
/// A refusal is not compared if one of its states expires this soon after the states were read.
const READ_WITHIN: Duration = Duration::from_millis(2);

fn requests() -> usize {
    let number = std::env::var("DENY_CACHE_REQUESTS").ok();
    number.map_or(12_000, |text| text.parse().expect("DENY_CACHE_REQUESTS is a whole number"))
}

/// Returns the quotas. The quotas before `Quota::concurrency` in this list charge nothing for a refusal, and their
/// refusals end at a known time.
fn quotas() -> Vec<Quota> {
    let ms = Duration::from_millis;
    let builders = [
        Quota::token_bucket(20, ms(200)).burst(12),
        Quota::token_bucket(9, ms(300)),
        Quota::leaky_bucket(10, ms(200)).queue(6),
        Quota::fixed_window(8, ms(150)),
        Quota::fixed_window(8, ms(120)).anchor(Anchor::FirstHit),
        Quota::sliding_window_counter(9, ms(160)),
        Quota::sliding_window_counter(9, ms(200)).segments(10),
        Quota::sliding_window_log(8, ms(170)),
        Quota::token_bucket(6000, ms(1000)),
        Quota::fixed_window(900, ms(400)),
        // The next two quotas share their states with quotas above.
        Quota::token_bucket(30, ms(200)).burst(7),
        Quota::sliding_window_log(11, ms(170)),
        Quota::concurrency(6).lease(ms(90)),
        Quota::token_bucket(7, ms(210)).denied(Denied::Charged),
        Quota::fixed_window(7, ms(220)).penalty(ms(20)),
    ];
    builders.map(|builder| builder.build().expect("the quota is valid")).into()
}

/// Sends random requests to one store, and remembers which states the store's deny cache can have.
struct Node<'q> {
    store: RedisStore,
    log: LogForm,
    quotas: &'q [Quota],
    random: Random,
    /// The keys of the states that Redis has shown in a refusal. A request removes its keys if it was allowed, or if it
    /// can have changed the states although it was refused.
    known: BTreeSet<u128>,
    receipts: Vec<(u128, usize, Receipt)>,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Tally {
    allowed: usize,
    refused: usize,
    repeated: usize,
    /// The number of limits that repeated refusals reported with their remaining units. The first such limit of each
    /// refusal is not counted.
    siblings: usize,
    /// The number of limits that repeated refusals reported as not asked.
    not_asked: usize,
    /// The number of repeated refusals that were not compared, because a state had expired or was about to expire.
    late: usize,
}

impl<'q> Node<'q> {
    fn hits(&mut self) -> Vec<Hit<'q>> {
        let (user, several) = (u128::from(self.random.below(3)), [1, 1, 2, 2, 3][self.random.below(5) as usize]);
        // The first limit refuses most of the time. The request can also have other limits.
        let first = (user, self.random.below(8) as usize);
        let mut chosen = vec![first];
        for _ in 1..several {
            let all = self.random.one_in(2);
            let quota = if all { 8 + self.random.below(2) } else { self.random.below(self.quotas.len() as u64) };
            chosen.push((if all { 99 } else { user }, quota as usize));
        }
        chosen.into_iter().map(|(key, quota)| self.hit(key, quota)).collect()
    }

    fn hit(&mut self, key: u128, quota: usize) -> Hit<'q> {
        let cost = *self.random.pick(&[1, 1, 1, 2, 3, 5]);
        let op = match self.random.below(150) {
            0 | 1 => Op::Peek,
            2 if self.quotas[quota].supports(OpKind::Force) => Op::Force { cost },
            3 | 4 => {
                let taken = self.receipts.iter().rfind(|(k, q, _)| (*k, *q) == (key, quota));
                Op::Refund { cost, receipt: taken.map(|(_, _, receipt)| *receipt) }
            }
            5 => Op::Reset,
            6 => Op::take(40),
            _ => Op::Take { cost, max_wait_ns: *self.random.pick(&[u64::MAX, 20_000_000]) },
        };
        let bindings = [Binding::Enforce, Binding::Enforce, Binding::Enforce, Binding::Shadow, Binding::Quota];
        Hit::new(key, &self.quotas[quota], op, *self.random.pick(&bindings))
    }

    async fn step(&mut self, client: &mut Client) {
        if self.random.one_in(60) {
            sleep(Duration::from_micros(self.random.below(9000))).await;
        }
        let hits = self.hits();
        let mut decisions = vec![Decision::default(); hits.len()];
        let verdict = self.store.decide(Timing::BY_STORE, &hits, &mut decisions).await.expect("Redis answers");
        if verdict.source == Source::DenyCache {
            self.tally.repeated += 1;
            self.check(client, &hits, &verdict, &decisions);
        } else {
            *(if verdict.allowed { &mut self.tally.allowed } else { &mut self.tally.refused }) += 1;
            self.learn(&hits, &verdict, &decisions);
        }
    }

    fn learn(&mut self, hits: &[Hit<'_>], verdict: &Verdict, decisions: &[Decision]) {
        let is_free = |hit: &Hit<'_>| {
            let is_asking = matches!(hit.op.kind(), OpKind::Take | OpKind::Peek);
            is_asking && hit.quota.refusal_is_free()
        };
        for (hit, decision) in hits.iter().zip(decisions) {
            let mut on_state = hits.iter().filter(|other| other.state_key() == hit.state_key());
            if !verdict.allowed && on_state.all(is_free) {
                self.known.insert(hit.state_key());
            } else {
                self.known.remove(&hit.state_key());
            }
            if let (Some(receipt), Some(quota)) =
                (decision.receipt, self.quotas.iter().position(|quota| quota == hit.quota))
            {
                self.receipts.push((hit.key, quota, receipt));
            }
        }
        let old = self.receipts.len().saturating_sub(100);
        self.receipts.drain(..old);
    }

    /// Compares a repeated refusal with the kernel's decision on the current states of Redis.
    fn check(&mut self, client: &mut Client, hits: &[Hit<'_>], verdict: &Verdict, decisions: &[Decision]) {
        let mut commands = reads(hits, self.log);
        commands.push(redis::cmd("TIME"));
        let stored = client.ask(commands);
        let (time, stored) = stored.split_last().expect("the last reply is that to TIME");
        let (seconds, micros): (u64, u64) = redis::from_redis_value(time.clone()).expect("the reply is two numbers");
        let passed_ns = (seconds * 1_000_000_000 + micros * 1000).saturating_sub(verdict.now.as_nanos());
        let read_ns = passed_ns + READ_WITHIN.as_nanos() as u64;
        let expired = |decision: &Decision| decision.reset_after_ns > 0 && decision.reset_after_ns <= read_ns;
        if decisions.iter().any(expired) {
            self.tally.late += 1;
            return;
        }
        let mut states = BTreeMap::new();
        for (hit, stored) in hits.iter().zip(stored) {
            states.insert(hit.state_key(), stored_state(stored, hit.quota, self.log).expect("the value is a state"));
        }
        let (kernels, exact) = kernel(&states, verdict.now, hits);
        let context = format!("{hits:?}: {verdict:?} {decisions:?}, by the kernel {kernels:?} {exact:?}");
        assert!(!verdict.allowed && !kernels.allowed, "{context}");
        let mut is_whole = true;
        for ((hit, decision), exact) in hits.iter().zip(decisions).zip(&exact) {
            // For a log and for permits, Redis shows only as much of the state as one take needs.
            let is_part = matches!(hit.quota.algorithm(), Algorithm::SlidingWindowLog | Algorithm::Concurrency);
            if decision.reason == Reason::NotAsked {
                assert_eq!(*decision, Decision::default().with_reason(Reason::NotAsked));
                assert!(is_part || !self.known.contains(&hit.state_key()), "{context}");
                self.tally.not_asked += 1;
                is_whole = false;
                continue;
            }
            let remaining = if is_part { decision.remaining.min(exact.remaining) } else { exact.remaining };
            assert_eq!(*decision, exact.with_remaining(remaining), "{context}");
            self.tally.siblings += 1;
        }
        self.tally.siblings -= 1;
        assert!(!is_whole || *verdict == kernels.with_source(Source::DenyCache), "{context}");
    }
}

/// Returns the kernel's decision on these states.
fn kernel(states: &BTreeMap<u128, State>, now: Time, hits: &[Hit<'_>]) -> (Verdict, Vec<Decision>) {
    let position =
        |hit: &Hit<'_>| states.keys().position(|key| *key == hit.state_key()).expect("the state of each hit was read");
    let state_of: Vec<usize> = hits.iter().map(position).collect();
    let mut states: Vec<State> = states.values().cloned().collect();
    let mut decisions = vec![Decision::default(); hits.len()];
    let verdict = decide(&mut states, &state_of, hits, now, &mut decisions);
    (verdict, decisions)
}

#[tokio::test]
async fn a_repeated_refusal_is_the_kernels_on_the_states_that_redis_has() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let quotas = quotas();
    for log in [LogForm::Packed, LogForm::Zset] {
        client.ask_one(redis::cmd("FLUSHALL").clone());
        let url = format!("redis://127.0.0.1:{}/", server.port());
        let settings = Settings { timeout: PATIENCE, deny_cache_max_age: DAY, log, ..Settings::new(url) };
        let store = RedisStore::new(&settings).expect("the URL is valid");
        let (random, known, receipts) = (Random(11), BTreeSet::new(), Vec::new());
        let mut node = Node { store, log, quotas: &quotas, random, known, receipts, tally: Tally::default() };
        // The windows are short, so a slow machine needs more requests to use them up.
        let least = requests() / 2;
        let is_enough = |tally: &Tally| {
            let often = [tally.allowed, tally.refused, tally.repeated.saturating_sub(tally.late)];
            let seldom = [tally.siblings, tally.not_asked];
            often.iter().all(|count| *count > least / 20) && seldom.iter().all(|count| *count > least / 100)
        };
        let mut sent = 0;
        while sent < least || (sent < 20 * least && !is_enough(&node.tally)) {
            node.step(&mut client).await;
            sent += 1;
        }
        println!("{log:?} logs, {sent} requests: {:?}", node.tally);
        assert!(is_enough(&node.tally), "{:?}", node.tally);
        assert_eq!(node.store.denied_by_cache(), node.tally.repeated as u64);
    }
}
