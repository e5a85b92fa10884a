//! The ledger alone: what is due, in which order, and what goes when it is full.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use spillgate_core::{AcrossRegions, Charged, Quota, Regions, Span, Time};
use spillgate_testkit::Random;

use crate::regions::SECOND_NS;
use crate::regions::index::{Index, Name};
use crate::regions::ledger::{Due, Ledger};
use crate::regions::peers::Peers;

const AT: Time = Time::from_nanos(1_000_000 * SECOND_NS);

fn regions(regions: u8) -> Regions {
    Regions::new(regions).expect("2 to 8 regions")
}

fn shared(limit: u64, number: u8) -> Quota {
    let quota = Quota::per_minute(limit).build().expect("the quota is valid");
    quota.across(AcrossRegions::Shared(regions(number))).expect("it can be shared")
}

fn ledger(number: u8, max_keys: u32) -> Ledger {
    let mut id = 0;
    let fresh = move || {
        id += 1;
        id
    };
    Ledger::new(regions(number), NonZeroU32::MIN, max_keys, Box::new(fresh))
}

fn due(ledger: &Ledger, peer: usize, now: u64) -> Vec<Due> {
    let mut all = Vec::new();
    for is_late in [true, false] {
        while ledger.due(peer, is_late, now, usize::MAX, &mut all) {}
    }
    all
}

fn totals(due: &[Due]) -> Vec<(u128, u64)> {
    due.iter().map(|due| (due.key, due.total)).collect()
}

/// Sends all that is due to a peer, which answers at once.
fn tell(ledger: &Ledger, peer: usize, now: u64) -> Vec<(u128, u64)> {
    let all = due(ledger, peer, now);
    ledger.answered(peer, &all, &vec![Charged::New; all.len()], now);
    totals(&all)
}

#[test]
fn the_entry_whose_oldest_unit_waits_longest_is_told_first() {
    let (ledger, quota) = (ledger(2, 100), shared(200, 2));
    // A step is 10 units. The first entry is due last, and has the oldest unit.
    for (now, key, units) in [(1, 7, 1), (2, 8, 10), (3, 9, 10), (4, 7, 9), (5, 8, 3), (6, 6, 9)] {
        assert!(ledger.record(key, &quota, AT, units, now));
    }
    let mut first = Vec::new();
    ledger.due(0, false, 10, 2, &mut first);
    assert_eq!(totals(&first), [(7, 10), (8, 13)]);
    assert_eq!(totals(&due(&ledger, 0, 10)), [(9, 10)], "below a step, nothing is due");
    assert_eq!(ledger.counts(0).waiting, 4);
    assert_eq!(ledger.counts(0).units_sent, 33);
}

/// Else a slow caller of a large limit would look like a slow region.
#[test]
fn the_delay_of_an_entry_begins_when_its_units_are_a_step() {
    let (ledger, quota) = (ledger(2, 100), shared(200, 2));
    // A step is 10 units.
    let mut delays = Vec::new();
    for unit in 1..=25 {
        ledger.record(7, &quota, AT, 1, unit * SECOND_NS);
        let sent = due(&ledger, 0, unit * SECOND_NS + 5);
        delays.extend(ledger.answered(0, &sent, &vec![Charged::New; sent.len()], unit * SECOND_NS + 9));
    }
    assert_eq!(delays, [9, 9]);
    // While a total is under way, more becomes due.
    (26..=30).for_each(|unit| _ = ledger.record(7, &quota, AT, 1, unit * SECOND_NS));
    let sent = due(&ledger, 0, 30 * SECOND_NS);
    ledger.record(7, &quota, AT, 10, 30 * SECOND_NS + 1);
    let delays = ledger.answered(0, &sent, &[Charged::New], 30 * SECOND_NS + 7);
    assert_eq!(delays[..], [7]);
    let sent = due(&ledger, 0, 30 * SECOND_NS + 8);
    let delays = ledger.answered(0, &sent, &[Charged::New], 30 * SECOND_NS + 20);
    assert_eq!(delays[..], [20], "it can be too long by the time that the call before took");
}

#[test]
fn what_is_not_acknowledged_for_a_second_is_sent_again() {
    let (ledger, quota) = (ledger(2, 100), shared(10, 2));
    ledger.record(7, &quota, AT, 3, 0);
    let sent = due(&ledger, 0, 10);
    assert_eq!(totals(&sent), [(7, 3)]);
    assert!(due(&ledger, 0, 10 + SECOND_NS - 1).is_empty());
    assert_eq!(totals(&due(&ledger, 0, 10 + SECOND_NS)), [(7, 3)]);
    // After "not begun", at once. What failed waits for its second.
    ledger.answered(0, &sent, &[Charged::NotBegun], 2 * SECOND_NS);
    let again = due(&ledger, 0, 2 * SECOND_NS);
    assert_eq!(totals(&again), [(7, 3)]);
    ledger.answered(0, &again, &[Charged::Failed], 2 * SECOND_NS);
    assert!(due(&ledger, 0, 2 * SECOND_NS).is_empty());
    let again = due(&ledger, 0, 3 * SECOND_NS);
    let waited = ledger.answered(0, &again, &[Charged::Known], 4 * SECOND_NS);
    assert_eq!((waited.to_vec(), ledger.counts(0).waiting), (vec![4 * SECOND_NS], 0));
    // A unit that comes while a total is under way waits from then on.
    ledger.record(7, &quota, AT, 1, 4 * SECOND_NS);
    let sent = due(&ledger, 0, 4 * SECOND_NS + 5);
    ledger.record(7, &quota, AT, 1, 4 * SECOND_NS + 6);
    let waited = ledger.answered(0, &sent, &[Charged::New], 4 * SECOND_NS + 9);
    assert_eq!((waited.to_vec(), ledger.counts(0).waiting), (vec![9], 1));
    assert_eq!(totals(&due(&ledger, 0, 4 * SECOND_NS + 9)), [(7, 5)]);
}

#[test]
fn what_is_late_is_sent_apart_until_something_of_it_is_acknowledged() {
    let (ledger, quota) = (ledger(2, 100), shared(10, 2));
    let lane = |is_late, now| {
        let mut all = Vec::new();
        ledger.due(0, is_late, now, usize::MAX, &mut all);
        all
    };
    ledger.record(7, &quota, AT, 1, 0);
    let first = lane(false, 0);
    assert_eq!(totals(&first), [(7, 1)]);
    // Units that come meanwhile do not make it wait longer for its answer.
    ledger.record(7, &quota, AT, 1, SECOND_NS / 2);
    assert_eq!(totals(&lane(false, SECOND_NS / 2)), [(7, 2)]);
    ledger.record(8, &quota, AT, 1, SECOND_NS);
    assert_eq!((totals(&lane(false, SECOND_NS)), totals(&lane(true, SECOND_NS))), (vec![(8, 1)], vec![(7, 2)]));
    // A new unit does not wait for the next second.
    ledger.record(7, &quota, AT, 1, SECOND_NS + 1);
    assert_eq!((lane(false, SECOND_NS + 1).len(), totals(&lane(true, SECOND_NS + 1))), (0, vec![(7, 3)]));
    assert_eq!(ledger.answered(0, &first, &[Charged::New], SECOND_NS + 2).to_vec(), [SECOND_NS + 2]);
    ledger.record(7, &quota, AT, 1, SECOND_NS + 3);
    assert_eq!((totals(&lane(false, SECOND_NS + 3)), lane(true, SECOND_NS + 3).len()), (vec![(7, 4)], 0));
}

#[test]
fn a_refund_lowers_what_no_region_was_told() {
    let (ledger, quota) = (ledger(3, 100), shared(400, 3));
    ledger.record(7, &quota, AT, 12, 0);
    assert_eq!(totals(&due(&ledger, 1, 1)), [(7, 12)]);
    ledger.record(7, &quota, AT, 5, 2);
    assert_eq!(ledger.refund(7, &quota, AT, 9, 3), 5, "one region was told of 12");
    assert_eq!(ledger.refund(7, &quota, AT, 9, 3), 0);
    assert_eq!(ledger.refund(8, &quota, AT, 9, 3), 0, "an unknown key");
    assert_eq!(tell(&ledger, 0, 3), [(7, 12)]);
    assert_eq!(ledger.counts(0).waiting, 0);
}

#[test]
fn a_full_ledger_lets_go_what_all_know_for_the_longest_time() {
    let (ledger, quota) = (ledger(3, 4), shared(10, 3));
    for key in 1..=4 {
        assert!(ledger.record(key, &quota, AT, 1, 0));
    }
    assert!(!ledger.record(5, &quota, AT, 7, 0), "all wait");
    assert_eq!(ledger.untold(), 7);
    assert!(ledger.record(1, &quota, AT, 1, 0), "a key that is there is told");
    assert_eq!(tell(&ledger, 0, 1).len(), 4);
    assert!(!ledger.record(5, &quota, AT, 1, 1), "one region does not know");
    assert_eq!(tell(&ledger, 1, 1).len(), 4);
    let first_known = due(&ledger, 0, 1);
    assert!(first_known.is_empty());
    // 2 is used and told again, so 3 is the next one after 1.
    ledger.record(2, &quota, AT, 1, 2);
    let (told, others) = (tell(&ledger, 0, 3), tell(&ledger, 1, 3));
    assert_eq!((told, others), (vec![(2, 2)], vec![(2, 2)]));
    let known = |key: u128| ledger.entry(key, &quota, AT).is_some();
    let before: Vec<u128> = (1..=4).filter(|&key| known(key)).collect();
    assert_eq!(before, [1, 2, 3, 4]);
    for key in [5, 6] {
        assert!(ledger.record(key, &quota, AT, 1, 4));
    }
    assert!(known(2) && known(5) && known(6));
    assert_eq!((ledger.len(), ledger.counts(0).units_dropped), (4, 0));
}

#[test]
fn a_lost_region_keeps_no_entry() {
    let (ledger, quota) = (ledger(3, 4), shared(10, 3));
    for key in 1..=4 {
        ledger.record(key, &quota, AT, 1, 0);
    }
    assert_eq!(due(&ledger, 1, 0).len(), 4);
    assert_eq!(tell(&ledger, 0, 0).len(), 4);
    assert!(!ledger.record(5, &quota, AT, 1, 5 * SECOND_NS), "the other region may still answer");
    assert_eq!(ledger.cut_off(1, 5 * SECOND_NS), None);
    let later = 5 * SECOND_NS + 1;
    assert_eq!(ledger.cut_off(1, later), Some(later));
    assert!(ledger.sweep(later));
    assert!(ledger.record(5, &quota, AT, 1, later));
    assert_eq!(ledger.counts(1).units_dropped, 1);
    ledger.hears(1);
    assert!(ledger.cut_off(1, later).is_some(), "it answers a question, and knows nothing of what was sent");
    assert!(ledger.answered(1, &[], &[], later).is_empty());
    assert_eq!(ledger.cut_off(1, later), None);
    assert!(!ledger.record(6, &quota, AT, 1, later), "it counts again");
    ledger.hold(1, true);
    ledger.sweep(later);
    assert!(ledger.record(6, &quota, AT, 1, later), "a region to which nothing may be sent does not count");
    assert_eq!(tell(&ledger, 0, later).len(), 2);
    assert!(ledger.record(7, &quota, AT, 1, later));
    assert_eq!(tell(&ledger, 0, later).len(), 1);
    assert!(ledger.record(8, &quota, AT, 1, later), "an entry of the time of the pause can go without a sweep");
    assert!(due(&ledger, 1, later + SECOND_NS).is_empty());
    ledger.hold(1, false);
    assert_eq!(due(&ledger, 1, later + SECOND_NS).len(), 4);
}

#[test]
fn without_any_region_that_hears_the_newest_keys_are_kept() {
    let (ledger, quota) = (ledger(2, 2), shared(10, 2));
    ledger.hold(0, true);
    for key in [1, 2, 1, 3] {
        assert!(ledger.record(key, &quota, AT, 1, 0));
    }
    ledger.hold(0, false);
    assert_eq!(totals(&due(&ledger, 0, 0)), [(1, 2), (3, 1)]);
}

#[test]
fn from_three_quarters_on_and_at_a_drain_rests_are_told() {
    let (ledger, quota) = (ledger(2, 8), shared(200, 2));
    for key in 1..=5 {
        ledger.record(key, &quota, AT, 1, 0);
    }
    assert!(due(&ledger, 0, 0).is_empty());
    ledger.record(6, &quota, AT, 1, 0);
    assert_eq!(totals(&due(&ledger, 0, 0)), [(6, 1)]);
    ledger.sweep(0);
    assert_eq!(due(&ledger, 0, 0).len(), 5);
    let ledger = self::ledger(2, 8);
    ledger.record(1, &quota, AT, 1, 0);
    ledger.drain();
    assert!(ledger.sweep(0));
    assert_eq!(totals(&due(&ledger, 0, 0)), [(1, 1)]);
}

/// However many entries come and go, and however long a region is away, the tables stay within their bounds.
#[test]
fn the_tables_are_bounded() {
    let (ledger, mut random) = (ledger(3, 64), Random(3));
    let mut now = 0;
    for round in 0..20_000 {
        now += random.below(SECOND_NS / 10);
        let quota = shared(10 + round / 3, 3);
        let at = Time::from_nanos(AT.as_nanos() + now);
        ledger.record(random.below(90).into(), &quota, at, 1, now);
        match random.below(20) {
            0 => drop(tell(&ledger, 0, now)),
            1 => drop(due(&ledger, 1, now)),
            2 => drop(ledger.sweep(now)),
            _ => {}
        }
        let (slots, queued, quotas) = ledger.sizes();
        assert!(ledger.len() <= 64 && slots <= 64 && queued <= 2 * 64 && quotas <= 64 + 2 * 65, "{queued} {quotas}");
    }
    assert!(ledger.counts(1).units_dropped > 0);
}

#[test]
fn an_index_finds_what_was_put_into_it() {
    let (mut index, mut random) = (Index::new(100), Random(5));
    let mut names: HashMap<u32, Name> = HashMap::new();
    for _ in 0..50_000 {
        let slot = random.below(100) as u32;
        let span = Span { start_ns: random.below(3) * 60, length_ns: 60 };
        let name = Name { state: random.below(40).into(), span };
        let found = names.iter().find(|(_, it)| **it == name).map(|(slot, _)| *slot);
        assert_eq!(index.get(&name, |slot| names[&slot]), found);
        match (names.get(&slot).copied(), found) {
            (None, None) => {
                names.insert(slot, name);
                index.insert(&name, slot);
            }
            (Some(name), _) if random.one_in(2) => {
                index.remove(&name, slot, |slot| names[&slot]);
                names.remove(&slot);
            }
            _ => {}
        }
    }
}

/// The page about the design names these numbers.
#[test]
fn an_entry_needs_few_bytes() {
    let bytes = [2, 3, 8].map(|number| Peers::memory_bytes(1, regions(number)));
    assert_eq!(bytes, [172, 252, 652]);
}

#[test]
fn an_entry_ends_by_the_clock_of_the_process() {
    let (ledger, quota) = (ledger(2, 10), shared(10, 2));
    ledger.record(7, &quota, AT, 1, 0);
    let life = 2 * Duration::from_secs(60).as_nanos() as u64;
    assert_eq!(totals(&due(&ledger, 0, life - 1)), [(7, 1)]);
    assert!(due(&ledger, 0, life + SECOND_NS).is_empty());
    // The same state and span begin anew, with another id.
    let (id, _) = ledger.entry(7, &quota, AT).expect("it is not swept");
    ledger.record(7, &quota, AT, 1, life);
    let (new, total) = ledger.entry(7, &quota, AT).expect("it was recorded");
    assert!(new != id && total == 1);
    let window = Quota::fixed_window(10, Duration::from_secs(60)).build().expect("the quota is valid");
    let window = window.across(AcrossRegions::Shared(regions(2))).expect("it can be shared");
    ledger.record(8, &window, AT, 1, life);
    ledger.sweep(life + 61 * SECOND_NS - 1);
    assert_eq!(ledger.len(), 2);
    ledger.sweep(life + 61 * SECOND_NS);
    assert_eq!(ledger.len(), 1);
}

/// However threads and answers meet, each unit is told once.
#[test]
fn threads_that_record_at_the_same_time_lose_nothing() {
    const THREADS: u64 = 4;
    const TAKES: u64 = 20_000;
    let (ledger, quota) = (ledger(2, 1000), shared(10, 2));
    let mut told: HashMap<u128, u64> = HashMap::new();
    let mut tell = |now: u64| {
        let all = due(&ledger, 0, now);
        for due in &all {
            let before = told.insert(due.key, due.total).unwrap_or(0);
            assert!(due.total >= before, "a total never falls");
        }
        ledger.answered(0, &all, &vec![Charged::New; all.len()], now);
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (ledger, quota) = (&ledger, &quota);
                scope.spawn(move || {
                    let mut random = Random(thread + 1);
                    for now in 0..TAKES {
                        assert!(ledger.record(random.below(500).into(), quota, AT, 1, now));
                    }
                })
            })
            .collect();
        let mut now = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            tell(now);
            now += 1;
        }
    });
    tell(TAKES);
    assert_eq!(told.values().sum::<u64>(), THREADS * TAKES);
    assert_eq!((ledger.counts(0).waiting, ledger.counts(0).units_sent), (0, THREADS * TAKES));
}

/// No call holds the lock for more than 1,024 entries.
#[test]
fn many_entries_are_looked_at_in_pieces() {
    const KEYS: u32 = 3000;
    let (ledger, quota) = (ledger(2, 4000), shared(200, 2));
    (0..KEYS).for_each(|key| assert!(ledger.record(key.into(), &quota, AT, 1, 0)));
    assert!(!ledger.sweep(0) && !ledger.sweep(0) && ledger.sweep(0));
    let mut all = Vec::new();
    assert!(ledger.due(0, false, 0, usize::MAX, &mut all));
    assert_eq!(all.len(), 1024);
    assert_eq!(all.len() + due(&ledger, 0, 0).len(), KEYS as usize);
    // One second later, all of them are due again.
    let mut again = Vec::new();
    let calls = 1 + std::iter::from_fn(|| ledger.due(0, true, SECOND_NS, usize::MAX, &mut again).then_some(())).count();
    assert_eq!((again.len(), calls), (KEYS as usize, 5));
    ledger.answered(0, &again, &[Charged::New; KEYS as usize], SECOND_NS);
    // A region that comes back makes many entries unknown at a time.
    let (ledger, quota) = (self::ledger(3, KEYS), shared(10, 3));
    (0..KEYS).for_each(|key| assert!(ledger.record(key.into(), &quota, AT, 1, 0)));
    ledger.hold(1, true);
    assert_eq!(tell(&ledger, 0, 0).len(), KEYS as usize);
    ledger.hold(1, false);
    assert!((0..4).all(|_| !ledger.record(KEYS.into(), &quota, AT, 1, 0)), "the region does not know them");
    assert_eq!(tell(&ledger, 1, 0).len(), KEYS as usize);
    assert!(ledger.record(KEYS.into(), &quota, AT, 1, 0));
}
