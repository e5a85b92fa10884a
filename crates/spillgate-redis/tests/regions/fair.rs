//! Each region that asks for more gets its guaranteed share of a bucket that all of them use up, and without the share it
//! does not.

use std::time::Duration;

use spillgate_core::Quota;

use crate::regions::fleet::{Fleet, Pace, Plan, REGIONS, Stream, shared};
use crate::regions::requests::{Asked, admitted, admitted_alone, of_region, units};
use crate::regions::{run_time, runs_all};

const SECOND: Duration = Duration::from_secs(1);

/// What a region got, in parts of a region's share of the limit.
struct Got {
    case: &'static str,
    of_share: [f64; REGIONS],
    /// The part that a bucket of its own with the rate and burst of the share would have admitted of the same requests.
    promised: [f64; REGIONS],
    all: f64,
}

/// Returns what each region got from `3*B*T` after the beginning.
fn got(case: &'static str, asked: &[Asked], quota: &Quota) -> Got {
    let begins = asked.first().map_or(0, |one| one.at) + 3 * quota.capacity() * quota.interval_ns();
    let largest = |region| of_region(asked, region).iter().map(|one| one.cost).max().unwrap_or(1);
    let later: Vec<Asked> = asked.iter().filter(|one| one.at >= begins).copied().collect();
    let lasted = later.last().map_or(0, |one| one.at).saturating_sub(begins).max(1);
    let limit = lasted as f64 / quota.interval_ns() as f64;
    let got = admitted(&later);
    let of_share = [0, 1, 2].map(|region| units(&of_region(&got, region)) as f64 * REGIONS as f64 / limit);
    let promised = [0, 1, 2].map(|region| {
        let share = quota.guaranteed(largest(region)).expect("a bucket has a share");
        let all = admitted_alone(&of_region(asked, region), &share);
        let later: Vec<Asked> = all.into_iter().filter(|one| one.at >= begins).collect();
        units(&later) as f64 * REGIONS as f64 / limit
    });
    Got { case, of_share, promised, all: units(&got) as f64 / limit }
}

/// The load of a region that always asks for more.
const GREEDY: Pace = Pace::Even(Duration::from_millis(12));

/// Runs all cases. Cases without a fault share a fleet.
async fn cases(has_share: bool) -> Vec<Got> {
    let quota = shared(Quota::token_bucket(60, SECOND).burst(60));
    let plan = Plan { has_share, ..Plan::default() };
    let stream = |key, cost, pace| Stream::new(key, &quota, cost, pace);
    let fleet = Fleet::start(plan).await;
    fleet.until_compared().await;
    // One region comes first, and takes all that there is.
    let first = fleet.load(&[stream(2, (1, 1), GREEDY).only(&[0])]);
    first.until_more(&[0], 150).await;
    let first = first.end().await;
    // Two servers ask for 30 units a second, which is 1.5 shares, at random instants. The other regions are greedy.
    let at_random = |mut stream: Stream, cost: u32| {
        (stream.costs[0], stream.paces[0]) = ((cost.into(), cost.into()), Pace::Random(SECOND * cost / 15));
        stream
    };
    let mut mixed = stream(3, (1, 1), GREEDY);
    mixed.costs[2] = (30, 30);
    let streams = [
        (stream(1, (1, 1), GREEDY), "all from the start"),
        (stream(2, (1, 1), GREEDY), "one region first"),
        (mixed, "costs of 1, 1 and B/2"),
        (at_random(stream(4, (1, 1), GREEDY), 1), "1.5 shares at random, cost 1"),
        (at_random(stream(5, (1, 1), GREEDY), 3), "1.5 shares at random, cost 3"),
    ];
    let all: Vec<Stream> = streams.iter().map(|(stream, _)| stream.clone()).collect();
    let mut asked = fleet.run(&all, 2 * run_time()).await;
    asked.extend(first.iter().filter(|one| one.region > 0));
    let of = |key| asked.iter().filter(|one| one.key == key).copied().collect::<Vec<_>>();
    let mut got: Vec<Got> = streams.iter().map(|(stream, case)| self::got(case, &of(stream.key), &quota)).collect();
    drop(fleet);
    got.push(
        after_a_kill("a Redis killed and back empty", plan, &quota, async |fleet| {
            fleet.server(0).kill();
            tokio::time::sleep(2 * SECOND).await;
            fleet.server(0).start_again();
        })
        .await,
    );
    got.push(after_a_kill("a server killed", plan, &quota, async |fleet| fleet.nodes[0][0].kill()).await);
    got
}

/// Has all regions use up a bucket, breaks something, and returns what each region got after that.
async fn after_a_kill(case: &'static str, plan: Plan, quota: &Quota, kill: impl AsyncFn(&mut Fleet)) -> Got {
    let mut fleet = Fleet::start(Plan { deadline: SECOND, ..plan }).await;
    fleet.until_compared().await;
    let stream = [Stream::new(1, quota, (1, 1), GREEDY)];
    let load = fleet.load(&stream);
    load.until_more(&[0, 1, 2], 30).await;
    kill(&mut fleet).await;
    load.until_more(&[0], 1).await;
    load.end().await;
    // The regions that are connected tell each other again.
    let asked = fleet.run(&stream, 2 * run_time()).await;
    got(case, &asked, quota)
}

/// From `3*B*T` on, each region gets at least 0.95 of its share, and all together at most 1.05 of the limit. On a machine that
/// was too slow to ask so often, it gets what its share would have admitted alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_region_that_asks_for_more_gets_its_share_and_without_the_share_it_does_not() {
    if !runs_all() {
        return;
    }
    let with_share = cases(true).await;
    let without = cases(false).await;
    let mut starved = 0;
    for (got, without) in with_share.iter().zip(&without) {
        let least = without.of_share.into_iter().fold(f64::MAX, f64::min);
        starved += usize::from(least < 0.5);
        println!(
            "{}: {:.3?} of a share, {:.3} of the limit; without the share {:.3?}",
            got.case, got.of_share, got.all, without.of_share
        );
        for (got, promised) in got.of_share.iter().zip(got.promised) {
            assert!(*got >= promised.min(0.95), "a region got {got} of its share, {promised} are promised");
        }
        assert!(got.all <= 1.05, "all regions got {} of the limit", got.all);
    }
    println!("without the share, a region starved in {starved} of {} cases", without.len());
    assert!(starved >= 4, "without the share, a region starved in {starved} cases only");
}
