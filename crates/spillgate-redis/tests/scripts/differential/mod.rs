//! Sends random requests to a real Redis, the kernel and the memory store. Decisions, verdicts and states must be the
//! same.
//!
//! The environment variable `DIFFERENTIAL_DECISIONS` sets the number of decisions for each algorithm.

#![allow(clippy::print_stdout, reason = "`make show-same-decisions` shows how many requests there were")]

pub(crate) mod fixture;
mod quotas;

use fixture::Fixture;
use spillgate_core::Quota;
use spillgate_redis::LogForm;

use crate::support::client::RedisServer;

/// Each step sends one request of each fixture, all at the same time.
const FIXTURES: u64 = 500;
/// In this many fixtures, the memory store decides too.
const FIXTURES_IN_MEMORY: u64 = 385;

fn decisions() -> u64 {
    let number = std::env::var("DIFFERENTIAL_DECISIONS").ok();
    number.map_or(20_000, |text| text.parse().expect("DIFFERENTIAL_DECISIONS is a whole number"))
}

fn no_difference(quotas: &[Quota]) {
    no_difference_with(quotas, &[LogForm::Packed]);
}

/// Compares the decisions for these quotas. With two forms of a log, half of the fixtures use each form.
fn no_difference_with(quotas: &[Quota], logs: &[LogForm]) {
    let server = RedisServer::start();
    let mut client = server.connect();
    let mut fixtures: Vec<Fixture<'_>> =
        (0..FIXTURES).map(|i| Fixture::new(i, quotas, logs[i as usize % logs.len()])).collect();
    for _ in 0..decisions().div_ceil(FIXTURES_IN_MEMORY) {
        fixture::step(&mut fixtures, &mut client);
    }
    let (requests, allowed, again) = fixtures.iter().fold((0, 0, 0), |(requests, allowed, again), fixture| {
        (requests + fixture.requests, allowed + fixture.allowed, again + fixture.again)
    });
    let in_memory: u64 = fixtures.iter().map(Fixture::in_memory).sum();
    assert!(in_memory >= decisions());
    assert!(allowed > requests / 10 && allowed < requests * 9 / 10, "{allowed} of {requests} allowed");
    assert!(again < requests / 3, "{again} of {requests} requests needed a second call");
    let test = std::thread::current();
    let name = test.name().unwrap_or_default();
    println!(
        "{name}: {requests} requests, {allowed} allowed, {in_memory} also sent to the memory store: no difference"
    );
}

#[test]
fn by_the_servers_clock_too_all_is_decided_as_by_the_kernel() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let quotas = quotas::short();
    let log = |i| if i % 2 == 0 { LogForm::Packed } else { LogForm::Zset };
    let mut fixtures: Vec<Fixture<'_>> = (0..FIXTURES / 10).map(|i| Fixture::new(i, &quotas, log(i))).collect();
    for _ in 0..400 {
        fixture::step_by_the_server(&mut fixtures, &mut client);
    }
    let allowed: u64 = fixtures.iter().map(|fixture| fixture.allowed).sum();
    assert!((2_000..18_000).contains(&allowed), "{allowed} of 20000 allowed");
}

#[test]
fn token_buckets_are_decided_as_by_the_kernel() {
    no_difference(&quotas::token_buckets());
}

#[test]
fn queues_are_decided_as_by_the_kernel() {
    no_difference(&quotas::queues());
}

#[test]
fn epoch_windows_are_decided_as_by_the_kernel() {
    no_difference(&quotas::epoch_windows());
}

#[test]
fn first_hit_windows_are_decided_as_by_the_kernel() {
    no_difference(&quotas::first_hit_windows());
}

#[test]
fn counters_are_decided_as_by_the_kernel() {
    no_difference(&quotas::counters());
}

#[test]
fn segments_are_decided_as_by_the_kernel() {
    no_difference(&quotas::segments());
}

#[test]
fn logs_are_decided_as_by_the_kernel() {
    no_difference(&quotas::logs());
}

#[test]
fn logs_in_sorted_sets_are_decided_as_by_the_kernel() {
    no_difference_with(&quotas::logs(), &[LogForm::Zset]);
}

#[test]
fn large_logs_are_decided_as_by_the_kernel() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let quotas = quotas::large_logs();
    for log in [LogForm::Packed, LogForm::Zset] {
        let mut fixtures = [Fixture::new(3, &quotas, log)];
        for _ in 0..150 {
            fixture::step(&mut fixtures, &mut client);
        }
        assert!(fixtures[0].allowed > 30);
    }
}

#[test]
fn leases_are_decided_as_by_the_kernel() {
    no_difference(&quotas::concurrency());
}

#[test]
fn mixed_requests_are_decided_as_by_the_kernel() {
    no_difference_with(&quotas::mixed(), &[LogForm::Packed, LogForm::Zset]);
}
