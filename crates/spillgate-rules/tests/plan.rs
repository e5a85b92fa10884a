//! Tests how rules turn a request into hits, with the options that Envoy's reference rate limit server does not have.
//!
//! With a mistake in this code, two clients could share a counter, or one client could have two counters.

use spillgate_limiter::{
    Algorithm, Anchor, Denied, KeyHasher, MAX_HITS, MemoryOptions, MemoryStore, OnStoreFailure, Op, OpKind, Time, Wait,
};
use spillgate_rules::{Action, Plan, Request, Rules, RulesFile};

fn rules(text: &str) -> Rules {
    Rules::parse(&[RulesFile { name: "d.yaml".into(), text: text.into() }]).unwrap_or_else(|errors| panic!("{errors}"))
}

/// A descriptor of a request: its entries and its action.
type Asked<'p> = (&'p [(&'p str, &'p str)], Action);

fn asked<'p>(entries: &'p [(&'p str, &'p str)], action: Action) -> Asked<'p> {
    (entries, action)
}

fn request<'p>(domain: &'p str, descriptors: &[Asked<'p>]) -> Request<'p> {
    let mut request = Request::new(domain).with_max_wait_ns(9);
    for (entries, action) in descriptors {
        request.add(entries.iter().copied(), *action, None);
    }
    request
}

fn plan<'p>(rules: &'p Rules, descriptors: &[Asked<'p>]) -> Plan<'p> {
    rules.plan(&KeyHasher::with_secret([7; 16]), &request("d", descriptors), 1024)
}

const SEVERAL: &str = "domain: d
descriptors:
  - key: user
    rate_limits:
      - {name: per_second, unit: second, requests_per_unit: 1}
      - {name: per_day, unit: day, requests_per_unit: 150}
  - {key: bytes, rate_limit: {unit: minute, limit: 1000, post_paid: true}}";

#[test]
fn several_limits_of_one_descriptor_share_the_key() {
    let rules = rules(SEVERAL);
    let asked = [asked(&[("user", "7")], Action::Take(2))];
    let plan = plan(&rules, &asked);
    let [second, day] = &plan.hits[..] else { panic!("{:?}", plan.hits) };
    assert_eq!(second.key, day.key);
    assert_ne!(second.state_key(), day.state_key());
    assert!(plan.hits.iter().all(|hit| hit.op == Op::Take { cost: 2, max_wait_ns: 9 }));
    let names: Vec<_> = plan.descriptors[0].hits.iter().map(|(at, limit)| (*at, limit.name.as_deref())).collect();
    assert_eq!(names, [(0, Some("per_second")), (1, Some("per_day"))]);
}

#[test]
fn equal_hits_are_merged() {
    let rules = rules(SEVERAL);
    let user = [("user", "7")];
    let two = [asked(&user, Action::Take(1)), asked(&[("user", "8")], Action::Take(1)), asked(&user, Action::Take(2))];
    let planned = plan(&rules, &two);
    let costs: Vec<Op> = planned.hits.iter().map(|hit| hit.op).collect();
    let take = |cost| Op::Take { cost, max_wait_ns: 9 };
    assert_eq!(costs, [take(3), take(3), take(1), take(1)]);
    let indices = |at: usize| planned.descriptors[at].hits.iter().map(|(hit, _)| *hit).collect::<Vec<_>>();
    assert_eq!((indices(0), indices(1), indices(2)), (vec![0, 1], vec![2, 3], vec![0, 1]));
    let mixed = [asked(&user, Action::Take(1)), asked(&user, Action::Refund(1)), asked(&user, Action::Take(0))];
    assert_eq!(plan(&rules, &mixed).hits.len(), 6, "a take, a refund and a peek of one counter are not merged");
}

#[test]
fn a_hit_of_a_sketch_is_not_merged_with_an_equal_hit_of_the_store() {
    let limit = "{unit: second, limit: 10, algorithm: token_bucket}";
    let sketched = "{unit: second, limit: 10, algorithm: token_bucket, representation: sketch, sketch_memory: 1MiB}";
    let mut rules = rules(&format!("domain: d\ndescriptors: [{{key: a, rate_limits: [{sketched}, {limit}]}}]"));
    rules.open_sketches(None, std::num::NonZeroU32::MIN).expect("there is memory");
    let twice = [asked(&[("a", "1")], Action::Take(1)), asked(&[("a", "1")], Action::Take(2))];
    let plan = plan(&rules, &twice);
    let costs: Vec<Op> = plan.hits.iter().map(|hit| hit.op).collect();
    let both = Op::Take { cost: 3, max_wait_ns: 9 };
    assert_eq!(costs, [both, both], "each counter counts both descriptors");
    let are_sketches: Vec<bool> = plan.sketches().iter().map(Option::is_some).collect();
    assert_eq!(are_sketches, [true, false]);
}

#[test]
fn costs_add_up_without_wrapping() {
    let rules = rules(SEVERAL);
    let all = asked(&[("user", "7")], Action::Take(u64::MAX));
    let two = [all, all];
    assert_eq!(plan(&rules, &two).hits[0].op, Op::Take { cost: u64::MAX, max_wait_ns: 9 });
}

#[test]
fn operations_follow_the_action_and_the_rule() {
    let rules = rules(SEVERAL);
    let op = |entry: (&str, &str), action| {
        let entries = [entry];
        plan(&rules, &[asked(&entries, action)]).hits[0].op
    };
    assert_eq!(op(("user", "7"), Action::Take(0)), Op::Peek);
    assert_eq!(op(("user", "7"), Action::Refund(3)), Op::Refund { cost: 3, receipt: None });
    assert_eq!(op(("bytes", "7"), Action::Take(500)), Op::Force { cost: 500 });
    assert_eq!(
        op(("bytes", "7"), Action::Take(0)),
        Op::take(0),
        "the take of cost 0 stays a take, because its refusal starts a penalty"
    );
    assert_eq!(op(("bytes", "7"), Action::Refund(1)), Op::Refund { cost: 1, receipt: None });
}

#[test]
fn keys_distinguish_domains_entries_and_their_order() {
    let rules = Rules::parse(&[
        RulesFile {
            name: "d.yaml".into(),
            text: "domain: d\ndescriptors: [{key: a, rate_limit: {unit: second, limit: 1}, descriptors: \
                   [{key: b, rate_limit: {unit: second, limit: 1}}]}, {key: a_b, rate_limit: {unit: second, limit: 1}}]"
                .into(),
        },
        RulesFile {
            name: "e.yaml".into(),
            text: "domain: e\ndescriptors: [{key: a, rate_limit: {unit: second, limit: 1}}]".into(),
        },
    ])
    .unwrap();
    let keys = KeyHasher::with_secret([7; 16]);
    let key = |domain, entries: &[(&str, &str)]| {
        let descriptors = [asked(entries, Action::Take(1))];
        rules.plan(&keys, &request(domain, &descriptors), 1024).hits[0].key
    };
    let all = [
        key("d", &[("a", "b_c")]),
        key("d", &[("a_b", "c")]),
        key("d", &[("a", "b"), ("b", "c")]),
        key("d", &[("a", "")]),
        key("e", &[("a", "b_c")]),
    ];
    for (i, one) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other != one), "key {i} must differ from all keys before it");
    }
    assert_eq!(all[0], key("d", &[("a", "b_c")]));
}

#[test]
fn more_hits_than_a_store_accepts_are_reported() {
    let rules = rules(SEVERAL);
    let values: Vec<String> = (0..MAX_HITS).map(|number| number.to_string()).collect();
    let entries: Vec<[(&str, &str); 1]> = values.iter().map(|value| [("user", value.as_str())]).collect();
    let descriptors: Vec<Asked<'_>> = entries.iter().map(|entries| asked(entries, Action::Take(1))).collect();
    let half = plan(&rules, &descriptors[..MAX_HITS / 2]);
    assert_eq!((half.hits.len(), half.too_large), (MAX_HITS, false));
    let all = plan(&rules, &descriptors);
    assert_eq!((all.hits.len(), all.too_large), (MAX_HITS, true));
    assert_eq!(all.descriptors.len(), MAX_HITS);
}

#[test]
fn an_empty_request_has_an_empty_plan() {
    let rules = rules(SEVERAL);
    assert!(plan(&rules, &[]).descriptors.is_empty());
    let none = [asked(&[], Action::Take(1))];
    assert!(plan(&rules, &none).hits.is_empty());
}

#[test]
fn every_option_reaches_the_quota() {
    let rules = rules(
        "domain: d
descriptors:
  - {key: bucket, rate_limit: {algorithm: token_bucket, window: 10s, limit: 100, burst: 20, denied: charged, penalty: 5m}}
  - {key: gcra, rate_limit: {algorithm: gcra, unit: second, limit: 10}}
  - {key: log, rate_limit: {algorithm: sliding_window_log, window: 1m30s, limit: 5, soft: 20%}}
  - {key: counter, rate_limit: {algorithm: sliding_window_counter, unit: minute, limit: 10, segments: 6}}
  - {key: queue, rate_limit: {algorithm: leaky_bucket, unit: second, limit: 10, queue: 50}}
  - {key: places, rate_limit: {algorithm: concurrency, limit: 4, lease: 45s}}
  - {key: first, rate_limit: {unit: minute, limit: 5, anchor: first_hit, on_store_failure: error, slot_by: first}}",
    );
    let limit = |key| &rules.find("d", &[(key, "")]).unwrap().limits[0];
    let quota = |key| &limit(key).quota;
    assert_eq!((quota("bucket").capacity(), quota("bucket").window_ns()), (20, 10_000_000_000));
    assert_eq!((quota("bucket").denied(), quota("bucket").penalty_ns()), (Denied::Charged, 300_000_000_000));
    assert_eq!((quota("gcra").algorithm(), quota("gcra").capacity()), (Algorithm::TokenBucket, 10));
    assert_eq!(
        (quota("log").capacity(), quota("log").hard_capacity(), quota("log").window_ns()),
        (5, 6, 90_000_000_000)
    );
    assert_eq!(limit("log").unit, None);
    assert_eq!(quota("counter").algorithm(), Algorithm::SlidingWindowCounter { segments: 6 });
    assert_eq!(quota("queue").capacity(), 51);
    assert_eq!((quota("places").capacity(), quota("places").lease_ns()), (4, 45_000_000_000));
    assert_eq!(quota("first").algorithm(), Algorithm::FixedWindow(Anchor::FirstHit));
    assert_eq!(limit("first").quota.on_store_failure(), OnStoreFailure::Error);
    assert_eq!(limit("gcra").quota.on_store_failure(), OnStoreFailure::Local);
    assert_eq!(limit("first").slot_by.as_deref(), Some("first"));
    assert_eq!(limit("first").origin.as_ref().map(|origin| origin.line), Some(9));
}

const SLOTS: &str = "domain: d
descriptors:
  - key: tenant
    rate_limit: {unit: minute, limit: 100}
    descriptors:
      - key: path
        rate_limits:
          - {unit: second, limit: 10, slot_by: tenant}
          - {unit: day, limit: 1000, slot_by: path}
          - {unit: hour, limit: 500}
  - key: user
    descriptors:
      - {key: tenant, rate_limit: {unit: minute, limit: 5, slot_by: tenant}}
  - key: host
    value: 'api-*'
    share_threshold: true
    descriptors:
      - {key: path, rate_limit: {unit: minute, limit: 5, slot_by: host}}
";

/// Returns the bits of a key that select its slot in a Redis Cluster, and the other bits.
const fn parts(key: u128) -> (u128, u128) {
    (key >> 98, key & ((1 << 98) - 1))
}

/// Returns the keys of the limits of one descriptor.
fn keys_of(rules: &Rules, entries: &[(&str, &str)]) -> Vec<u128> {
    let asked = [asked(entries, Action::Take(1))];
    let plan = plan(rules, &asked);
    let hits = plan.hits.iter();
    hits.map(|hit| hit.key).collect()
}

#[test]
fn slot_by_puts_limits_of_several_descriptors_into_one_slot() {
    let rules = rules(SLOTS);
    let alone = keys_of(&rules, &[("tenant", "t1")])[0];
    let [second, day, hour] = keys_of(&rules, &[("tenant", "t1"), ("path", "/a")])[..] else { panic!("three limits") };
    let user = keys_of(&rules, &[("user", "u"), ("tenant", "t1")])[0];
    assert_eq!(parts(second).0, parts(alone).0, "with `slot_by: tenant`, the limit is in the slot of the tenant");
    assert_eq!(parts(user).0, parts(alone).0, "the position of the tenant's entry in the descriptor does not matter");
    assert_ne!(parts(day).0, parts(alone).0, "with `slot_by: path`, the limit is in the slot of the path");
    assert_eq!(parts(day).0, parts(keys_of(&rules, &[("tenant", "t2"), ("path", "/a")])[1]).0);
    assert_ne!(parts(hour).0, parts(alone).0, "without `slot_by`, the slot depends on the whole descriptor");
    assert_eq!(parts(second).1, parts(hour).1, "the other bits depend only on the whole descriptor");
    assert_ne!(parts(second).1, parts(user).1);
    assert_ne!(parts(second).1, parts(alone).1);
}

#[test]
fn slot_by_distinguishes_values_as_the_descriptor_does() {
    let rules = rules(SLOTS);
    let mut all = Vec::new();
    for tenant in 0..50 {
        for path in 0..50 {
            let (tenant, path) = (tenant.to_string(), path.to_string());
            all.extend(keys_of(&rules, &[("tenant", &tenant), ("path", &path)]));
        }
    }
    let slots: std::collections::BTreeSet<u128> = all.iter().step_by(3).map(|key| parts(*key).0).collect();
    assert_eq!(slots.len(), 50, "each tenant has one slot");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 3 * 50 * 50);
}

#[test]
fn values_that_share_a_counter_share_its_slot() {
    let rules = rules(SLOTS);
    let (a, b) =
        (keys_of(&rules, &[("host", "api-1"), ("path", "/")]), keys_of(&rules, &[("host", "api-2"), ("path", "/")]));
    assert_eq!(a, b, "values that share a counter must have the same key");
    let other = keys_of(&rules, &[("host", "api-2"), ("path", "/b")]);
    assert_eq!(parts(a[0]).0, parts(other[0]).0);
    assert_ne!(a, other);
}

#[test]
fn a_login_guard_locks_an_account_for_its_penalty() {
    let rules = rules(include_str!("../../../examples/login.yaml"));
    let store = MemoryStore::new(MemoryOptions::default());
    let ask = |at_s: u64, cost: u64| {
        let (now, keys) = (Time::from_nanos(at_s * 1_000_000_000), KeyHasher::with_secret([7; 16]));
        let descriptors = [asked(&[("account", "bob")], Action::Take(cost))];
        let plan = rules.plan(&keys, &request("login", &descriptors), 1024);
        store.hit_now(now, &plan.hits[0])
    };
    for failure in 1..=5 {
        assert!(ask(failure, 0).allowed, "failure {failure}");
        assert!(ask(failure, 1).allowed, "a failure is always counted");
    }
    let locked = ask(60, 0);
    assert_eq!((locked.allowed, locked.retry_after), (false, Wait::After(900_000_000_000)));
    assert!(ask(70, 1).allowed, "a failed login that began before the penalty is still counted");
    let waits = [300, 959].map(|at_s| ask(at_s, 0).retry_after);
    assert_eq!(
        waits,
        [Wait::After(660_000_000_000), Wait::After(1_000_000_000)],
        "a peek does not prolong the penalty"
    );
    assert!(ask(960, 0).allowed);
}

#[test]
fn a_soft_limit_that_is_paid_afterwards_is_flagged() {
    let rules = rules(
        "domain: d
descriptors:
  - {key: bytes, rate_limit: {unit: minute, limit: 10, post_paid: true, soft: 50%}}",
    );
    let store = MemoryStore::new(MemoryOptions::default());
    let ask = |cost: u64| {
        let descriptors = [asked(&[("bytes", "x")], Action::Take(cost))];
        let decision = store.hit_now(Time::from_nanos(7), &plan(&rules, &descriptors).hits[0]);
        (decision.allowed, decision.soft_over)
    };
    assert_eq!([ask(0), ask(10), ask(0)], [(true, false); 3]);
    assert_eq!([ask(5), ask(0)], [(true, true); 2]);
    assert_eq!([ask(1), ask(0)], [(true, true), (false, false)]);
}

#[test]
fn keys_in_one_slot_crowd_no_bucket_of_the_memory_store() {
    let rules = rules(SLOTS);
    let store = MemoryStore::new(MemoryOptions { max_keys: 20_000, ..MemoryOptions::default() });
    for path in 0..20_000 {
        let path = path.to_string();
        let entries = [("user", path.as_str()), ("tenant", "t1")];
        let asked = [asked(&entries, Action::Take(1))];
        let plan = plan(&rules, &asked);
        assert!(store.hit_now(Time::from_nanos(5), &plan.hits[0]).allowed, "key {path}");
    }
    assert_eq!((store.len(), store.full_requests()), (20_000, 0));
}

#[test]
fn a_limit_lists_the_operations_that_it_can_need() {
    use OpKind::{Force, Peek, Refund, Renew, Reset, Settle, Take};
    let rules = rules(
        "domain: d
descriptors:
  - {key: plain, rate_limit: {unit: second, limit: 1}}
  - {key: after, rate_limit: {unit: second, limit: 1, post_paid: true}}
  - {key: places, rate_limit: {algorithm: concurrency, limit: 1}}",
    );
    let asked: Vec<Vec<OpKind>> = rules.rules().map(|rule| rule.limits[0].operations().collect()).collect();
    assert_eq!(asked[0], [Take, Peek, Refund, Reset, Settle]);
    assert_eq!(asked[1], [Force, Peek, Refund, Reset, Settle]);
    assert_eq!(asked[2], [Take, Peek, Refund, Reset, Renew, Settle]);
}
