//! Each region that asks for more gets its guaranteed share of a bucket that all of them use up.

use std::time::Duration;

use spillgate_core::Quota;

use crate::regions::fleet::{Asked, Fleet, admitted, admitted_alone, shared};
use crate::regions::run_time;

const REGIONS: usize = 3;

fn units(admitted: &[Asked], region: usize) -> u64 {
    admitted.iter().filter(|one| one.region == region).map(|one| one.cost).sum()
}

/// One region is first, and takes all that there is. Each region gets at least what a bucket of its own, with a third of the
/// rate and the burst of the share, would have admitted of the same requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_comes_late_gets_its_share() {
    let quota = shared(Quota::token_bucket(100, Duration::from_secs(1)).burst(20), REGIONS);
    let fleet = Fleet::start(REGIONS, Duration::from_millis(20)).await;
    let (cost, pause) = ((|_, _| 1) as fn(usize, u64) -> u64, (|_| Duration::from_millis(3)) as fn(usize) -> Duration);
    let first = fleet.load(7, std::slice::from_ref(&quota), Duration::from_millis(500), 4, (cost, pause)).await;
    assert!(admitted(&first).len() >= 20);
    let time = run_time() + Duration::from_secs(2);
    let asked = fleet.load(7, &vec![quota.clone(); REGIONS], time, 4, (cost, pause)).await;
    let share = quota.guaranteed(1).expect("a bucket has a share");
    let (got, guaranteed) = (admitted(&asked), admitted_alone(&asked, share.capacity(), share.interval_ns()));
    // The first region may have used its share before.
    for region in 1..REGIONS {
        let (got, guaranteed) = (units(&got, region), units(&guaranteed, region));
        println!("region {region}: {got} units, {guaranteed} are guaranteed");
        assert!(got >= guaranteed, "region {region} got {got} of the {guaranteed} units of its share");
    }
}
