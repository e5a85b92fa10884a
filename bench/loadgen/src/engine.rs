//! The engine of the load generator: it sends requests on many connections, and counts the replies and their latencies.
//!
//! Each thread has one epoll loop. The window of a connection is the maximum number of its requests in flight. In an
//! open loop, requests are sent on a fixed schedule. In a closed loop, a request is sent as soon as a reply has made
//! space for it in the window.

use crate::Load;
use crate::keys::Keys;
use crate::proto::{Completion, Protocol, Verdict};
use crate::socket::Socket;
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};
use rustls::ClientConfig;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Makes the state of the protocol for one connection.
pub(crate) type MakeProtocol = dyn Fn() -> Box<dyn Protocol> + Send + Sync;

/// The sum of the results of all threads in the measured time.
pub(crate) struct Outcome {
    pub allowed: u64,
    pub denied: u64,
    pub errors: u64,
    pub elapsed: Duration,
    pub latency: Histogram<u64>,
    pub client_cpu: Duration,
    pub server_cpu: Option<Duration>,
}

/// The start times of the requests in flight, by the number of the request. Replies may come in any order.
#[derive(Default)]
struct InFlight {
    first: u64,
    starts: VecDeque<Option<Instant>>,
    count: usize,
}

impl InFlight {
    fn push(&mut self, start: Instant) {
        self.starts.push_back(Some(start));
        self.count += 1;
    }

    fn take(&mut self, request: u64) -> Option<Instant> {
        let start = self.starts.get_mut(request.checked_sub(self.first)? as usize)?.take()?;
        self.count -= 1;
        while let Some(None) = self.starts.front() {
            self.starts.pop_front();
            self.first += 1;
        }
        Some(start)
    }
}

struct Connection {
    socket: Socket,
    protocol: Box<dyn Protocol>,
    in_flight: InFlight,
    window: usize,
    input: Vec<u8>,
}

impl Connection {
    fn open(load: &Load, tls: Option<&Arc<ClientConfig>>, window: usize, make: &MakeProtocol) -> Result<Self, String> {
        let mut socket = Socket::open(load.target, tls)?;
        let mut protocol = make();
        protocol.preface(&mut socket.output);
        Ok(Connection { socket, protocol, in_flight: InFlight::default(), window, input: Vec::with_capacity(1 << 16) })
    }

    /// Reads all bytes that have arrived. The poll is edge-triggered, so it does not report bytes that were left
    /// unread.
    fn read(&mut self, scratch: &mut [u8], done: &mut Vec<Completion>) -> Result<(), String> {
        while let Some(read) = self.socket.read(scratch, &mut self.input)? {
            let used = self.protocol.replies(&self.input, &mut self.socket.output, done)?;
            self.input.drain(..used);
            if read < scratch.len() {
                break;
            }
        }
        Ok(())
    }
}

/// The schedule of one thread in an open loop. With n threads, each thread sends 1/n of the requests.
struct Schedule {
    begin: Instant,
    interval: f64,
    sent: u64,
}

impl Schedule {
    fn due(&self) -> Instant {
        self.begin + Duration::from_secs_f64(self.interval * self.sent as f64)
    }
}

/// Makes a histogram of nanoseconds, up to one minute and with a precision of three digits.
pub(crate) fn histogram() -> Result<Histogram<u64>, String> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(|e| e.to_string())
}

struct Tally {
    allowed: u64,
    denied: u64,
    errors: u64,
    latency: Histogram<u64>,
}

impl Tally {
    fn add(&mut self, verdict: Verdict, latency: Duration) {
        match verdict {
            Verdict::Allowed => self.allowed += 1,
            Verdict::Denied => self.denied += 1,
            Verdict::Error => self.errors += 1,
        }
        self.latency.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// One thread of the client: its connections, keys, schedule and counts.
struct Worker {
    connections: Vec<Connection>,
    keys: Keys,
    schedule: Option<Schedule>,
    /// 1 + the index of the connection that the open loop used last.
    turn: usize,
    /// The connections that may be able to send: a reply has arrived, or the socket accepts bytes again.
    ready: Vec<usize>,
    tally: Tally,
    measure_from: Instant,
    measure_to: Instant,
}

impl Worker {
    fn start(load: &Load, thread: usize, connections: Vec<Connection>, keys: Keys) -> Result<Self, String> {
        let begin = Instant::now();
        let measure_from = begin + Duration::from_secs_f64(load.warmup);
        let interval = load.threads as f64 / load.rate;
        let phase = begin + Duration::from_secs_f64(if load.rate > 0.0 { thread as f64 / load.rate } else { 0.0 });
        Ok(Worker {
            ready: (0..connections.len()).collect(),
            connections,
            keys,
            schedule: (load.rate > 0.0).then_some(Schedule { begin: phase, interval, sent: 0 }),
            turn: 0,
            tally: Tally { allowed: 0, denied: 0, errors: 0, latency: histogram()? },
            measure_from,
            measure_to: measure_from + Duration::from_secs_f64(load.seconds),
        })
    }

    /// Sends requests in an open loop. Every request that is due goes to the next connection whose window is not full.
    fn send_due(&mut self) {
        let Some(schedule) = &mut self.schedule else { return };
        let now = Instant::now();
        let count = self.connections.len();
        while schedule.due() <= now {
            let has_room = |step: &usize| {
                let connection = &self.connections[(self.turn + step) % count];
                connection.in_flight.count < connection.window
            };
            let Some(step) = (0..count).find(has_room) else { break };
            let i = (self.turn + step) % count;
            let connection = &mut self.connections[i];
            if !connection.protocol.request(self.keys.next(), &mut connection.socket.output) {
                break;
            }
            connection.in_flight.push(schedule.due());
            schedule.sent += 1;
            self.turn = i + 1;
            self.ready.push(i);
        }
    }

    /// Sends requests in a closed loop. On each ready connection, it sends until the window is full or the flow control
    /// of the server allows no more.
    fn send_filling(&mut self) {
        for &i in &self.ready {
            let connection = &mut self.connections[i];
            if connection.in_flight.count >= connection.window {
                continue;
            }
            let now = Instant::now();
            while connection.in_flight.count < connection.window
                && connection.protocol.request(self.keys.next(), &mut connection.socket.output)
            {
                connection.in_flight.push(now);
            }
        }
    }

    /// Reads the replies of connection `i` and counts them.
    fn receive(&mut self, i: usize, scratch: &mut [u8], done: &mut Vec<Completion>) -> Result<(), String> {
        let connection = &mut self.connections[i];
        connection.read(scratch, done)?;
        let now = Instant::now();
        for completion in done.drain(..) {
            let sent = connection.in_flight.take(completion.request).ok_or("a reply without a request")?;
            if now >= self.measure_from {
                self.tally.add(completion.verdict, now - sent);
            }
        }
        Ok(())
    }

    fn run(mut self) -> Result<(Tally, Duration), String> {
        let mut poll = Poll::new().map_err(|e| e.to_string())?;
        for (i, connection) in self.connections.iter_mut().enumerate() {
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut connection.socket.stream, Token(i), interest).map_err(|e| e.to_string())?;
        }
        let (mut events, mut done) = (Events::with_capacity(1024), Vec::new());
        let mut scratch = vec![0; 1 << 16];
        loop {
            if self.schedule.is_some() {
                self.send_due();
            } else {
                self.send_filling();
            }
            for i in self.ready.drain(..) {
                self.connections[i].socket.flush()?;
            }
            let now = Instant::now();
            if now >= self.measure_to {
                return Ok((self.tally, now - self.measure_from));
            }
            let timeout = if self.schedule.is_some() { Duration::ZERO } else { self.measure_to - now };
            match poll.poll(&mut events, Some(timeout)) {
                Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e.to_string()),
                _ => {}
            }
            for event in &events {
                let i = event.token().0;
                self.connections[i].socket.writable |= event.is_writable();
                if event.is_readable() || event.is_read_closed() {
                    self.receive(i, &mut scratch, &mut done)?;
                }
                self.ready.push(i);
            }
        }
    }
}

fn drive(
    load: &Load,
    tls: Option<&Arc<ClientConfig>>,
    thread: usize,
    make: &MakeProtocol,
    start: &Barrier,
) -> Result<(Tally, Duration), String> {
    let share = |total: usize, i: usize, of: usize| total / of + usize::from(i < total % of);
    let mut opened = Vec::new();
    for i in (thread..load.connections).step_by(load.threads) {
        let window = share(load.concurrency.max(load.connections), i, load.connections);
        opened.push(Connection::open(load, tls, window, make));
    }
    let keys = Keys::new(&load.key_prefix, load.keys, load.zipf, load.seed + thread as u64);
    // A thread waits here even if it could not connect. The other threads would wait for ever for a thread that does
    // not come.
    start.wait();
    Worker::start(load, thread, opened.into_iter().collect::<Result<_, _>>()?, keys)?.run()
}

/// Runs the load on all threads, and adds up their results. With `tls`, all connections have TLS.
pub(crate) fn run(load: &Load, tls: Option<&Arc<ClientConfig>>, make: &MakeProtocol) -> Result<Outcome, String> {
    let start = Barrier::new(load.threads + 1);
    let (results, client_cpu, server_cpu) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|t| {
                scope.spawn({
                    let start = &start;
                    move || drive(load, tls, t, make, start)
                })
            })
            .collect();
        start.wait();
        std::thread::sleep(Duration::from_secs_f64(load.warmup));
        let before = (self_cpu(), server_cpu(&load.server_pid));
        std::thread::sleep(Duration::from_secs_f64(load.seconds * 0.999));
        let after = (self_cpu(), server_cpu(&load.server_pid));
        let results: Vec<_> = threads.into_iter().map(|t| t.join().expect("no client thread panics")).collect();
        let server = after.1.zip(before.1).map(|(a, b)| a.saturating_sub(b));
        (results, after.0.saturating_sub(before.0), server)
    });
    let mut outcome = Outcome {
        allowed: 0,
        denied: 0,
        errors: 0,
        elapsed: Duration::ZERO,
        latency: histogram()?,
        client_cpu,
        server_cpu,
    };
    for result in results {
        let (tally, elapsed) = result?;
        outcome.allowed += tally.allowed;
        outcome.denied += tally.denied;
        outcome.errors += tally.errors;
        outcome.elapsed = outcome.elapsed.max(elapsed);
        outcome.latency.add(&tally.latency).map_err(|e| e.to_string())?;
    }
    Ok(outcome)
}

pub(crate) fn self_cpu() -> Duration {
    // SAFETY: getrusage only writes to the struct that it gets.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Returns the user and system time of all these processes. `None` if `pids` is empty.
pub(crate) fn server_cpu(pids: &[u32]) -> Option<Duration> {
    if pids.is_empty() {
        return None;
    }
    pids.iter().map(|pid| process_cpu(*pid)).sum()
}

/// Returns the CPU time of a process, from the clock of the process. /proc counts in steps of 10 ms, which would be an
/// error of several percent in a short run.
fn process_cpu(pid: u32) -> Option<Duration> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both functions only write to the values that they get.
    let failed = unsafe {
        libc::clock_getcpuclockid(libc::pid_t::try_from(pid).ok()?, &mut clock) != 0
            || libc::clock_gettime(clock, &mut time) != 0
    };
    (!failed).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}
