//! What all regions admit together stays within the bounds of the guarantees, and does not if no region tells the others.

#![allow(clippy::print_stdout, reason = "`make show-regions-...` shows what the runs print")]

use std::time::Duration;

use spillgate_core::{Algorithm, Quota};

use crate::regions::fleet::{Fleet, NODES, Pace, Plan, Stream, shared};
use crate::regions::line::Weather;
use crate::regions::requests::{Asked, Excess, admitted, admitted_alone, excess, most_above_rate, units, untold};
use crate::regions::{run_time, runs_all};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The limits, each with the units that a region asks for in a second.
fn limits() -> Vec<(Quota, u32)> {
    vec![
        (shared(Quota::token_bucket(50, SECOND).burst(40)), 70),
        (shared(Quota::token_bucket(100, SECOND).burst(400)), 140),
        (shared(Quota::fixed_window(300, SECOND * 10)), 40),
        (shared(Quota::sliding_window_counter(300, SECOND * 10)), 40),
    ]
}

/// The streams of all limits: with even, sticky and synchronised load, with costs of 1 and of 1 to a quarter of the
/// capacity.
fn streams() -> Vec<Stream> {
    let mut streams = Vec::new();
    for (quota, rate) in limits() {
        for largest in [1, quota.capacity() / 4] {
            let requests = f64::from(rate) / ((1 + largest) as f64 / 2.0) / f64::from(NODES);
            let every = Duration::from_secs_f64(1.0 / requests);
            // A turn is so short that the next one begins before a bucket alone has used what it has.
            let turn = Duration::from_secs_f64(quota.capacity() as f64 / f64::from(rate) / 2.0).min(2 * SECOND);
            let times = (requests / 2.0).ceil();
            for pace in [
                Pace::Even(every),
                Pace::Sticky(every / 3, turn),
                Pace::Together(Duration::from_secs_f64(times / requests), times as u32),
            ] {
                streams.push(Stream::new(100 + streams.len() as u128, &quota, (1, largest), pace));
            }
        }
    }
    streams
}

fn of_key(asked: &[Asked], key: u128) -> Vec<Asked> {
    asked.iter().filter(|one| one.key == key).copied().collect()
}

/// The bound of the table, with the delay that was measured, in every interval and for every key. The same load without
/// messages breaks it.
async fn keep_their_bounds(weather: Weather, streams: &[Stream]) {
    let plan = Plan { weather, ..Plan::default() };
    let fleet = Fleet::start(plan).await;
    fleet.until_compared().await;
    let mutant = Fleet::start(plan).await;
    mutant.tell_nothing();
    let (asked, without) = tokio::join!(fleet.run(streams, run_time()), mutant.run(streams, run_time()));
    drop(mutant);
    let (mut counted, mut broken) = (0, 0);
    for stream in streams {
        let quota = stream.quotas[0].as_ref().expect("all regions ask");
        let all = admitted(&of_key(&asked, stream.key));
        let delay = fleet.delay_of(&all, quota).await;
        let kept = excess(&all, quota, delay, 0);
        assert!(kept.found <= kept.bound, "{weather:?} {stream:?}: delay {delay:?}, {kept:?}");
        let asked_without = of_key(&without, stream.key);
        let found = excess(&admitted(&asked_without), quota, Duration::ZERO, 0).found;
        // On a machine that was too slow to ask for so much, no store could have broken the bound.
        let least = excess(&admitted_alone(&asked_without, quota), quota, Duration::ZERO, 0).found;
        let counts = kept.counts() && least > kept.bound;
        assert!(!counts || found > kept.bound, "without messages only {found} of {kept:?}: {stream:?}");
        (counted, broken) = (counted + usize::from(counts), broken + usize::from(found > kept.bound));
        println!("{}", row(stream, quota, delay, kept, (found, counts)));
        if quota.algorithm() == Algorithm::TokenBucket && matches!(stream.paces[0], Pace::Even(_)) {
            println!("  long run: {:.3} of the limit", long_run(&all, quota));
        }
    }
    println!("{weather:?}: {counted} of {} runs count; without messages {broken} break their bounds", streams.len());
}

fn row(stream: &Stream, quota: &Quota, delay: Duration, kept: Excess, (found, counts): (u64, bool)) -> String {
    let (name, largest) = (quota.algorithm().as_str(), stream.costs[0].1);
    let pace = format!("{:?}", stream.paces[0]);
    let pace = pace.split('(').next().unwrap_or_default();
    format!(
        "{name} of {}, {pace}, cost 1 to {largest}: D {} ms; {} over the rate, bound {}; without messages {found}{}",
        quota.capacity(),
        delay.as_millis(),
        kept.found,
        kept.bound,
        if counts { "" } else { " (does not count)" }
    )
}

/// Returns the units of a bucket from the second `B*T` on, as a part of the limit.
fn long_run(admitted: &[Asked], quota: &Quota) -> f64 {
    let begins = admitted.first().map_or(0, |one| one.at) + quota.capacity() * quota.interval_ns();
    let later: Vec<Asked> = admitted.iter().filter(|one| one.at >= begins).copied().collect();
    let lasted = later.last().map_or(0, |one| one.at).saturating_sub(begins);
    units(&later) as f64 * quota.interval_ns() as f64 / lasted.max(1) as f64
}

/// `make test` runs one bucket at one delay, and `REGIONS=all` everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_limits_admit_their_bound_and_without_messages_they_do_not() {
    let all = streams();
    if !runs_all() {
        return keep_their_bounds(Weather { round_trip: 40 * MS, is_rough: false }, &all[..1]).await;
    }
    for round_trip in [0, 40, 150, 300] {
        keep_their_bounds(Weather { round_trip: round_trip * MS, is_rough: round_trip > 0 }, &all).await;
    }
}

/// From the second `B*T` on, a bucket that everybody wants admits at most (1 + u/C) * 1.02 of its rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saturated_bucket_admits_its_rate_in_the_long_run() {
    if !runs_all() {
        return;
    }
    let fleet = Fleet::start(Plan::default()).await;
    fleet.until_compared().await;
    // The units that the regions have taken ahead of each other are a hundredth of those of a long run.
    let bucket = |burst| shared(Quota::token_bucket(200, SECOND).burst(burst));
    let cases = [(bucket(20), 1), (bucket(200), 1), (bucket(200), 50), (bucket(600), 1)];
    let streams = (1..).zip(&cases).map(|(key, (quota, largest))| {
        // Each server asks for 150 units a second.
        let every = SECOND * (u32::try_from(1 + largest).expect("small")) / 300;
        Stream::new(key, quota, (1, *largest), Pace::Even(every))
    });
    let streams: Vec<Stream> = streams.collect();
    let asked = fleet.run(&streams, 4 * run_time()).await;
    for (stream, (quota, largest)) in streams.iter().zip(&cases) {
        let all = admitted(&of_key(&asked, stream.key));
        let (found, most) = (long_run(&all, quota), 1.02 * (1.0 + untold(quota) as f64 / quota.capacity() as f64));
        println!(
            "bucket of {}, cost 1 to {largest}, u = {}: {found:.4} of the limit, at most {most:.3}",
            quota.capacity(),
            untold(quota)
        );
        assert!(found <= most, "{found} of the limit, and {most} may be");
        assert!(most_above_rate(&all, quota.interval_ns()) >= quota.capacity() / 2, "the bucket was used");
    }
}
