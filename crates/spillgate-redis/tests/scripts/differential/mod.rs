//! Random requests through a real Redis, the kernel and the memory store: the same decisions, verdicts and states.
//!
//! `DIFFERENTIAL_DECISIONS` says how many there are of each algorithm.

#![allow(clippy::print_stdout, reason = "`make show-same-decisions` shows how many requests there were")]

mod quotas;
pub(crate) mod world;

use spillgate_core::Quota;
use spillgate_redis::LogForm;
use world::World;

use crate::support::RedisServer;

/// Requests that are asked at once, each in a world of its own.
const WORLDS: u64 = 500;
/// Those of them that are decided in memory too.
const WORLDS_IN_MEMORY: u64 = 400;

fn decisions() -> u64 {
    let asked = std::env::var("DIFFERENTIAL_DECISIONS").ok();
    asked.map_or(100_000, |text| text.parse().expect("DIFFERENTIAL_DECISIONS is a whole number"))
}

fn no_difference(quotas: &[Quota]) {
    no_difference_with(quotas, &[LogForm::Packed]);
}

/// The worlds take turns with the forms of a log.
fn no_difference_with(quotas: &[Quota], logs: &[LogForm]) {
    let server = RedisServer::start();
    let mut client = server.connect();
    let mut worlds: Vec<World<'_>> =
        (0..WORLDS).map(|i| World::new(i, quotas, logs[i as usize % logs.len()])).collect();
    for _ in 0..decisions().div_ceil(WORLDS_IN_MEMORY) {
        world::step(&mut worlds, &mut client);
    }
    let (requests, allowed, again) = worlds.iter().fold((0, 0, 0), |(requests, allowed, again), world| {
        (requests + world.requests, allowed + world.allowed, again + world.again)
    });
    let in_memory: u64 = worlds.iter().map(World::in_memory).sum();
    assert!(in_memory >= decisions());
    assert!(allowed > requests / 10 && allowed < requests * 9 / 10, "{allowed} of {requests} allowed");
    assert!(again < requests / 3, "{again} of {requests} were asked again: the short scripts decide most");
    let test = std::thread::current();
    let name = test.name().unwrap_or_default();
    println!("{name}: {requests} requests, {allowed} allowed, {in_memory} in memory too: no difference");
}

#[test]
fn by_the_servers_clock_too_all_is_decided_as_by_the_kernel() {
    let server = RedisServer::start();
    let mut client = server.connect();
    let quotas = quotas::short();
    let log = |i| if i % 2 == 0 { LogForm::Packed } else { LogForm::Zset };
    let mut worlds: Vec<World<'_>> = (0..WORLDS / 10).map(|i| World::new(i, &quotas, log(i))).collect();
    for _ in 0..400 {
        world::step_by_the_server(&mut worlds, &mut client);
    }
    let allowed: u64 = worlds.iter().map(|world| world.allowed).sum();
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
        let mut worlds = [World::new(3, &quotas, log)];
        for _ in 0..150 {
            world::step(&mut worlds, &mut client);
        }
        assert!(worlds[0].allowed > 30);
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
