//! Tests of the service that are not possible over a protocol, because they need their own clock or the log.

use std::sync::atomic::{AtomicU64, Ordering};

use spillgate::rules::{Action, Request, RulesFile};
use spillgate::{Binding, Decision, Hit, KeyHasher, ManualClock, MemoryOptions, MemoryStore, Op, Quota, Receipt, Time};

use super::answer::{AnswerView, statuses};
use super::*;
use crate::metrics::Protocol;

const HOUR_NS: u64 = 3_600_000_000_000;

/// A clock that advances by an hour at each reading. So a request that reads the clock twice has two times.
struct Hasty(AtomicU64);

impl Clock for Hasty {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.fetch_add(HOUR_NS, Ordering::Relaxed))
    }
}

/// Returns a request with `count` equal descriptors. Each of them has the entries `entries`.
fn request<'p>(entries: &[(&'p str, &'p str)], count: usize) -> Request<'p> {
    let mut request = Request::new("d");
    for _ in 0..count {
        request.add(entries.iter().copied(), Action::Take(1), None);
    }
    request
}

fn service(text: &str) -> Service<Hasty> {
    let rules = Rules::parse(&[RulesFile { name: "d.yaml".into(), text: text.into() }]).expect("the rules are valid");
    let store = Backend::Memory(MemoryStore::new(MemoryOptions::default()));
    let limiter = Limiter::with_clock(store, Hasty(AtomicU64::new(HOUR_NS)));
    Service::new(rules, limiter, ServiceOptions::default(), Arc::new(Metrics::new()))
}

#[tokio::test]
async fn a_request_in_compat_mode_is_decided_at_one_time() {
    let service =
        service("domain: d\ncompat: envoy\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1}}]");
    let request = request(&[("a", "1")], 2);
    let loaded = service.rules();
    let answer = service.decide(&loaded, &request, Client::default()).await.expect("the request is decided");
    assert_eq!([0, 1].map(|at| answer.statuses[at].over), [false, true]);
}

#[tokio::test]
async fn a_reservation_in_compat_mode_is_all_or_nothing() {
    let limit = |key, limit| format!("{{key: {key}, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}");
    let service = service(&format!("domain: d\ncompat: envoy\ndescriptors: [{}, {}]", limit("a", 5), limit("b", 1)));
    let (loaded, life) = (service.rules(), std::time::Duration::from_secs(1));
    let records = Records::new(life).expect("the life is valid");
    let mut left = Vec::new();
    for keys in [&["a", "b"][..], &["a", "b"], &["a"]] {
        let mut request = Request::new("d");
        keys.iter().for_each(|key| request.add([(*key, "1")], Action::Take(1), None));
        let reserved = service.reserve(&loaded, &request, Client::default(), (1, &records)).await;
        let (answer, reserved) = reserved.expect("the request is decided");
        let of_a = answer.limits(0).next().expect("a limit has decided");
        left.push((reserved.is_some(), of_a.decision.remaining));
    }
    assert_eq!(left.iter().map(|(reserved, _)| *reserved).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(left[2].1, 3, "the refused reservation took nothing from the other limit");
}

/// Returns whether a request with the single entry `key=value` is allowed.
async fn allowed(service: &Service<Hasty>, key: &str, value: &str) -> bool {
    let loaded = service.rules();
    let entries = [(key, value)];
    let request = request(&entries, 1);
    service.decide(&loaded, &request, Client::default()).await.expect("the request is decided").verdict.allowed
}

#[tokio::test]
async fn a_long_value_is_counted_by_its_beginning() {
    let service = service("domain: d\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 1}}]");
    // After the first letter, each character has two bytes. So a cut after 1024 bytes would divide a character, and
    // only the first 1023 bytes choose the counter.
    let long = "é".repeat(600);
    for (value, is_allowed) in [(format!("a{long}1"), true), (format!("a{long}2"), false)] {
        assert_eq!(allowed(&service, "a", &value).await, is_allowed);
    }
}

#[tokio::test]
async fn a_long_value_is_matched_as_a_whole_and_only_counted_by_its_beginning() {
    let service = service(
        "domain: d
descriptors:
  - {key: path, value: '*/admin', rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 1}}",
    );
    for length in [10, 1_100, 60_000] {
        assert!(!allowed(&service, "path", &format!("/{}/admin", "x".repeat(length))).await, "{length} bytes");
    }
    let long = "y".repeat(1_100);
    assert!(allowed(&service, "path", &format!("{long}/a")).await);
    assert!(
        !allowed(&service, "path", &format!("{long}/b")).await,
        "the two long values share a counter, because their first 1024 bytes are equal"
    );
}

#[tokio::test]
async fn a_refund_is_not_counted_as_an_allowed_request() {
    let service = service("domain: d");
    let quota = Quota::concurrency(1).build().expect("the quota is valid");
    let receipt = Receipt::new(Time::EPOCH, 1);
    for op in [Op::Refund { cost: 1, receipt: Some(receipt) }, Op::Renew { receipt }, Op::Reset, Op::take(1)] {
        let hits = [Hit::new(7, &quota, op, Binding::Shadow)];
        service.hit(Protocol::Http, None, &hits, &mut [Decision::default()]).await.expect("the request is decided");
    }
    assert_eq!(service.metrics().requests(true), 1);
}

#[tokio::test]
async fn refusals_by_rules_that_were_replaced_meanwhile_are_in_the_log() {
    let service = service("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 0}}]");
    let log = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Arc::new(log.reopen().expect("the file can be opened again")));
    let _written = tracing::subscriber::set_default(lines.finish());
    let loaded = service.rules();
    service.replace_rules(Rules::default());
    let request = request(&[("a", "1")], 3);
    assert!(
        !service.decide(&loaded, &request, Client::default()).await.expect("the request is decided").verdict.allowed
    );
    drop(loaded);
    let lines = std::fs::read_to_string(log.path()).expect("the log can be read");
    assert!(lines.contains("this limit has refused requests refused=3"), "{lines}");
}

/// Returns a service with insight, and its clock. All services of these tests hash keys with the same secret.
fn watching(has_public_keys: bool) -> (Service<ManualClock>, ManualClock) {
    let text = "domain: d\ndescriptors: [{key: a, rate_limit: {window: 20s, requests_per_unit: 10}}]";
    let rules = Rules::parse(&[RulesFile { name: "d.yaml".into(), text: text.into() }]).expect("the rules are valid");
    let store = Backend::Memory(MemoryStore::new(MemoryOptions::default()));
    let clock = ManualClock::at(Time::from_nanos(500_000 * HOUR_NS));
    let limiter = Limiter::with_keys(store, clock.clone(), KeyHasher::with_secret([7; 16]));
    let insight = Insight { max_callers: 1000, ..Insight::default() };
    let options = ServiceOptions { insight, has_public_keys, ..ServiceOptions::default() };
    (Service::new(rules, limiter, options, Arc::new(Metrics::new())), clock)
}

/// Decides and counts a request as with a store whose clock is ahead of the service's clock by `ahead_ns`.
async fn decide_with_skew(service: &Service<ManualClock>, value: &str, ahead_ns: i64) {
    let (loaded, entries, now) = (service.rules(), [("a", value)], service.limiter().now());
    let request = request(&entries, 1);
    let plan = service.plan(&loaded, &request, Grants::default()).expect("the request is valid");
    let mut decisions = vec![Decision::default(); plan.hits.len()];
    let decided = service.decide_hits(now, None, &plan.hits, &mut decisions).await;
    let mut verdict = decided.expect("the request is decided");
    verdict.now = Time::from_nanos(now.as_nanos().saturating_add_signed(ahead_ns));
    let statuses = statuses(&plan, &decisions);
    let view = AnswerView { verdict: &verdict, statuses: &statuses, plan: &plan, decisions: &decisions };
    service.count(now, Protocol::Http, &loaded, &request, view);
}

#[tokio::test]
async fn insight_counts_and_reads_at_the_clock_of_the_server() {
    for ahead_secs in [-3600, -60, 60, 3600] {
        let (service, clock) = watching(false);
        for number in 0..300_u32 {
            // Every third request is decided at the service's own time, as while the shared store fails.
            let ahead_secs = if number % 3 == 0 { 0 } else { ahead_secs };
            decide_with_skew(&service, &(number % 20).to_string(), ahead_secs * 1_000_000_000).await;
            clock.advance(std::time::Duration::from_secs(1));
            if number % 100 == 99 {
                let loaded = service.rules();
                let ((_, _, insight), _) = loaded.watched_from((0, 0)).expect("the limit is watched");
                let report = insight.read(service.limiter().now()).report();
                let hour = &report.spans[2];
                assert_eq!((hour.counts.requests, hour.callers.asked.value), (u64::from(number) + 1, 20.0));
                assert_eq!(report.watched_ns, (u64::from(number) + 1) * 1_000_000_000, "{ahead_secs}");
            }
        }
    }
}

#[tokio::test]
async fn callers_that_know_the_key_secret_do_not_know_their_hashes() {
    let mut ids = Vec::new();
    for has_public_keys in [false, false, true, true] {
        let (service, _) = watching(has_public_keys);
        decide_with_skew(&service, "7", 0).await;
        let check = service.caller_check();
        service.replace_rules(service.rules().rules.clone());
        assert_eq!(service.caller_check(), check, "a reload changes nothing");
        let loaded = service.rules();
        let ((_, _, insight), _) = loaded.watched_from((0, 0)).expect("the limit is watched");
        let reading = insight.read(service.limiter().now());
        ids.push((reading.spans[2].sampled.callers[0].id, check));
    }
    assert_eq!(ids[0], ids[1], "servers with a secret agree");
    let different: std::collections::HashSet<_> = ids.iter().map(|(id, _)| id.to_string()).collect();
    let checks: std::collections::HashSet<_> = ids.iter().map(|(_, check)| check).collect();
    assert_eq!((different.len(), checks.len()), (3, 3), "{ids:?}");
}
