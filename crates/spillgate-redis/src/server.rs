//! One server: what it is asked, and what becomes of that.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use redis::{Cmd, Value};
use tokio::time::{Instant, timeout_at};

use crate::breaker::{Breaker, Circuit};
use crate::failure::{Failed, Failure};
use crate::jitter::Jitter;
use crate::link::{Link, Live, Shared};
use crate::request::Request;
use crate::settings::Settings;
use crate::target::Target;

/// How often a request gives the server its script before it fails: somebody may flush them all the time.
const LOADS_MAX: usize = 3;

/// Decides requests whose states are all on one server.
pub(crate) struct Server {
    shared: Arc<Shared>,
    links: Box<[Arc<Link>]>,
    max_in_flight: usize,
    in_flight: AtomicUsize,
    failures: [AtomicU64; Failure::ALL.len()],
}

impl Server {
    pub(crate) fn new(settings: &Settings) -> Result<Server, Failed> {
        let shared = Shared {
            target: Target::new(settings)?,
            breaker: Breaker::new(settings.max_failures, settings.probe_every, Jitter::new()),
            jitter: Jitter::new(),
            connect_timeout: settings.connect_timeout,
            longest_pause: settings.probe_every,
            start: Instant::now(),
            trouble: ArcSwapOption::empty(),
        };
        Ok(Server {
            shared: Arc::new(shared),
            links: (0..settings.connections.max(1)).map(|_| Arc::default()).collect(),
            max_in_flight: settings.max_in_flight,
            in_flight: AtomicUsize::new(0),
            failures: Default::default(),
        })
    }

    /// The reply to the request: by the deadline, or a failure. It is written once, but for a server that says that it
    /// lacks the script: that has done nothing.
    pub(crate) async fn ask(&self, request: &Request<'_, '_>, deadline: Instant) -> Result<Vec<u8>, Failed> {
        let asked = match Place::take(self) {
            Some(_place) if self.admits() => self.ask_admitted(request, deadline).await,
            Some(_) => Err(Failed::new(Failure::Open, "the server is not asked for a while")),
            None => Err(Failed::new(Failure::Overloaded, "too many requests in flight")),
        };
        if let Err(failed) = &asked {
            self.failures[failed.class as usize].fetch_add(1, Ordering::Relaxed);
        }
        asked
    }

    /// Whether the breaker lets a request pass; while it is closed that costs no look at the clock.
    fn admits(&self) -> bool {
        let breaker = &self.shared.breaker;
        breaker.circuit() == Circuit::Closed || breaker.admits(self.shared.at_ns(Instant::now()))
    }

    async fn ask_admitted(&self, request: &Request<'_, '_>, deadline: Instant) -> Result<Vec<u8>, Failed> {
        let breaker = &self.shared.breaker;
        let live = match self.link().live(&self.shared, deadline).await {
            Ok(live) => live,
            Err(failed) => {
                breaker.failed(self.shared.at_ns(Instant::now()));
                return Err(failed);
            }
        };
        let Ok(reply) = timeout_at(deadline, reply(&live, request)).await else {
            let now_ns = self.shared.at_ns(Instant::now());
            live.was_silent(now_ns);
            breaker.failed(now_ns);
            return Err(Failed::new(Failure::Timeout, "no answer before the deadline"));
        };
        match &reply {
            Err(failed) if failed.class.is_of_the_server() => {
                breaker.open(self.shared.at_ns(Instant::now()));
                if failed.class == Failure::Readonly {
                    live.give_up();
                }
            }
            // The link itself sees to it.
            Err(failed) if failed.class == Failure::Disconnected => {}
            _ => {
                live.answered();
                breaker.succeeded();
            }
        }
        reply
    }

    /// The link of this thread.
    fn link(&self) -> &Arc<Link> {
        &self.links[thread() % self.links.len()]
    }

    /// Waits for a connection until the deadline.
    pub(crate) async fn connected(&self, deadline: Instant) -> Result<(), Failed> {
        let connected = self.link().live(&self.shared, deadline).await;
        connected.map(drop).map_err(|failed| self.trouble().unwrap_or(failed))
    }

    /// Why the last attempt to connect failed, if it did.
    pub(crate) fn trouble(&self) -> Option<Failed> {
        self.shared.trouble.load().as_deref().cloned()
    }

    pub(crate) fn circuit(&self) -> Circuit {
        self.shared.breaker.circuit()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn failures(&self, class: Failure) -> u64 {
        self.failures[class as usize].load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.links.iter().for_each(|link| link.end());
    }
}

/// A place among the requests in flight.
struct Place<'s>(&'s AtomicUsize);

impl Place<'_> {
    fn take(server: &Server) -> Option<Place<'_>> {
        let place = Place(&server.in_flight);
        let taken = server.in_flight.fetch_add(1, Ordering::Relaxed);
        (taken < server.max_in_flight).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn reply(live: &Live, request: &Request<'_, '_>) -> Result<Vec<u8>, Failed> {
    let mut connection = live.connection();
    let command = command(request);
    let mut reply = command.query_async(&mut connection).await.map_err(Failed::from);
    for _ in 0..LOADS_MAX {
        if !reply.as_ref().is_err_and(|failed: &Failed| failed.class == Failure::Noscript) {
            break;
        }
        let mut both = redis::Pipeline::new();
        both.cmd("SCRIPT").arg("LOAD").arg(request.script().source).ignore();
        both.add_command(command.clone());
        reply = both.query_async(&mut connection).await.map(|(reply,)| reply).map_err(Failed::from);
    }
    match reply? {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(Failed::new(Failure::Other, "no answer of a script")),
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

/// This thread's number among those that have asked for one.
fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
    }
    THREAD.with(|thread| {
        let number = thread.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        thread.set(Some(number));
        number
    })
}
