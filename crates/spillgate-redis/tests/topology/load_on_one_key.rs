//! Tasks that use up the limit of one key while the key's primary fails. Afterwards, the test reads how many units the
//! replica has counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spillgate_core::{Binding, Hit, Op, Time, decide};
use spillgate_redis::{RedisKey, RedisStore};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::cluster::{WITHIN, text};
use crate::support::common::{PATIENCE, a_day, take, until};
use crate::support::server::Server;

pub(crate) const LIMIT: u64 = 3000;

/// Tasks that take from one key until its limit is used up.
pub(crate) struct KeyLoad {
    tasks: Vec<JoinHandle<()>>,
    admitted: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    may_have_been_applied: Arc<AtomicU64>,
    is_used_up: Arc<AtomicBool>,
}

impl KeyLoad {
    pub(crate) fn start(store: &RedisStore, key: u128) -> KeyLoad {
        let [admitted, failed, may_have_been_applied] = [0; 3].map(|_| Arc::new(AtomicU64::new(0)));
        let is_used_up = Arc::new(AtomicBool::new(false));
        let task = || {
            let (store, admitted, failed) = (store.clone(), Arc::clone(&admitted), Arc::clone(&failed));
            let (may_have_been_applied, is_used_up) = (Arc::clone(&may_have_been_applied), Arc::clone(&is_used_up));
            tokio::spawn(async move {
                while !is_used_up.load(Ordering::Relaxed) {
                    match take(&store, key, &a_day(LIMIT), WITHIN).await {
                        Ok((verdict, _)) if verdict.allowed => admitted.fetch_add(1, Ordering::Relaxed),
                        Ok(_) => u64::from(is_used_up.swap(true, Ordering::Relaxed)),
                        Err(failure) => {
                            may_have_been_applied
                                .fetch_add(u64::from(failure.kind().may_have_been_applied()), Ordering::Relaxed);
                            failed.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                    sleep(Duration::from_millis(1)).await;
                }
            })
        };
        let tasks = (0..8).map(|_| task()).collect();
        KeyLoad { tasks, admitted, failed, may_have_been_applied, is_used_up }
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    /// Returns how many takes were admitted, how many failed, and how many of the failed takes may have been applied.
    pub(crate) async fn end(self) -> [u64; 3] {
        for task in self.tasks {
            timeout(PATIENCE, task).await.expect("every request is answered").expect("no task panics");
        }
        assert!(self.is_used_up.load(Ordering::Relaxed));
        [self.admitted, self.failed, self.may_have_been_applied].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Returns the units of `key` that a replica has counted. First waits until the replica has received everything that
/// the dead primary had sent.
pub(crate) async fn passed_on(replica: &Server, key: u128) -> u64 {
    let replication = || text(replica.run(&["INFO", "REPLICATION"]));
    until("the replica has read all that the primary sent", || replication().contains("master_link_status:down")).await;
    counted_by(replica, key)
}

/// Returns the units of `key` that a replica has counted until now.
pub(crate) fn counted_by(replica: &Server, key: u128) -> u64 {
    let quota = &a_day(LIMIT);
    let client = redis::Client::open(("127.0.0.1", replica.port())).expect("the URL is valid");
    let mut connection = client.get_connection().expect("the replica runs");
    // A replica in a cluster serves reads only after this command. Other replicas reply with an error, which does not
    // matter.
    let _ = redis::cmd("READONLY").exec(&mut connection);
    let hit = [Hit::new(key, quota, Op::Peek, Binding::Enforce)];
    let raw: Vec<u8> =
        redis::cmd("GET").arg(RedisKey::of(&hit[0]).as_bytes()).query(&mut connection).expect("the value is a string");
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).expect("the reply is a time");
    let mut states = [spillgate_redis::decode_state(&raw, quota).unwrap_or_default()];
    let mut decisions = [Default::default()];
    decide(&mut states, &[0], &hit, Time::from_nanos(seconds * 1_000_000_000), &mut decisions);
    LIMIT - decisions[0].remaining
}
