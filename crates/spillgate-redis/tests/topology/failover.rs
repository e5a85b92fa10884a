//! Tests a cluster in which a primary dies and its replica takes over.

use spillgate_redis::{RedisStore, Settings};

use crate::support::cluster::{Cluster, WITHIN, key_on, role};
use crate::support::common::{a_day, until};
use crate::support::load::{Load, States, counted};
use crate::topology::load_on_one_key::{KeyLoad, LIMIT, counted_by, passed_on};

/// At most the limit is admitted, plus the units that the dead primary had admitted but not replicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_dies_and_its_replica_takes_over() {
    let mut cluster = Cluster::start(true, &["--cluster-require-full-coverage", "no"]);
    // First the test has to read the units that the replica has counted. Until then, the replica must not take over.
    cluster.nodes[3].run(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    let store =
        RedisStore::new(&Settings { timeout: WITHIN, ..Settings::new(cluster.url()) }).expect("the URL is valid");
    store.wait_connected().await.expect("the cluster serves");
    let load = Load::start(&store, 16, WITHIN, States::MayBeLost);
    let key = key_on(&cluster.nodes[1], 0, &a_day(LIMIT), 5);
    let key_load = KeyLoad::start(&store, key);
    until("a third of the limit is admitted", || key_load.admitted() >= LIMIT / 3).await;
    until("the replica has counted units", || counted_by(&cluster.nodes[3], key) > 0).await;

    cluster.nodes[0].kill();
    load.until_each_task_goes_on().await;
    let passed_on = passed_on(&cluster.nodes[3], key).await;
    let before = key_load.admitted();
    assert!((1..=LIMIT).contains(&passed_on), "the replica has counted {passed_on} of {before} admitted units");
    cluster.nodes[3].run(&["CONFIG", "SET", "cluster-replica-no-failover", "no"]);
    until("the replica takes over", || role(&cluster.nodes[3]) == "master").await;

    let [admitted, failed, may_have_been_applied] = key_load.end().await;
    let lost = before.saturating_sub(passed_on);
    assert!(
        (LIMIT.saturating_sub(may_have_been_applied)..=LIMIT + lost).contains(&admitted),
        "{admitted} admitted, {lost} lost"
    );

    // The old primary comes back as a replica, and gets no requests.
    cluster.nodes[0].start_again();
    until("the old primary is a replica", || role(&cluster.nodes[0]) == "slave").await;
    let decided = load.decided();
    until("the store decides", || load.decided() > decided + 1000).await;
    let old = format!("127.0.0.1:{}", cluster.nodes[0].port());
    assert!(store.nodes().iter().all(|node| node.address != old), "{:?}", store.nodes());
    let tally = load.end().await;
    assert_eq!((counted(&store), store.in_flight()), (tally.failed + failed, 0), "{tally:?}");
}
