//! A store on one server, over one shared connection.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};
use spillgate_core::{Decision, Hit, OpKind, Quota, Store, StoreError, Time, Verdict};

use crate::{Answer, Request, Script, supports};

/// Decides on one Redis or Valkey. Requests that are under way at once share a connection and its round trips.
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
    connection: MultiplexedConnection,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RedisStore")
    }
}

impl RedisStore {
    /// Connects and loads the scripts.
    ///
    /// # Errors
    /// The address is none, or the server does not answer.
    pub async fn connect(url: &str) -> Result<RedisStore, StoreError> {
        let client = redis::Client::open(url).map_err(unavailable)?;
        let connection = client.get_multiplexed_async_connection().await.map_err(unavailable)?;
        let store = RedisStore { connection };
        store.load().await?;
        Ok(store)
    }

    async fn load(&self) -> Result<(), StoreError> {
        let mut all = redis::Pipeline::new();
        for script in Script::ALL {
            all.cmd("SCRIPT").arg("LOAD").arg(script.source).ignore();
        }
        all.query_async(&mut self.connection.clone()).await.map_err(unavailable)
    }

    /// The reply to the request; a server that has lost its scripts has done nothing, and gets them again.
    async fn ask(&self, request: &Request<'_, '_>) -> Result<Vec<u8>, StoreError> {
        let command = command(request);
        let reply = command.query_async(&mut self.connection.clone()).await;
        match reply {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.load().await?;
                command.query_async(&mut self.connection.clone()).await.map_err(unavailable)
            }
            reply => reply.map_err(unavailable),
        }
    }
}

impl Store for RedisStore {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        supports(quota, op)
    }

    async fn decide(
        &self,
        now: Option<Time>,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        if hits.len() != decisions.len() {
            return Err(StoreError::Malformed("as many decisions as hits"));
        }
        let mut request = Request::new(now, hits)?;
        // The general script is not asked again.
        loop {
            let reply = self.ask(&request).await?;
            if let Answer::Verdict(verdict) = request.answer(&reply, decisions)? {
                return Ok(verdict);
            }
        }
    }
}

fn command(request: &Request<'_, '_>) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(request.script().sha()).arg(request.keys().len());
    for key in request.keys() {
        command.arg(key.as_bytes());
    }
    for argument in request.arguments() {
        command.arg(argument);
    }
    command
}

fn unavailable(error: RedisError) -> StoreError {
    StoreError::Unavailable(error.to_string())
}
