//! From requests to hits: our own rules.

use spillgate::rules::{Action, Descriptor, Plan, Request, Rules, RulesFile};
use spillgate::{Algorithm, Anchor, Denied, KeyHasher, MAX_HITS, OnStoreFailure, Op};

fn rules(text: &str) -> Rules {
    Rules::parse(&[RulesFile { name: "d.yaml".into(), text: text.into() }])
        .unwrap_or_else(|errors| panic!("{}", errors.report()))
}

fn asked<'p>(entries: &'p [(&'p str, &'p str)], action: Action) -> Descriptor<'p> {
    Descriptor { entries, action, limit: None }
}

fn plan<'p>(rules: &'p Rules, descriptors: &'p [Descriptor<'p>]) -> Plan<'p> {
    rules.plan(&KeyHasher::with_secret([7; 16]), &Request { domain: "d", descriptors, max_wait_ns: 9 })
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
fn the_same_question_is_asked_once() {
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
    assert_eq!(plan(&rules, &mixed).hits.len(), 6, "a refund and a look are other questions");
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
    assert_eq!(op(("user", "7"), Action::Take(0)), Op::Look);
    assert_eq!(op(("user", "7"), Action::Refund(3)), Op::Refund { cost: 3, receipt: None });
    assert_eq!(op(("bytes", "7"), Action::Take(500)), Op::Force { cost: 500 });
    assert_eq!(op(("bytes", "7"), Action::Take(0)), Op::Look);
    assert_eq!(op(("bytes", "7"), Action::Refund(1)), Op::Refund { cost: 1, receipt: None });
}

#[test]
fn keys_tell_domains_entries_and_their_order_apart() {
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
        rules.plan(&keys, &Request { domain, descriptors: &descriptors, max_wait_ns: 0 }).hits[0].key
    };
    let all = [
        key("d", &[("a", "b_c")]),
        key("d", &[("a_b", "c")]),
        key("d", &[("a", "b"), ("b", "c")]),
        key("d", &[("a", "")]),
        key("e", &[("a", "b_c")]),
    ];
    for (i, one) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other != one), "{i}");
    }
    assert_eq!(all[0], key("d", &[("a", "b_c")]));
}

#[test]
fn more_hits_than_a_store_takes_are_told() {
    let rules = rules(SEVERAL);
    let values: Vec<String> = (0..MAX_HITS).map(|number| number.to_string()).collect();
    let entries: Vec<[(&str, &str); 1]> = values.iter().map(|value| [("user", value.as_str())]).collect();
    let descriptors: Vec<Descriptor<'_>> = entries.iter().map(|entries| asked(entries, Action::Take(1))).collect();
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
  - {key: first, rate_limit: {unit: minute, limit: 5, anchor: first_hit, on_store_failure: error, slot_by: first,
      consistency: strict, representation: exact}}",
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
