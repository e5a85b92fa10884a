//! Asks sentinels for the address of the primary.
//!
//! During a failover, sentinels may report different primaries. Each sentinel also reports an epoch, a number that
//! grows with each failover. So the store asks all sentinels: the one with the greatest epoch has seen the latest
//! failover and is right.
//!
//! Each sentinel gets two commands in one write:
//!
//! ```text
//! > SENTINEL MASTER main
//! > SENTINEL GET-MASTER-ADDR-BY-NAME main
//! < name main ip 10.0.0.7 port 6379 .. config-epoch 12 ..
//! < 10.0.0.8 6379
//! ```
//!
//! | the sentinels | the result |
//! |---|---|
//! | at least one replies, and the greatest epoch in the replies is the latest known epoch or later | the address with that epoch |
//! | only some reply, and all of their epochs are earlier than the latest known epoch | an error, because these sentinels missed a failover |
//! | all reply, with earlier epochs than the latest known epoch | the address with the greatest epoch in the replies, because the sentinels were set up again |
//! | all are unreachable or too slow | the last known primary, or an error if no primary is known |
//! | no sentinel reports a primary, and at least one replies with an error | an error |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{ConnectionAddr, Pipeline};
use spillgate_core::StoreErrorKind;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connect::connector::Connector;
use crate::connect::url::address_text;
use crate::error::{Cause, Error};

/// When more than half of the sentinels have replied, the store waits this long for the others. One of the others may
/// have seen a later failover.
const LAG: Duration = Duration::from_millis(20);

/// The sentinels in the URL, and what they have reported so far.
pub(crate) struct Sentinels {
    /// The addresses of the sentinels, in the order of the URL. The store does not search for other sentinels.
    addresses: Vec<ConnectionAddr>,
    /// The name of the primary in the settings of the sentinels.
    pub(crate) name: String,
    /// The epoch of the latest failover that a sentinel has reported. An earlier epoch is accepted only if every
    /// sentinel reports an earlier epoch.
    epoch: AtomicU64,
    /// The primary of the last connection. It is used if no sentinel replies.
    last: ArcSwapOption<ConnectionAddr>,
    /// The primary that was returned last, for errors. Nobody may have reached it.
    named: ArcSwapOption<ConnectionAddr>,
}

impl Sentinels {
    pub(crate) fn new(addresses: Vec<ConnectionAddr>, name: String) -> Sentinels {
        Sentinels {
            addresses,
            name,
            epoch: AtomicU64::new(0),
            last: ArcSwapOption::empty(),
            named: ArcSwapOption::empty(),
        }
    }

    /// Stores where the primary was found.
    pub(crate) fn found(&self, address: ConnectionAddr) {
        self.last.store(Some(Arc::new(address)));
    }

    /// Returns the primary that [`address`](Sentinels::address) has returned last.
    pub(crate) fn named(&self) -> Option<Arc<ConnectionAddr>> {
        self.named.load_full()
    }

    /// Returns the address of the primary, according to the sentinel that has seen the latest failover. If no sentinel
    /// replies, this is the address of the last primary. This method waits for `connector.sentinels_within` at most.
    ///
    /// # Errors
    /// No sentinel reports a primary, and either no last primary is known or a sentinel replied with an error. The
    /// error is that of the failed sentinel that comes last in the URL, with its address. The reply of a sentinel counts
    /// more than a sentinel that cannot be reached. If no sentinel failed during the wait, the error is
    /// [`Timeout`](StoreErrorKind::Timeout).
    ///
    /// [`ReadOnly`](StoreErrorKind::ReadOnly) if only some sentinels replied, and all of these missed a failover that
    /// the store already knows.
    pub(crate) async fn address(&self, connector: &Connector) -> Result<ConnectionAddr, Error> {
        let address = self.newest(connector).await?;
        self.named.store(Some(Arc::new(address.clone())));
        Ok(address)
    }

    async fn newest(&self, connector: &Connector) -> Result<ConnectionAddr, Error> {
        let most = self.addresses.len() / 2 + 1;
        let mut replies: FuturesUnordered<_> = self
            .addresses
            .iter()
            .enumerate()
            .map(async |(i, sentinel)| (i, self.query_sentinel(sentinel, connector).await))
            .collect();
        let mut until = Instant::now() + connector.sentinels_within;
        let (mut newest, mut replied, mut was_refused) = (None, 0, false);
        let mut last_error = ((false, 0), Error::new(StoreErrorKind::Timeout, "no sentinel answered in time"));
        while let Ok(Some((i, reply))) = timeout_at(until, replies.next()).await {
            match reply {
                Ok((epoch, address)) => {
                    replied += 1;
                    if replied == most {
                        until = until.min(Instant::now() + LAG);
                    }
                    if newest.as_ref().is_none_or(|(newest, _)| epoch > *newest) {
                        newest = Some((epoch, address));
                    }
                }
                Err(error) => {
                    let is_reply = !matches!(error.kind, StoreErrorKind::Disconnected | StoreErrorKind::Timeout);
                    was_refused |= is_reply;
                    if (is_reply, i) >= last_error.0 {
                        let error = error.at(&format!("the sentinel {}", address_text(&self.addresses[i])));
                        let cause = match error.kind {
                            StoreErrorKind::NoPermission => Cause::SentinelPermission,
                            _ => error.cause,
                        };
                        last_error = ((is_reply, i), Error { cause, ..error });
                    }
                }
            }
        }
        let Some((epoch, address)) = newest else {
            return self.last.load().as_deref().filter(|_| !was_refused).cloned().ok_or(last_error.1);
        };
        let known = self.epoch.fetch_max(epoch, Ordering::Relaxed);
        if epoch < known {
            if replied < self.addresses.len() {
                let detail = format!("{replied} of {} sentinels answer, and missed a failover", self.addresses.len());
                return Err(Error::new(StoreErrorKind::ReadOnly, detail));
            }
            // All sentinels report an earlier epoch, so they were set up again.
            self.epoch.store(epoch, Ordering::Relaxed);
        }
        Ok(address)
    }

    /// Returns the address of the primary according to each sentinel, for the [doctor](crate::doctor). Each sentinel
    /// has the time `within` to reply.
    pub(crate) async fn each(
        &self,
        connector: &Connector,
        within: Duration,
    ) -> Vec<(ConnectionAddr, Result<ConnectionAddr, Error>)> {
        let late = || Error::new(StoreErrorKind::Timeout, format!("no answer within {within:?}"));
        let replies = self.addresses.iter().map(async |sentinel| {
            let reply = timeout(within, self.query_sentinel(sentinel, connector)).await.unwrap_or_else(|_| Err(late()));
            (sentinel.clone(), reply.map(|(_, address)| address))
        });
        join_all(replies).await
    }

    /// Asks one sentinel. Returns the epoch of the latest failover that this sentinel has seen, and the address of the
    /// primary that it reports. An epoch that is missing counts as 0.
    async fn query_sentinel(
        &self,
        sentinel: &ConnectionAddr,
        connector: &Connector,
    ) -> Result<(u64, ConnectionAddr), Error> {
        let mut commands = Pipeline::new();
        commands.cmd("SENTINEL").arg("MASTER").arg(&self.name);
        // The address comes from this second command, because SENTINEL MASTER still reports the old address during a
        // failover.
        commands.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let reply = connector.open_sentinel(sentinel).await?.query_all(&commands).await;
        let (fields, (host, port)): (BTreeMap<String, String>, (String, u16)) = reply?;
        let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Ok((epoch, ConnectionAddr::Tcp(host, port)))
    }
}
