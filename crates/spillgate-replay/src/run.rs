//! One set of rules that decides the requests of a log.

use std::num::NonZeroU32;
use std::ptr;
use std::sync::Arc;

use futures_util::FutureExt as _;
use smallvec::SmallVec;
use spillgate::rules::{Limit, LimitDescription, NoMemory, Request, Rule, Rules};
use spillgate::{Algorithm, KeyHasher, Limiter, ManualClock, MemoryOptions, MemoryStore, Reason, Time, Timing};
use spillgate_service::metrics::{Metrics, judged_units};
use spillgate_service::{
    Answer, Backend, CallerKeys, Client, Loaded, Service, ServiceError, ServiceOptions, caller_name,
};

use super::LoggedRequest;
use super::callers::{CallersOfLimits, Names};
use super::period::{HOUR_NS, Hours};
use super::refusals::Refusals;
use super::report::{Counts, LimitCallers, LimitReport, RunReport};
use super::timeline::Counting;

/// If the log ends less than this before the end of an hour, insight is read at the end of the hour. Most logs are
/// rotated when an hour ends.
const MINUTE_NS: u64 = 60_000_000_000;

/// The note of a concurrency limit.
const NO_ENDS: &str = "A log does not say when a request has ended. So each permit is held until its lease ends, and this limit refuses \
                       more than it would.";

/// The note of a limit with a queue.
const NO_WAITS: &str = "A request waits in the queue for as long as --wait says. Without --wait no request waits, so each request that \
                        would have to wait counts as refused.";

/// The note of a limit whose cost is known only after the work.
const NO_COSTS: &str = "The cost of this limit is charged after the work, and a log does not have it. Each request counts 1 unit, and this \
                        limit refuses none of them.";

/// What a run needs besides its rules.
#[derive(Clone, Debug)]
pub struct RunOptions {
    pub service: ServiceOptions,
    pub memory: MemoryOptions,
    /// The hasher of keys, with its secret.
    pub keys: KeyHasher,
    /// The maximum number of callers that are counted one by one, of all limits together.
    pub callers: usize,
}

/// A set of rules with everything that it has counted.
#[derive(Debug)]
pub struct Run {
    name: String,
    service: Service<ManualClock>,
    loaded: Arc<Loaded>,
    /// The index of the first limit of each rule in `limits`.
    first_limits: Vec<usize>,
    limits: Vec<Tally>,
    callers: CallersOfLimits,
    allowed: u64,
    refused: u64,
    unmatched: u64,
    store_full: u64,
    timeline: Counting,
    /// The number of the hour of the last request, since 1970.
    hour: u64,
    last_ns: u64,
}

/// What one limit did.
#[derive(Debug)]
struct Tally {
    allowed_requests: u64,
    refused_requests: u64,
    allowed_units: u64,
    refused_units: u64,
    timeline: Counting,
    refusals: Refusals,
    /// The requests of callers that are not counted one by one.
    further: Counts,
    /// The requests of the current hour of UTC.
    hour: Counts,
    hours: Hours,
}

/// How a run answers a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    pub allowed: bool,
    /// For each descriptor, whether a limit refuses it. `None` if no limit counts it.
    pub descriptors: SmallVec<[Option<bool>; 4]>,
}

impl Run {
    /// Makes a run whose virtual clock begins at `begin`. The run has sketches of its own.
    ///
    /// # Errors
    /// The operating system has no memory for the sketches of the rules.
    pub fn new(name: String, mut rules: Rules, options: &RunOptions, begin: Time) -> Result<Run, NoMemory> {
        // Without this line, copies of the same rules would count in the same sketches.
        rules.open_sketches(None, NonZeroU32::MIN)?;
        let store = MemoryStore::new(options.memory);
        store.reserve_heap(rules.sketch_bytes());
        let limiter = Limiter::with_keys(Backend::Memory(store), ManualClock::at(begin), options.keys.clone());
        let mut service = options.service;
        service.insight.keys = CallerKeys::Plain;
        let mut first_limits = Vec::new();
        let mut count = 0;
        for rule in rules.rules() {
            first_limits.push(count);
            count += rule.limits.len();
        }
        let service = Service::new(rules, limiter, service, Arc::new(Metrics::new()));
        let loaded = Arc::clone(&service.rules());
        Ok(Run {
            name,
            service,
            loaded,
            first_limits,
            limits: std::iter::repeat_with(Tally::new).take(count).collect(),
            callers: CallersOfLimits::new(options.callers),
            allowed: 0,
            refused: 0,
            unmatched: 0,
            store_full: 0,
            timeline: Counting::new(),
            hour: begin.as_nanos() / HOUR_NS,
            last_ns: begin.as_nanos(),
        })
    }

    /// Decides a request at the time of its line. Times must not go back.
    ///
    /// # Errors
    /// The errors of [`Service::decide`]: the request exceeds a bound of the settings.
    pub fn decide(&mut self, logged: &LoggedRequest<'_>, request: &Request<'_>) -> Result<Decided, ServiceError> {
        let time_ns = logged.time.as_nanos();
        if time_ns / HOUR_NS > self.hour {
            self.end_hour((self.hour + 1).saturating_mul(HOUR_NS) - 1);
            self.hour = time_ns / HOUR_NS;
        }
        self.last_ns = time_ns;
        let loaded = Arc::clone(&self.loaded);
        let future = self.service.decide_in(Timing::at(logged.time), &loaded, request, Client::default());
        // The memory store never waits.
        let answer =
            future.now_or_never().unwrap_or_else(|| Err(ServiceError::BadRequest("the store waits".into())))?;
        let allowed = answer.verdict.allowed;
        self.allowed += u64::from(allowed);
        self.refused += u64::from(!allowed);
        self.unmatched += u64::from(answer.statuses.iter().all(|status| status.rule.is_none()));
        let is_full = |descriptor| answer.limits(descriptor).any(|it| it.decision.reason == Reason::StoreFull);
        self.store_full += u64::from(!allowed && (0..answer.statuses.len()).any(is_full));
        self.timeline.add(time_ns, !allowed);
        let mut decided = Decided { allowed, descriptors: SmallVec::new() };
        for (index, descriptor) in request.descriptors().enumerate() {
            self.count_limits(logged, (index, descriptor.entries), &answer);
            let status = &answer.statuses[index];
            let is_limited = answer.limits(index).next().is_some();
            decided.descriptors.push(is_limited.then_some(status.enforced_over));
        }
        Ok(decided)
    }

    /// Counts what each limit of a descriptor decided.
    fn count_limits(
        &mut self,
        logged: &LoggedRequest<'_>,
        (descriptor, entries): (usize, &[(&str, &str)]),
        answer: &Answer<'_>,
    ) {
        let Some(rule) = answer.statuses[descriptor].rule else { return };
        let Some(first) = self.first_limits.get(rule.index()) else { return };
        for decided in answer.limits(descriptor) {
            // Descriptors with the same counter share one hit, so it is counted only once.
            let mut before = (0..descriptor).flat_map(|before| answer.limits(before));
            if before.any(|other| ptr::eq(other.hit, decided.hit)) {
                continue;
            }
            let Some(units) = judged_units(decided.hit.op, decided.decision) else { continue };
            let Some(index) = rule.limits.iter().position(|own| ptr::eq(own, decided.limit)) else { continue };
            let tally = &mut self.limits[first + index];
            let (refused, key) = (!decided.decision.allowed, decided.hit.key);
            tally.count(logged.time.as_nanos(), units, refused);
            if !self.callers.add(first + index, key, refused, || caller_name(Some(rule), entries)) {
                tally.further.add(refused);
            }
            if refused {
                tally.refusals.add(logged, decided.decision, key, || caller_name(Some(rule), entries).to_string());
            }
        }
    }

    /// Reads the insight of each limit at `now_ns`: the last nanosecond of an hour, or the end of the log.
    fn end_hour(&mut self, now_ns: u64) {
        let mut position = (0, 0);
        while let Some(((rule, limit, insight), next)) = self.loaded.watched_from(position) {
            let (rule_index, limit_index) = (next.0, next.1 - 1);
            position = next;
            let tally = &mut self.limits[self.first_limits[rule_index] + limit_index];
            let hour = std::mem::take(&mut tally.hour);
            if hour != Counts::default() {
                tally.hours.add(insight.read(Time::from_nanos(now_ns)), hour, (rule, limit));
            }
        }
    }

    /// Returns the names of the rules files.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.loaded
    }

    /// Returns each limit with its rule, its position in this rule, and its requests.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&Rule, usize, &Limit, Counts)> {
        let limits =
            self.loaded.rules().flat_map(|rule| rule.limits.iter().enumerate().map(move |(at, it)| (rule, at, it)));
        limits.zip(&self.limits).map(|((rule, at, limit), tally)| {
            let counts = Counts { allowed: tally.allowed_requests, refused: tally.refused_requests };
            (rule, at, limit, counts)
        })
    }

    /// Returns the report of the run. Its limits are in the order of the rules.
    #[must_use]
    pub fn finish(mut self, whole_seconds: bool, names: &Names) -> RunReport {
        let end_ns = (self.hour + 1).saturating_mul(HOUR_NS) - 1;
        let has_whole_hour = end_ns.saturating_sub(self.last_ns) < MINUTE_NS;
        self.end_hour(if has_whole_hour { end_ns } else { self.last_ns });
        let rules = self.loaded.rules().flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)));
        let unwatched = self.limits.len() - self.loaded.unwatched();
        let mut callers = self.callers.finish(self.limits.len(), names);
        let report = |(index, ((rule, limit), tally)): (usize, ((&Rule, &Limit), Tally))| {
            let callers = LimitCallers { further: tally.further, ..std::mem::take(&mut callers[index]) };
            let [first_refusals, longest_refusals] = tally.refusals.finish(names);
            let (hours, period) = tally.hours.finish(limit, whole_seconds, names);
            let unwatched =
                (index >= unwatched).then_some("This limit has no insight, because insight.max_callers is too small.");
            let note = match limit.quota.algorithm() {
                Algorithm::Concurrency => Some(NO_ENDS),
                Algorithm::LeakyBucket => Some(NO_WAITS),
                _ if limit.post_paid => Some(NO_COSTS),
                _ => unwatched,
            };
            LimitReport {
                limit: LimitDescription::of(rule, limit),
                note: note.map(str::to_owned),
                allowed_requests: tally.allowed_requests,
                refused_requests: tally.refused_requests,
                allowed_units: tally.allowed_units,
                refused_units: tally.refused_units,
                timeline: tally.timeline.finish(),
                callers,
                first_refusals,
                longest_refusals,
                hours,
                whole_log: None,
                period,
            }
            .judged()
        };
        RunReport {
            name: self.name,
            allowed_requests: self.allowed,
            refused_requests: self.refused,
            unmatched_requests: self.unmatched,
            store_full_requests: self.store_full,
            limits: rules.zip(self.limits).enumerate().map(report).collect(),
            timeline: self.timeline.finish(),
        }
    }
}

impl Tally {
    fn new() -> Tally {
        Tally {
            allowed_requests: 0,
            refused_requests: 0,
            allowed_units: 0,
            refused_units: 0,
            timeline: Counting::new(),
            refusals: Refusals::default(),
            further: Counts::default(),
            hour: Counts::default(),
            hours: Hours::default(),
        }
    }

    fn count(&mut self, time_ns: u64, units: u64, refused: bool) {
        let (requests, sum) = match refused {
            true => (&mut self.refused_requests, &mut self.refused_units),
            false => (&mut self.allowed_requests, &mut self.allowed_units),
        };
        *requests += 1;
        *sum = sum.saturating_add(units);
        self.hour.add(refused);
        self.timeline.add(time_ns, refused);
    }
}
