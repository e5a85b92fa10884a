//! Each region that asks for more gets its guaranteed share of a bucket that all of them use up.

use std::time::Duration;

use spillgate_core::Quota;

use crate::regions::fleet::{Admitted, Fleet, shared};
use crate::regions::run_time;

const REGIONS: usize = 3;

fn units(admitted: &[Admitted], region: usize, from: u64) -> u64 {
    admitted.iter().filter(|one| one.region == region && one.at >= from).map(|one| one.cost).sum()
}

/// One region is first, and takes all that there is. From 3*B*T on, each region gets nearly a third of the rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_comes_late_gets_its_share() {
    let quota = shared(Quota::token_bucket(100, Duration::from_secs(1)).burst(20), REGIONS);
    let fleet = Fleet::start(REGIONS, Duration::from_millis(20)).await;
    let (cost, pause) = ((|_, _| 1) as fn(usize, u64) -> u64, (|_| Duration::from_millis(3)) as fn(usize) -> Duration);
    let alone = fleet.load(7, std::slice::from_ref(&quota), Duration::from_millis(500), 4, (cost, pause)).await;
    assert!(alone.len() >= 20);
    let time = run_time() + Duration::from_secs(2);
    let admitted = fleet.load(7, &vec![quota.clone(); REGIONS], time, 4, (cost, pause)).await;
    let (first, last) = (admitted[0].at, admitted[admitted.len() - 1].at);
    let from = first + 3 * quota.capacity() * quota.interval_ns();
    let rate = (last - from) as f64 / quota.interval_ns() as f64;
    let got: Vec<f64> = (0..REGIONS).map(|region| units(&admitted, region, from) as f64 / rate).collect();
    println!("parts of the rate: {got:.3?}, together {:.3}", got.iter().sum::<f64>());
    assert!(got.iter().all(|part| *part >= 0.95 / REGIONS as f64), "{got:?}");
    assert!(got.iter().sum::<f64>() <= 1.05, "{got:?}");
}
