//! What no protocol can see of the service.

use spillgate::rules::RulesFile;
use spillgate::{MemoryOptions, MemoryStore, Quota, Receipt};

use super::*;

const HOUR_NS: u64 = 3_600_000_000_000;

/// An hour passes between two looks at this clock.
struct Hasty(AtomicU64);

impl Clock for Hasty {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.fetch_add(HOUR_NS, Ordering::Relaxed))
    }
}

fn service(text: &str) -> Service<Hasty> {
    let rules = Rules::parse(&[RulesFile { name: "d.yaml".into(), text: text.into() }]).expect("good rules");
    let store = Backend::Memory(MemoryStore::new(MemoryOptions::default()));
    let limiter = Limiter::with_clock(store, Hasty(AtomicU64::new(HOUR_NS)));
    Service::new(rules, limiter, ServiceOptions::default(), Arc::new(Metrics::new()))
}

#[tokio::test]
async fn a_request_in_compat_is_judged_at_one_time() {
    let service =
        service("domain: d\ncompat: envoy\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1}}]");
    let descriptor = Descriptor { entries: &[("a", "1")], action: Action::Take(1), limit: None };
    let request = Request { domain: "d", descriptors: &[descriptor, descriptor], max_wait_ns: 0 };
    let loaded = service.rules();
    let answer = service.decide(&loaded, &request, Grants::default()).await.expect("an answer");
    assert_eq!([0, 1].map(|at| answer.statuses[at].over), [false, true]);
}

#[tokio::test]
async fn a_long_value_counts_as_its_beginning() {
    let service = service("domain: d\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 1}}]");
    assert_eq!(service.counted("short"), "short");
    let long = "é".repeat(600);
    let (first, other) = (format!("a{long}1"), format!("a{long}2"));
    assert_eq!(service.counted(&first).len(), 1023, "1024 would cut a character in two");
    let loaded = service.rules();
    for (value, allowed) in [(&first, true), (&other, false)] {
        let entries = [("a", service.counted(value))];
        let descriptor = Descriptor { entries: &entries, action: Action::Take(1), limit: None };
        let request = Request { domain: "d", descriptors: &[descriptor], max_wait_ns: 0 };
        let answer = service.decide(&loaded, &request, Grants::default()).await.expect("an answer");
        assert_eq!(answer.verdict.allowed, allowed);
    }
}

#[tokio::test]
async fn giving_back_is_not_counted_as_a_request_that_passed() {
    let service = service("domain: d");
    let quota = Quota::concurrency(1).build().expect("a quota");
    let receipt = Receipt { at: Time::EPOCH, mark: 1 };
    for op in [Op::Refund { cost: 1, receipt: Some(receipt) }, Op::Renew { receipt }, Op::Reset, Op::take(1)] {
        let hits = [Hit::new(7, &quota, op, Binding::Shadow)];
        service.hit(&hits, &mut [Decision::default()]).await.expect("an answer");
    }
    let metrics = service.encode_metrics();
    assert!(metrics.contains("spillgate_requests_allowed_total 1\n"), "{metrics}");
}
