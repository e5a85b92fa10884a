//! `spillgate check`: asks rules without a server, on a clock that stands still in between.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use spillgate::rules::{Action, Descriptor, Limit, Request};
use spillgate::{Decision, Hit, Limiter, ManualClock, MemoryOptions, MemoryStore, Op, Time, Verdict};

use super::load::{self, Problems, Trouble};
use super::terminal::Terminal;
use super::{NO, OK, WRONG, explain};
use crate::cli::Check;
use crate::metrics::Metrics;
use crate::service::{Backend, Bounds, Loaded, Service, ServiceError, ServiceOptions};
use crate::settings::Grants;

/// One question and its answer.
#[derive(Debug)]
pub(super) struct Asked<'p> {
    /// Since the start of the clock.
    pub(super) at: Duration,
    pub(super) verdict: Verdict,
    pub(super) limits: Vec<AskedLimit<'p>>,
}

/// What one limit said, and its state around the question.
#[derive(Debug)]
pub(super) struct AskedLimit<'p> {
    /// The number of its descriptor, from 0.
    pub(super) descriptor: usize,
    /// Its number in the descriptor's rule, from 0.
    pub(super) number: usize,
    pub(super) limit: &'p Limit,
    pub(super) before: Decision,
    pub(super) decision: Decision,
    pub(super) after: Decision,
}

/// The descriptors of the request as pairs.
pub(super) type Pairs<'c> = Vec<Vec<(&'c str, &'c str)>>;

pub(super) fn run(check: &Check, terminal: &mut Terminal) -> u8 {
    let checked = prepare(check).and_then(|(service, clock)| {
        let loaded = service.rules();
        let pairs: Pairs<'_> = check
            .descriptors
            .iter()
            .map(|entries| entries.0.iter().map(|(key, value)| (&**key, service.counted(value))).collect())
            .collect();
        let describe = |entries| Descriptor { entries, action: Action::Take(check.cost), limit: None };
        let descriptors: Vec<Descriptor<'_>> = pairs.iter().map(|entries| describe(&entries[..])).collect();
        let request = Request {
            domain: &check.domain,
            descriptors: &descriptors,
            max_wait_ns: u64::try_from(check.wait.as_nanos()).unwrap_or(u64::MAX),
        };
        let asked = ask_all(check, &service, &clock, &loaded, &request)?;
        if check.json {
            terminal.json(&explain::json(check, &loaded, &pairs, &asked));
        } else {
            let text = explain::text(check, &loaded, &pairs, &asked, terminal);
            terminal.print(&text);
        }
        Ok(if asked.iter().all(|asked| asked.verdict.allowed) { OK } else { NO })
    });
    checked.unwrap_or_else(|problems| {
        problems.tell(check.json, terminal);
        WRONG
    })
}

/// The service that a server would have, on a clock of our own.
fn prepare(check: &Check) -> Result<(Service<ManualClock>, ManualClock), Problems> {
    let settings = load::settings(check.config.as_deref(), &check.rules, &[])?.settings;
    let (rules, _) = load::rules(&settings.rules)?;
    let clock = ManualClock::at(Time::EPOCH);
    let store = Backend::Memory(MemoryStore::new(MemoryOptions::default()));
    let limiter = Limiter::with_clock(store, clock.clone());
    let options = ServiceOptions { shadow: settings.shadow, bounds: Bounds::from(&settings.limits) };
    Ok((Service::new(rules, limiter, options, Arc::new(Metrics::new())), clock))
}

fn ask_all<'p>(
    check: &Check,
    service: &Service<ManualClock>,
    clock: &ManualClock,
    loaded: &'p Loaded,
    request: &Request<'p>,
) -> Result<Vec<Asked<'p>>, Problems> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| Trouble::new(format!("no runtime: {error}"), "free some memory"))?;
    runtime.block_on(async {
        let mut asked = Vec::new();
        for at in check.at.iter().flat_map(|at| std::iter::repeat_n(*at, check.times as usize)) {
            clock.set(Time::EPOCH.after(at));
            let one = ask(at, service, loaded, request).await;
            asked.push(one.map_err(|error| Trouble::new(error.to_string(), mend(&error)))?);
        }
        Ok(asked)
    })
}

/// What helps against a question that was not judged.
fn mend(error: &ServiceError) -> &'static str {
    match error {
        ServiceError::TooLarge { .. } => "ask less, or raise `limits` in the settings file (--config)",
        _ => "name a domain of the rules with --domain, and what to count with --descriptor KEY=VALUE",
    }
}

async fn ask<'p>(
    at: Duration,
    service: &Service<ManualClock>,
    loaded: &'p Loaded,
    request: &Request<'p>,
) -> Result<Asked<'p>, ServiceError> {
    let plan = loaded.plan(service.limiter().keys(), request);
    let looks: Vec<Hit<'_>> = plan.hits.iter().map(|hit| Hit { op: Op::Look, ..*hit }).collect();
    let before = look(service, &looks).await?;
    let answer = service.decide(loaded, request, Grants::default()).await?;
    let after = look(service, &looks).await?;
    let mut limits = Vec::new();
    for (descriptor, planned) in plan.descriptors.iter().enumerate() {
        for (number, ((hit, limit), judged)) in planned.hits.iter().zip(answer.limits(descriptor)).enumerate() {
            let (before, after) = (before[*hit], after[*hit]);
            limits.push(AskedLimit { descriptor, number, limit, before, decision: *judged.decision, after });
        }
    }
    Ok(Asked { at, verdict: answer.verdict, limits })
}

/// The states as they are; reads each on its own, so that none is seen through another's question.
async fn look(service: &Service<ManualClock>, looks: &[Hit<'_>]) -> Result<SmallVec<[Decision; 4]>, ServiceError> {
    let mut seen = SmallVec::new();
    for hit in looks {
        let mut decision = [Decision::default()];
        service.limiter().decide(std::slice::from_ref(hit), &mut decision).await?;
        seen.extend(decision);
    }
    Ok(seen)
}
