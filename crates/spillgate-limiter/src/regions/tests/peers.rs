//! The tasks of the regions in paused time.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_core::{
    AcrossRegions, Charge, Charged, ChargedStore, MAX_CHARGES, Quota, Regions, StoreError, StoreErrorKind, Time,
};
use tokio::time::{Instant, sleep};

use crate::regions::about::{About, Differs};
use crate::regions::peers::{Options, Peers, region_tag};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The store of another region, as a test wants it.
#[derive(Clone)]
struct Fake(Arc<Mutex<Far>>);

struct Far {
    /// How long a call takes.
    takes: Duration,
    /// No call is answered. It fails when its time is over.
    is_away: bool,
    /// It answers, and takes no total: its memory is full, for example.
    is_full: bool,
    /// It is a cluster. A call has one total, and one of three nodes does not answer.
    is_cluster: bool,
    about: Option<String>,
    asked_about: usize,
    /// When each call came, and its totals.
    calls: Vec<(Instant, Vec<(u128, u64)>)>,
    most_under_way: usize,
    under_way: usize,
}

impl Fake {
    fn new(takes: Duration) -> Fake {
        let calls = Vec::new();
        Fake(Arc::new(Mutex::new(Far {
            takes,
            is_away: false,
            is_full: false,
            is_cluster: false,
            about: Some("regions=2 format=1 secret=7 region=us".to_owned()),
            asked_about: 0,
            calls,
            most_under_way: 0,
            under_way: 0,
        })))
    }

    /// The entries that came since a time.
    fn entries_since(&self, since: Instant) -> usize {
        let far = self.0.lock();
        far.calls.iter().filter(|(at, _)| *at >= since).map(|(_, totals)| totals.len()).sum()
    }

    fn set(&self, change: impl FnOnce(&mut Far)) {
        change(&mut self.0.lock());
    }

    async fn call(&self, within: Duration, key: Option<u128>) -> Result<(), StoreError> {
        let (takes, is_away) = {
            let far = self.0.lock();
            (far.takes, far.is_away || far.is_cluster && key.is_some_and(is_of_dead_node))
        };
        sleep(if is_away { within } else { takes }).await;
        if is_away { Err(StoreError::new(StoreErrorKind::Timeout, "no answer")) } else { Ok(()) }
    }
}

/// Whether the node of a key is the one that does not answer.
fn is_of_dead_node(key: u128) -> bool {
    key.is_multiple_of(3)
}

impl ChargedStore for Fake {
    fn charges_per_call(&self) -> usize {
        if self.0.lock().is_cluster { 1 } else { MAX_CHARGES }
    }

    async fn charge(
        &self,
        within: Duration,
        charges: &[Charge<'_>],
        results: &mut [Charged],
    ) -> Result<(), StoreError> {
        let totals = charges.iter().map(|charge| (charge.key, charge.total)).collect();
        self.set(|far| {
            far.calls.push((Instant::now(), totals));
            far.under_way += 1;
            far.most_under_way = far.most_under_way.max(far.under_way);
        });
        let answer = self.call(within, charges.first().map(|charge| charge.key)).await;
        self.set(|far| far.under_way -= 1);
        if self.0.lock().is_full {
            return Err(StoreError::new(StoreErrorKind::Other, "OOM"));
        }
        results.fill(Charged::New);
        answer
    }

    async fn about(&self, within: Duration) -> Result<Option<String>, StoreError> {
        self.set(|far| far.asked_about += 1);
        self.call(within, None).await?;
        Ok(self.0.lock().about.clone())
    }
}

fn shared(limit: u64) -> Quota {
    let two = Regions::new(2).expect("two regions");
    let quota = Quota::per_minute(limit).build().expect("the quota is valid");
    quota.across(AcrossRegions::Shared(two)).expect("it can be shared")
}

fn start(far: &Fake) -> Peers {
    let options = Options { region: "eu".into(), nodes: NonZeroU32::MIN, max_keys: 100_000, sync: 100 * MS, secret: 7 };
    Peers::start(&options, vec![("us".into(), far.clone())])
}

fn record(peers: &Peers, key: u128) {
    assert!(peers.record(key, &shared(10), Time::EPOCH, 1));
}

#[tokio::test(start_paused = true)]
async fn units_are_told_every_round_and_no_call_waits_for_another() {
    let far = Fake::new(300 * MS);
    let peers = start(&far);
    sleep(SECOND).await;
    for _ in 0..100 {
        record(&peers, 7);
        sleep(10 * MS).await;
    }
    sleep(SECOND).await;
    let far = far.0.lock();
    assert_eq!(far.calls.last().map(|(_, totals)| totals.clone()), Some(vec![(7, 100)]));
    assert!((10..=11).contains(&far.calls.len()) && far.most_under_way >= 3, "{}", far.calls.len());
    let status = &peers.status()[0];
    assert_eq!((status.counts.waiting, status.counts.units_sent, status.cut_off), (0, 100, None));
    assert_eq!(status.results.iter().sum::<u64>(), far.calls.len() as u64);
    let (half, most) = (status.delay_p50.expect("it was told"), status.delay_p99.expect("it was told"));
    assert!(half >= 300 * MS && most <= 402 * MS, "{half:?} {most:?}");
    assert!((0.9..=1.1).contains(&status.entries_per_second), "{}", status.entries_per_second);
}

#[tokio::test(start_paused = true)]
async fn a_slow_region_gets_less_and_then_more() {
    let far = Fake::new(40 * MS);
    let peers = start(&far);
    let mut key = 0;
    let mut second = async || {
        let since = Instant::now();
        for _ in 0..10 {
            for _ in 0..400 {
                key += 1;
                record(&peers, key);
            }
            sleep(100 * MS).await;
        }
        far.entries_since(since)
    };
    for _ in 0..3 {
        second().await;
    }
    assert!(second().await >= 3900);
    far.set(|far| far.takes = 90 * MS);
    second().await;
    second().await;
    let slow = second().await;
    assert!(slow <= 1500, "{slow}");
    far.set(|far| far.takes = 40 * MS);
    second().await;
    let first = second().await;
    let later = (second().await, second().await, second().await).2;
    assert!(later > first * 5 / 4 && later < first * 3 / 2, "{first} {later}");
}

#[tokio::test(start_paused = true)]
async fn a_paused_region_is_sent_nothing_and_then_all_that_waits() {
    let far = Fake::new(10 * MS);
    let peers = start(&far);
    sleep(SECOND).await;
    assert!(peers.pause("us") && !peers.pause("ap"));
    let since = Instant::now();
    (0..500).for_each(|key| record(&peers, key));
    sleep(20 * SECOND).await;
    assert_eq!(far.entries_since(since), 0);
    let status = &peers.status()[0];
    assert!(status.is_paused && status.cut_off.is_none() && status.counts.waiting == 500);
    assert!(peers.resume("us"));
    sleep(SECOND).await;
    assert_eq!((far.entries_since(since), peers.status()[0].counts.waiting), (500, 0));
    record(&peers, 1000);
    drop(peers);
    sleep(SECOND).await;
    assert_eq!(far.entries_since(since), 500, "nobody tells any more");
}

#[tokio::test(start_paused = true)]
async fn a_region_that_answers_nothing_for_five_seconds_is_cut_off() {
    let far = Fake::new(10 * MS);
    let peers = start(&far);
    sleep(SECOND).await;
    far.set(|far| far.is_away = true);
    sleep(10 * SECOND).await;
    assert_eq!(peers.status()[0].cut_off, None, "nothing was sent");
    record(&peers, 7);
    sleep(5 * SECOND).await;
    assert_eq!(peers.status()[0].cut_off, None);
    sleep(200 * MS).await;
    let status = &peers.status()[0];
    assert!(status.cut_off.is_some_and(|since| since > 5 * SECOND), "{status:?}");
    let kind = status.last_failure.as_ref().map(|(error, _)| error.kind());
    assert_eq!(kind, Some(StoreErrorKind::Timeout));
    // It is asked about itself, one call at a time, and charged nothing.
    let (since, asked) = (Instant::now(), far.0.lock().asked_about);
    (100..300).for_each(|key| record(&peers, key));
    sleep(20 * SECOND).await;
    let asked = far.0.lock().asked_about - asked;
    assert!(far.entries_since(since) == 0 && (3..=5).contains(&asked), "{asked}");
    far.set(|far| far.is_away = false);
    sleep(7 * SECOND).await;
    let status = &peers.status()[0];
    assert!(status.cut_off.is_none() && status.counts.waiting == 0 && status.is_compared, "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_region_that_answers_and_takes_no_total_stays_cut_off_until_it_takes_one() {
    let far = Fake::new(10 * MS);
    let peers = start(&far);
    sleep(SECOND).await;
    far.set(|far| far.is_full = true);
    record(&peers, 7);
    sleep(6 * SECOND).await;
    for second in 0..60 {
        sleep(SECOND).await;
        let status = &peers.status()[0];
        assert!(status.cut_off.is_some() && status.is_compared, "second {second}: {status:?}");
    }
    // It is still tried, about once a second, and is compared as often.
    let (since, asked) = (Instant::now(), far.0.lock().asked_about);
    sleep(20 * SECOND).await;
    let asked = far.0.lock().asked_about - asked;
    assert!((15..=20).contains(&asked), "{asked}");
    assert!((15..=20).contains(&far.entries_since(since)), "{}", far.entries_since(since));
    far.set(|far| far.is_full = false);
    sleep(2 * SECOND).await;
    let status = &peers.status()[0];
    assert!(status.cut_off.is_none() && status.counts.waiting == 0, "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_region_is_no_longer_cut_off_when_nothing_waits_for_it() {
    let far = Fake::new(10 * MS);
    let peers = start(&far);
    sleep(SECOND).await;
    far.set(|far| far.is_full = true);
    assert!(peers.record(7, &shared(10), Time::EPOCH, 1));
    sleep(10 * SECOND).await;
    assert!(peers.status()[0].cut_off.is_some());
    // The entry ends with its span, at the latest after some minutes.
    sleep(600 * SECOND).await;
    let status = &peers.status()[0];
    assert!(status.counts.waiting == 0 && status.cut_off.is_none(), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_delay_counts_for_a_minute() {
    let far = Fake::new(900 * MS);
    let peers = start(&far);
    sleep(SECOND).await;
    record(&peers, 7);
    sleep(2 * SECOND).await;
    assert!(peers.status()[0].delay_p99 >= Some(900 * MS));
    far.set(|far| far.takes = 10 * MS);
    sleep(50 * SECOND).await;
    record(&peers, 8);
    sleep(SECOND).await;
    let status = &peers.status()[0];
    assert!(status.delay_p50 <= Some(200 * MS) && status.delay_p99 >= Some(900 * MS), "{status:?}");
    sleep(10 * SECOND).await;
    assert!(peers.status()[0].delay_p99 <= Some(200 * MS));
    sleep(60 * SECOND).await;
    assert_eq!(peers.status()[0].delay_p99, None);
}

/// In a cluster with a dead node, the keys of the other nodes are told as if all nodes lived, whether the keys are old or new.
#[tokio::test(start_paused = true)]
async fn a_dead_node_delays_its_own_keys_only() {
    let far = Fake::new(10 * MS);
    far.set(|far| far.is_cluster = true);
    let peers = start(&far);
    sleep(SECOND).await;
    // Three thousand keys have a unit in each second, and there are a hundred new keys.
    let mut recorded = Vec::new();
    for round in 0..200_u64 {
        let old = u128::from(round % 10) * 300;
        let new = 1_000_000 + u128::from(round) * 10;
        for key in (old..old + 300).chain(new..new + 10) {
            record(&peers, key);
            let total = if key < 1_000_000 { 1 + round / 10 } else { 1 };
            recorded.push((key, total, Instant::now()));
        }
        sleep(100 * MS).await;
    }
    sleep(SECOND).await;
    let far = far.0.lock();
    let mut called: HashMap<(u128, u64), Instant> = HashMap::new();
    for (at, totals) in &far.calls {
        for (key, total) in totals {
            called.entry((*key, *total)).or_insert(*at);
        }
    }
    let delay = |(key, total, at): &(u128, u64, Instant)| called.get(&(*key, *total)).map(|called| *called - *at);
    // Each total of the dead node has to be late once. Until then, it has a place for a second.
    let begun = recorded[0].2 + 6 * SECOND;
    let healthy = recorded.iter().filter(|(key, _, at)| !is_of_dead_node(*key) && *at >= begun);
    let worst = healthy.map(|unit| delay(unit).expect("each unit is told")).max();
    assert!(worst <= Some(200 * MS), "a unit of a living node waited for {worst:?}");
    assert!(far.most_under_way <= 512 && peers.status()[0].cut_off.is_none());
    let dead = recorded.iter().filter(|(key, ..)| *key < 3000 && is_of_dead_node(*key));
    assert!(dead.filter(|unit| delay(unit).is_some()).count() > 1000, "the dead node is tried again and again");
}

#[tokio::test(start_paused = true)]
async fn a_drain_tells_rests_and_takes_a_second_at_most() {
    let far = Fake::new(200 * MS);
    let peers = start(&far);
    sleep(SECOND).await;
    for key in 0..40 {
        assert!(peers.record(key, &shared(1000), Time::EPOCH, 3));
    }
    sleep(5 * SECOND).await;
    assert_eq!(far.entries_since(Instant::now() - 5 * SECOND), 0, "a rest is not told");
    let since = Instant::now();
    assert_eq!(peers.drain().await, 0);
    assert!(since.elapsed() <= 210 * MS && far.entries_since(since) == 40, "{:?}", since.elapsed());
    let far = Fake::new(10 * MS);
    let peers = start(&far);
    sleep(SECOND).await;
    far.set(|far| far.is_away = true);
    record(&peers, 7);
    let since = Instant::now();
    assert_eq!(peers.drain().await, 1);
    assert!(since.elapsed() >= SECOND && since.elapsed() <= SECOND + 10 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_region_with_another_secret_is_sent_nothing_until_it_agrees() {
    let text = |regions: u8, secret, region: &str| {
        let regions = Regions::new(regions).expect("2 to 8 regions");
        Some(About::new(region, regions, secret).to_string())
    };
    let none = Differs::default();
    let cases = [
        (None, Differs { nobody: true, ..none }, 1),
        (text(2, 7, "us"), none, 1),
        (text(3, 7, "us"), Differs { regions: true, ..none }, 1),
        (text(2, 8, "us"), Differs { secret: true, ..none }, 0),
        (text(2, 7, "ap"), Differs { name: true, ..none }, 1),
        (text(2, 7, "eu"), Differs { own_store: true, ..none }, 0),
        (Some("regions=2 format=9 secret=7 region=us".into()), Differs { format: true, ..none }, 0),
        (Some("something else".into()), Differs { format: true, ..none }, 0),
    ];
    for (about, differs, sent) in cases {
        let far = Fake::new(10 * MS);
        far.set(|far| far.about = about);
        let (peers, since) = (start(&far), Instant::now());
        record(&peers, 7);
        sleep(30 * SECOND).await;
        let status = &peers.status()[0];
        assert_eq!((status.differs, far.entries_since(since)), (differs, sent));
        assert!(status.is_compared && status.cut_off.is_none());
        far.set(|far| far.about = text(2, 7, "us"));
        let within = if differs == none { 60 } else { 2 };
        sleep(within * SECOND).await;
        assert_eq!((peers.status()[0].differs, far.entries_since(since)), (none, 1));
        let asked = far.0.lock().asked_about;
        sleep(120 * SECOND).await;
        assert_eq!(far.0.lock().asked_about - asked, 2, "it is compared once a minute");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_before_a_region_was_compared() {
    let far = Fake::new(10 * MS);
    far.set(|far| far.is_away = true);
    let (peers, since) = (start(&far), Instant::now());
    record(&peers, 7);
    sleep(6 * SECOND).await;
    let status = &peers.status()[0];
    assert!(status.cut_off.is_some() && !status.is_compared && far.entries_since(since) == 0);
    far.set(|far| far.is_away = false);
    sleep(6 * SECOND).await;
    assert_eq!((far.entries_since(since), peers.status()[0].counts.waiting), (1, 0));
}

#[test]
fn regions_have_different_tags() {
    let names = ["eu", "us", "ap", "eu-1", "eu-2", "us-1", "us-2", "a", "b", "east", "west", "fra", "iad", "sin"];
    let mut tags = names.map(region_tag);
    tags.sort_unstable();
    assert!(tags.windows(2).all(|pair| pair[0] != pair[1]));
    assert_eq!(region_tag("eu"), 53_311, "every version gets the same bits");
}
