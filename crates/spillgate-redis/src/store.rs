//! A store on one server.

use std::sync::Arc;
use std::time::Duration;

use spillgate_core::{Decision, Hit, OpKind, Quota, Store, StoreError, Time, Verdict};
use tokio::time::Instant;

use crate::deny_cache::DenyCache;
use crate::server::Server;
use crate::{Answer, Circuit, Failed, Failure, Request, Settings, supports};

/// Decides on one Redis or Valkey. Requests that are under way at once share connections and their round trips.
///
/// It is made at once, with or without a server, and connects when it is first asked. Each request is answered within
/// [`Settings::timeout`]: decided, or failed. It is asked once: whether one that failed was charged,
/// [`Failure::is_in_doubt`] says. Requests need a tokio runtime with time and I/O.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use spillgate_core::{Binding, Decision, Hit, Op, Quota, Store};
/// use spillgate_redis::RedisStore;
///
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// let quota = Quota::per_second(10).build()?;
/// let mut decisions = [Decision::default()];
/// let hits = [Hit::new(7, &quota, Op::take(4), Binding::Enforce)];
/// let verdict = store.decide(None, &hits, &mut decisions).await?;
/// assert!(verdict.allowed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    server: Arc<Server>,
    deny_cache: Arc<DenyCache>,
    timeout: Duration,
    connect_timeout: Duration,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_flight = self.server.in_flight();
        f.debug_struct("RedisStore").field("circuit", &self.circuit()).field("in_flight", &in_flight).finish()
    }
}

impl RedisStore {
    /// A store that is not connected yet.
    ///
    /// # Errors
    /// The address or a certificate is none.
    pub fn new(settings: &Settings) -> Result<RedisStore, Failed> {
        let server = Arc::new(Server::new(settings)?);
        let deny_cache = Arc::new(DenyCache::new(settings.deny_cache_entries, settings.deny_cache_max_age));
        Ok(RedisStore { server, deny_cache, timeout: settings.timeout, connect_timeout: settings.connect_timeout })
    }

    /// A store with the settings that are usual, once it is connected.
    ///
    /// # Errors
    /// The address is none, or the server does not answer.
    pub async fn connect(url: &str) -> Result<RedisStore, Failed> {
        let store = RedisStore::new(&Settings::new(url))?;
        store.connected().await?;
        Ok(store)
    }

    /// Waits until there is a connection, [`Settings::connect_timeout`] at most.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connected(&self) -> Result<(), Failed> {
        self.server.connected(Instant::now() + self.connect_timeout).await
    }

    /// This store, with a time of the caller's own for each request.
    ///
    /// ```no_run
    /// # async fn example(store: &spillgate_redis::RedisStore) -> Result<(), spillgate_core::StoreError> {
    /// use std::time::Duration;
    /// use spillgate_core::Store;
    ///
    /// store.within(Duration::from_millis(3)).decide(None, &[], &mut []).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn within(&self, timeout: Duration) -> impl Store {
        Within { store: self, timeout }
    }

    /// Like [`Store::decide`], within a time of the caller's own, and with the class of what failed.
    ///
    /// # Errors
    /// There is no decision.
    pub async fn decide_within(
        &self,
        timeout: Duration,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, Failed> {
        if hits.len() != decisions.len() {
            return Err(Failed::new(Failure::Malformed, "as many decisions as hits"));
        }
        let sent = Instant::now();
        let deadline = sent + timeout;
        // Of times that a test passes its clock knows nothing.
        let known = if now.is_none() { self.deny_cache.answer(hits, decisions, sent) } else { None };
        if let Some(verdict) = known {
            return Ok(verdict);
        }
        let question = self.deny_cache.question(hits, sent);
        let mut request = Request::new(now, hits)?;
        // The general script is not asked again.
        loop {
            let reply = self.server.ask(&request, deadline).await?;
            if let Answer::Verdict(verdict) = request.answer(&reply, decisions)? {
                if now.is_none() && !verdict.allowed {
                    question.learn(decisions, verdict.now, Instant::now(), 1);
                }
                return Ok(verdict);
            }
        }
    }

    /// What becomes of requests now.
    #[must_use]
    pub fn circuit(&self) -> Circuit {
        self.server.circuit()
    }

    /// Why the last attempt to connect failed, if it did.
    #[must_use]
    pub fn trouble(&self) -> Option<Failed> {
        self.server.trouble()
    }

    /// Requests that wait for their answers.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.server.in_flight()
    }

    /// Requests that were refused without asking the server, since a refusal of its was still true.
    #[must_use]
    pub fn denied_by_cache(&self) -> u64 {
        self.deny_cache.answered()
    }

    /// Requests that failed so.
    #[must_use]
    pub fn failures(&self, class: Failure) -> u64 {
        self.server.failures(class)
    }
}

impl Store for RedisStore {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        true
    }

    async fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        Ok(self.decide_within(self.timeout, now, hits, decisions).await?)
    }
}

/// A store whose requests have another time than its settings say.
struct Within<'s> {
    store: &'s RedisStore,
    timeout: Duration,
}

impl Store for Within<'_> {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        self.store.supports(quota, op)
    }

    fn has_clock(&self) -> bool {
        self.store.has_clock()
    }

    async fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        Ok(self.store.decide_within(self.timeout, now, hits, decisions).await?)
    }
}
