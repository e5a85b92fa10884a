//! Tells the other regions what this server admits of shared limits, and logs what becomes of them.
//!
//! The server starts without the other regions, and no request waits for them.

use std::fmt;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use spillgate::regions::{About, Options, PeerStatus, Peers};
use spillgate_redis::{RedisStore, stand_aside};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};

use crate::command::differences::words;
use crate::command::open::{redis, store};
use crate::command::terminal::Problem;
use crate::settings::{Settings, StoreUrl};

/// How often the own store is told what the servers of this region are, and how soon again after a failure.
const WRITE_EVERY: Duration = Duration::from_secs(60);
const WRITE_AGAIN: Duration = Duration::from_secs(1);
const WITHIN: Duration = Duration::from_secs(5);
/// The start of the server does not wait longer for it.
const FIRST_WITHIN: Duration = Duration::from_secs(1);

/// How often the regions are looked at for the log.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// While a failure lasts, it gets at most one line in this time. Each change of a region has a line of its own.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The other regions, and the thread that tells them.
pub(super) struct OtherRegions {
    peers: Arc<Peers>,
    runtime: Runtime,
}

/// Starts to tell the other regions. Returns `None` if this is the only region, or if the store is memory.
pub(super) fn start(settings: &Settings) -> Result<Option<OtherRegions>, Problem> {
    let (Some(region), Some(count)) = (&settings.regions.name, settings.regions.count()) else { return Ok(None) };
    // Limits in memory can be split among regions. Nothing is told then.
    if settings.store.url == StoreUrl::Memory {
        return Ok(None);
    }
    let no_resources = |error: io::Error| Problem::no_resources(&error);
    let mut thread = Builder::new_multi_thread();
    let thread = thread.worker_threads(1).thread_name("regions").on_thread_start(stand_aside).enable_all();
    let runtime = thread.build().map_err(no_resources)?;
    let options = Options {
        region: region.clone(),
        nodes: settings.store.expected_nodes.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN),
        max_keys: u32::try_from(settings.regions.max_keys).unwrap_or(u32::MAX),
        sync: settings.regions.sync,
        secret: store::check_value(settings)?,
    };
    let mut stores = Vec::new();
    for peer in &settings.regions.peers {
        stores.push((peer.name.clone(), redis::region_store(settings, peer)?));
    }
    let own = redis::own_region_store(settings)?;
    let about = About::new(region, count, options.secret).to_string();
    let _entered = runtime.enter();
    // A peer that is the own store by mistake is known by this text, so it is written before anything is told. While the
    // store does not answer, it admits nothing either.
    let first = async {
        own.wait_connected().await?;
        own.write_about(&about, FIRST_WITHIN).await
    };
    _ = runtime.block_on(timeout(FIRST_WITHIN, first));
    let peers = Arc::new(Peers::start(&options, stores));
    runtime.spawn(write_about(own, about));
    runtime.spawn(follow(Arc::clone(&peers)));
    Ok(Some(OtherRegions { peers, runtime }))
}

impl OtherRegions {
    pub(super) fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Tells what is not told yet. Call it when no request is decided any more. It takes a second at most.
    pub(super) fn drain(&self) {
        let left = self.runtime.block_on(self.peers.drain());
        if left > 0 {
            tracing::warn!(keys = left, "not all regions know what this server has admitted of shared limits");
        }
    }
}

impl fmt::Debug for OtherRegions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherRegions").field("peers", &self.peers).finish_non_exhaustive()
    }
}

/// Writes into the own store what other regions compare.
async fn write_about(own: RedisStore, about: String) {
    let mut logged_at: Option<Instant> = None;
    loop {
        let written = own.write_about(&about, WITHIN).await;
        if let Err(error) = &written
            && logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY)
        {
            logged_at = Some(Instant::now());
            tracing::warn!("the other regions cannot compare their settings with this one: {error}");
        }
        sleep(if written.is_ok() { WRITE_EVERY } else { WRITE_AGAIN }).await;
    }
}

/// Logs when a region is cut off or heard again, and what it says otherwise than this region.
async fn follow(peers: Arc<Peers>) {
    let mut seen = Vec::new();
    let (mut untold, mut untold_at) = (0, None::<Instant>);
    loop {
        let now = peers.status();
        for (number, status) in now.iter().enumerate() {
            for line in lines(seen.get(number), status) {
                tracing::warn!(region = status.name, "{line}");
            }
        }
        seen = now;
        let units = peers.untold_units();
        if units > untold && untold_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            tracing::warn!(
                units = units - untold,
                "the list of what other regions have to be told is full: they are not told of new keys. Raise regions.max_keys, \
                 or use across_regions: split for limits with many keys"
            );
            (untold, untold_at) = (units, Some(Instant::now()));
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Returns the lines about what has changed of a region.
fn lines(before: Option<&PeerStatus>, now: &PeerStatus) -> Vec<String> {
    let mut lines = Vec::new();
    let was_cut_off = before.is_some_and(|before| before.cut_off.is_some());
    match (was_cut_off, now.cut_off) {
        (false, Some(_)) => {
            let why = now.last_failure.as_ref().map(|(error, _)| format!(": {error}")).unwrap_or_default();
            lines.push(format!("the region is cut off, so it does not learn what this region admits{why}"));
        }
        // A pause ends the waiting for answers.
        (true, None) if now.is_paused => {}
        (true, None) => lines.push("the region is heard again".to_owned()),
        (true, Some(_)) | (false, None) => {}
    }
    let differs = before.map(|before| before.differs).unwrap_or_default();
    for ((what, is), (_, was)) in now.differs.all().into_iter().zip(differs.all()) {
        if is && !was {
            let (found, help) = words(what);
            lines.push(format!("the region {found}: {help}"));
        }
    }
    lines
}
