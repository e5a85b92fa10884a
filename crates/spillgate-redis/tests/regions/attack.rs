//! Somebody uses new keys in one region: what the others are told, and what the servers of the region hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillgate::regions::Peers;
use spillgate_core::{Quota, Regions};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::regions::fleet::{Answer, Fleet, Node, Plan, REGIONS, shared};
use crate::regions::line::Fault;
use crate::regions::runs_all;
use crate::support::common::until;

const MAX_KEYS: u32 = 4096;
const OLD_KEY: u128 = 1;
/// How many callers attack.
const CALLERS: u128 = 64;

/// Every unit is told at once, and all of a key in one span.
fn limit() -> Quota {
    shared(Quota::token_bucket(8_640_000, Duration::from_secs(86_400)).burst(100))
}

/// Takes a unit. Returns when it was admitted, and how many keys the server then held.
async fn take(node: &Node, key: u128, quota: &Quota) -> (Option<u64>, usize) {
    match node.take(key, quota, 1).await {
        Answer::Decided(is_admitted, _, at) => {
            (is_admitted.then_some(at), node.running().map_or(0, |running| running.peers.keys()))
        }
        Answer::Failed | Answer::Dead => panic!("the own store does not depend on other regions"),
    }
}

struct Attack {
    /// The units of the old key, and of the new keys: the key, and when it was admitted.
    old: Vec<(u128, u64)>,
    new: Vec<(u128, u64)>,
    most_keys: usize,
}

impl Attack {
    fn units(&self) -> u64 {
        (self.old.len() + self.new.len()) as u64
    }
}

/// Takes a unit of each of so many new keys at one server, and meanwhile units of a key that was there before.
async fn attack(fleet: &Fleet, keys: u128) -> Attack {
    let node = &fleet.nodes[0][0];
    let ends = Arc::new(AtomicBool::new(false));
    let old = tokio::spawn({
        let (node, ends) = (Arc::clone(node), Arc::clone(&ends));
        async move {
            let mut units = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                units.extend(take(&node, OLD_KEY, &limit()).await.0.map(|at| (OLD_KEY, at)));
                sleep(Duration::from_millis(20)).await;
            }
            units
        }
    });
    until("the old key is there", || node.running().is_some_and(|running| running.peers.keys() > 0)).await;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let node = Arc::clone(node);
        callers.spawn(async move {
            let (mut units, mut most_keys) = (Vec::new(), 0);
            for number in (caller..keys).step_by(CALLERS as usize) {
                // The bits of real keys are mixed, too.
                let key = (number + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                let (at, keys) = take(&node, key, &limit()).await;
                units.push((key, at.expect("the first unit of a key fits")));
                most_keys = most_keys.max(keys);
            }
            (units, most_keys)
        });
    }
    let all = callers.join_all().await;
    ends.store(true, Ordering::Relaxed);
    let old = old.await.expect("the task ends");
    let most_keys = all.iter().map(|(_, most)| *most).max().unwrap_or(0);
    Attack { old, new: all.into_iter().flat_map(|(units, _)| units).collect(), most_keys }
}

fn middle(delays: &mut [Duration]) -> Duration {
    delays.sort_unstable();
    delays[delays.len() / 2]
}

/// Twenty times as many new keys as the list holds: it never holds more, units that nobody is told are counted exactly, and
/// an old key is told all the time, as soon as the new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_keys_fill_no_memory_and_an_old_key_is_told_all_the_time() {
    if !runs_all() {
        return;
    }
    let keys = 20 * MAX_KEYS;
    let regions = u8::try_from(REGIONS).ok().and_then(Regions::new).expect("2 to 8");
    for lost in [false, true] {
        let fleet = Fleet::start(Plan { max_keys: MAX_KEYS, ..Plan::default() }).await;
        fleet.until_compared().await;
        if lost {
            // From now on it does not count: until then, the list would be full of what it does not know.
            let to_it = |from, node, to| (from, node, to) == (0, 0, 1);
            fleet.set(Fault::Silent, to_it);
            take(&fleet.nodes[0][0], OLD_KEY + 1, &limit()).await;
            fleet.until_cut_off(true, to_it).await;
        }
        let attack = attack(&fleet, keys.into()).await;
        fleet.set(Fault::None, |_, _, _| true);
        fleet.until_told().await;
        let running = fleet.nodes[0][0].running().expect("it runs");
        let (units, untold) = (attack.units() + u64::from(lost), running.peers.untold_units());
        let bytes = Peers::memory_bytes(MAX_KEYS, regions);
        println!(
            "{keys} new keys, one region lost: {lost}: {units} units, {untold} untold, at most {} keys in {bytes} bytes",
            attack.most_keys
        );
        assert!(attack.most_keys <= MAX_KEYS as usize, "{} keys are in the list", attack.most_keys);
        for (peer, status) in [1, 2].into_iter().zip(running.peers.status()) {
            let (charged, dropped) = (fleet.charged(peer, 0), status.counts.units_dropped);
            println!("  region {peer}: {charged} units charged, {dropped} dropped");
            // What a lost region had got and not acknowledged is both charged and dropped.
            let is_lost = lost && peer == 1;
            assert!(charged + untold + dropped >= units && charged + untold <= units, "{charged} of {units} units");
            assert!(is_lost || charged + untold == units, "{charged} and {untold} untold of {units} units");
            if is_lost {
                continue;
            }
            let (mut old, _) = fleet.nodes[0][0].delays(peer, &attack.old, 0);
            let (mut new, unknown) = fleet.nodes[0][0].delays(peer, &attack.new, 0);
            assert!(unknown as u64 <= untold, "{unknown} new keys are not told");
            let (of_old, of_new) = (middle(&mut old), middle(&mut new));
            println!(
                "  D of the old key {of_old:.0?} at most {:.0?}, of new keys {of_new:.0?} at most {:.0?}",
                old[old.len() - 1],
                new[new.len() - 1]
            );
            assert!(of_old < of_new * 3 && of_new < of_old * 3, "the delays {of_old:?} and {of_new:?}");
        }
    }
}

/// Entries that go from a full list take a new id for those that come later in the same window. A hash gets one field more
/// by that, however many entries went.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_hundred_removals_add_one_field_to_a_hash() {
    if !runs_all() {
        return;
    }
    let fleet = Fleet::start(Plan { max_keys: 64, sync: Duration::from_millis(10), ..Plan::default() }).await;
    fleet.until_compared().await;
    let day = shared(Quota::fixed_window(100, Duration::from_secs(86_400)));
    let node = &fleet.nodes[0][0];
    take(node, OLD_KEY, &day).await;
    fleet.until_told().await;
    let server = &fleet.places[1].servers()[0];
    let names: Vec<String> = redis::from_redis_value(server.run(&["KEYS", "sg:*@*"])).expect("a list of keys");
    let [name] = &names[..] else { panic!("one key was told: {names:?}") };
    let fields = || redis::from_redis_value::<u64>(server.run(&["HLEN", name])).expect("a number");
    assert_eq!(fields(), 1);
    for batch in 0..11_u128 {
        for key in 0..60 {
            take(node, (batch << 32 | key) + 100, &day).await;
        }
        fleet.until_told().await;
    }
    for _ in 0..5 {
        take(node, OLD_KEY, &day).await;
        fleet.until_told().await;
    }
    assert_eq!(fields(), 2, "one id before the removals, and one after");
    assert_eq!(fleet.charged(1, 0), 11 * 60 + 6, "every unit is charged once");
}
