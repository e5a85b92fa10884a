//! `spillgate check`: decides requests by rules and explains the decisions. It needs no server. The counts are either
//! in memory (with a virtual clock) or in a shared store. A question is a request together with the time at which it is
//! asked.
//!
//! The command uses the same service code as the server, so that both give the same answers.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize as _;
use spillgate::rules::{Action, Request};
use spillgate::{
    Algorithm, Clock, Decision, Hit, Limiter, ManualClock, MemoryOptions, MemoryStore, Op, StoreErrorKind, SystemClock,
    Time,
};
use spillgate_service::explain::{After, Explained, ExplainedLimit, Explanation, Pairs, decided, unknown_names};
use spillgate_service::metrics::Metrics;
use spillgate_service::shared_store::SharedStore;
use spillgate_service::{Backend, Client, Grants, Loaded, Service, ServiceError, ServiceOptions};

mod explain;

use crate::cli::{Check, Setting};
use crate::command::explained;
use crate::command::open::{rule_checks, rules, settings, store};
use crate::command::terminal::{EXIT_DENIED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Problems, Terminal, Tone};
use crate::runtime::block_on;
use crate::settings::{Settings, StoreUrl};

pub(super) fn run(check: &Check, terminal: &mut Terminal) -> u8 {
    let checked = settings(check).map_err(wrong).and_then(|settings| match settings.store.url {
        StoreUrl::Memory => on_own_clock(check, &settings, terminal),
        StoreUrl::Shared(_) => in_store(check, &settings, terminal),
    });
    checked.unwrap_or_else(|(problems, code)| {
        problems.print(check.json, terminal);
        code
    })
}

/// Why there is no answer, and the exit code.
type CheckError = (Problems, u8);

fn wrong(problems: Problems) -> CheckError {
    (problems, EXIT_USAGE)
}

fn settings(check: &Check) -> Result<Settings, Problems> {
    // With `--store memory`, the settings of a shared store in the file have no effect, so they are not a conflict.
    let is_memory = |(key, values): &Setting| key.path == "store.url" && values.iter().all(|value| value == "memory");
    let read = match check.flags.iter().any(is_memory) {
        true => settings::load_without_store,
        false => settings::load,
    };
    Ok(read(check.config.as_deref(), &check.rules, &check.flags)?.settings)
}

/// Asks a service in memory, on a virtual clock.
fn on_own_clock(check: &Check, settings: &Settings, terminal: &mut Terminal) -> Result<u8, CheckError> {
    if check.takes {
        let help = "name a shared store with --store, or with a settings file (--config)";
        return Err(wrong(Problem::new("--take is for a shared store, but this store is memory", help).into()));
    }
    let clock = ManualClock::at(Time::EPOCH);
    let store = Backend::Memory(MemoryStore::new(MemoryOptions::default()));
    let service = service(settings, Limiter::with_clock(store, clock.clone())).map_err(wrong)?;
    let set = |at: Duration| clock.set(Time::EPOCH.after(at));
    answer(check, &service, &set, None, terminal)
}

/// Asks the shared store, with its clock.
fn in_store(check: &Check, settings: &Settings, terminal: &mut Terminal) -> Result<u8, CheckError> {
    if check.sets_clock {
        let message = format!("--at sets a clock, but the store {} has its own clock", settings.store.url);
        let help = "remove --at, or use --store memory, whose clock can be set";
        return Err(wrong(Problem::new(message, help).into()));
    }
    let limiter = shared_limiter(settings).map_err(|problem| wrong(problem.into()))?;
    let service = service(settings, limiter).map_err(wrong)?;
    rule_checks::check_for_store(settings, &service.rules()).map_err(wrong)?;
    let in_turn = service.rules().domains().any(|domain| domain.compat_envoy && *domain.name == *check.domain);
    if in_turn && check.descriptors.len() > 1 && !check.takes {
        let message = format!(
            "the domain `{}` has compat: envoy: each descriptor is charged before the next one is asked. \
             This cannot be shown without charging",
            check.domain
        );
        return Err(wrong(Problem::new(message, "use --take, or ask one descriptor at a time").into()));
    }
    let code = answer(check, &service, &|_| {}, Some(settings), terminal)?;
    if settings.store.key_secret_file.is_none() {
        terminal.complain(store::NO_SECRET);
    }
    Ok(code)
}

/// Makes a limiter for a few questions. The store has more time to answer than on a server, because no client waits.
fn shared_limiter(settings: &Settings) -> Result<Limiter<Backend>, Problem> {
    let mut settings = settings.clone();
    settings.store.deny_cache = 0;
    settings.store.deadline = settings.store.deadline.max(store::ANSWER_TIMEOUT);
    let local = MemoryStore::new(MemoryOptions::default());
    let backend = store::backend(&settings, 1, local, NonZeroU32::MIN, None)?;
    Ok(Limiter::with_keys(backend, SystemClock::start(), store::key_hasher(&settings)?))
}

fn service<C: Clock>(settings: &Settings, limiter: Limiter<Backend, C>) -> Result<Service<C>, Problems> {
    let (rules, _) = rules::load(settings)?;
    let options = ServiceOptions::from(settings);
    Ok(Service::new(rules, limiter, options, Arc::new(Metrics::new())))
}

/// Asks the questions and prints the answers. `set` sets the virtual clock to a time since its start. `settings` is
/// `None` if the store is memory.
fn answer<C: Clock>(
    check: &Check,
    service: &Service<C>,
    set: &dyn Fn(Duration),
    settings: Option<&Settings>,
    terminal: &mut Terminal,
) -> Result<u8, CheckError> {
    let loaded = service.rules();
    let pairs: Pairs<'_> = check
        .descriptors
        .iter()
        .map(|entries| entries.0.iter().map(|(key, value)| (&**key, &**value)).collect())
        .collect();
    let max_wait_ns = u64::try_from(check.wait.as_nanos()).unwrap_or(u64::MAX);
    let describe = |cost| {
        let mut request = Request::new(&check.domain).with_max_wait_ns(max_wait_ns);
        for entries in &pairs {
            request.add(entries.iter().copied(), Action::Take(cost), None);
        }
        (cost, request)
    };
    if settings.is_some() {
        answerable(&loaded, check, &pairs).map_err(|problem| wrong(problem.into()))?;
    }
    let questions: Vec<(u64, Request<'_>)> = check.costs.iter().map(|cost| describe(*cost)).collect();
    // A request that is malformed or too large gets an error of its own.
    let is_valid = |(_, request): &(u64, Request<'_>)| service.plan(&loaded, request, Grants::default()).is_ok();
    if !check.allows_unmatched && questions.iter().all(is_valid) {
        explained::check_names(&unknown_names(&loaded, &check.domain, &pairs)).map_err(wrong)?;
    }
    let asked = ask_all(check, service, set, settings, &loaded, &questions)?;
    let regions =
        settings.map(|settings| settings.regions.peers.iter().map(|peer| peer.name.clone()).collect::<Vec<_>>());
    let explanation = Explanation {
        regions: &regions.unwrap_or_default(),
        shadow: false,
        domain: &check.domain,
        costs: &check.costs,
        store: settings.map(|settings| settings.store.url.to_string()),
        takes: settings.is_none() || check.takes,
        descriptors: &pairs,
        explained: &asked,
        value_bytes: service.options().bounds.value_bytes,
    };
    let json = explanation.json(&loaded);
    if check.json {
        terminal.json(&json);
    } else {
        let explained = explained::Explanation::deserialize(json).expect("invariant: it was written in this form");
        let text = explain::text(check, &loaded, &explained, terminal);
        terminal.print(&(store_line(check, settings.map(|it| &it.store.url), terminal) + &text));
    }
    Ok(if asked.iter().all(|asked| asked.verdict.allowed) { EXIT_OK } else { EXIT_DENIED })
}

/// Checks that the store can answer for the limits of the descriptors. The counts of a sketch are in the memory of each
/// server, and only servers tell other regions what was taken of a limit that regions share.
fn answerable(loaded: &Loaded, check: &Check, descriptors: &Pairs<'_>) -> Result<(), Problem> {
    let rules = descriptors.iter().filter_map(|entries| loaded.find(&check.domain, entries));
    for limit in rules.flat_map(|rule| &rule.limits) {
        let (why, help) = if limit.sketch.is_some() {
            let help =
                "ask a server with cost 0 (POST /v1/check), or leave out --store to try the rules without a store";
            ("this limit has a sketch in the memory of each server, so the store does not know it", help)
        } else if check.takes && limit.quota.is_shared() {
            let help = "send the request to a server (POST /v1/check), or leave out --take";
            ("regions share this limit, and only a server tells the others what was taken", help)
        } else {
            continue;
        };
        let at = limit.origin.as_ref().map(|origin| format!("{origin}: ")).unwrap_or_default();
        return Err(Problem::new(format!("{at}{why}"), help));
    }
    Ok(())
}

fn store_line(check: &Check, url: Option<&StoreUrl>, terminal: &Terminal) -> String {
    let Some(url) = url else { return String::new() };
    let what = if check.takes { "units are taken" } else { "read only, no units are taken (use --take to take)" };
    format!("store {}: {what}\n", terminal.paint(Tone::Title, &url.to_string()))
}

fn ask_all<'p, C: Clock>(
    check: &'p Check,
    service: &Service<C>,
    set: &dyn Fn(Duration),
    settings: Option<&Settings>,
    loaded: &'p Loaded,
    questions: &[(u64, Request<'p>)],
) -> Result<Vec<Explained<'p>>, CheckError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let no_runtime = |error| Problem::new(format!("the runtime cannot start: {error}"), "free some memory");
    let runtime = runtime.map_err(|error| wrong(no_runtime(error).into()))?;
    block_on(runtime, async {
        let mut unreached = None;
        if let (Some(shared), Some(settings)) = (service.limiter().store().shared(), settings)
            && let Err(failed) = shared.wait_connected().await
        {
            let problem = store::unreachable(settings, &failed);
            let health = shared.health();
            if health.is_down || health.nodes < 2 {
                return Err((problem.into(), EXIT_UNAVAILABLE));
            }
            // Only the nodes that have the keys of the questions have to answer.
            unreached = Some(problem);
        }
        let mut asked = Vec::new();
        let rounds = check.at.iter().flat_map(|at| std::iter::repeat_n(*at, check.times as usize));
        for (at, (cost, request)) in rounds.flat_map(|at| questions.iter().map(move |question| (at, question))) {
            set(at);
            let peeks_only = settings.is_some() && !check.takes;
            let question = Question { at, cost: *cost, request, peeks_only, releases: check.releases };
            asked.push(ask(service, loaded, &question).await.map_err(|error| match error {
                ServiceError::Store(ref failed) if settings.is_some() => {
                    // Without a connection or an answer, the question was for the node that was not reached.
                    let kind = failed.kind();
                    let of_node = unreached.take().filter(|_| kind.is_consequence() || kind.may_have_been_applied());
                    let undecided = || {
                        let help = "`spillgate doctor` finds faults of the store";
                        let why = service.limiter().store().shared().and_then(first_error);
                        let why = why.unwrap_or_else(|| error.to_string());
                        Problem::new(format!("the store did not decide: {why}"), help)
                    };
                    (of_node.unwrap_or_else(undecided).into(), EXIT_UNAVAILABLE)
                }
                error => wrong(Problem::new(error.to_string(), help_for(&error)).into()),
            })?);
        }
        Ok(asked)
    })
}

/// Returns the exact error of the store. The service returns only a general explanation.
fn first_error(shared: &dyn SharedStore) -> Option<String> {
    StoreErrorKind::ALL.iter().find_map(|&kind| shared.take_first_error(kind)).map(|error| error.to_string())
}

/// Returns how to fix a question that cannot be decided.
fn help_for(error: &ServiceError) -> &'static str {
    match error {
        ServiceError::TooLarge { .. } => "ask for less, or raise `limits` in the settings file (--config)",
        _ => "name a domain of the rules with --domain, and a descriptor with --descriptor KEY=VALUE",
    }
}

/// One question, and how to ask it.
struct Question<'q, 'p> {
    at: Duration,
    cost: u64,
    request: &'q Request<'p>,
    peeks_only: bool,
    releases: bool,
}

async fn ask<'p, C: Clock>(
    service: &Service<C>,
    loaded: &'p Loaded,
    question: &Question<'_, 'p>,
) -> Result<Explained<'p>, ServiceError> {
    let (request, at, cost) = (question.request, question.at, question.cost);
    if question.peeks_only {
        return Ok(Explained { at, ..service.explain(loaded, request, cost).await? });
    }
    let plan = service.plan(loaded, request, Grants::default())?;
    let before = service.peek_at(&plan).await?;
    let answer = service.decide(loaded, request, Client::default()).await?;
    decided(answer.verdict.source)?;
    let mut decisions = before.clone();
    for (descriptor, planned) in plan.descriptors.iter().enumerate() {
        for ((hit, _), decided) in planned.hits.iter().zip(answer.limits(descriptor)) {
            decisions[*hit] = *decided.decision;
        }
    }
    let after: Vec<_> = service.peek_at(&plan).await?.iter().map(After::from).collect();
    if question.releases {
        release(service, &plan.hits, &decisions).await?;
    }
    let limits = ExplainedLimit::of(&plan, &before, &decisions, &after, &service.told_at(&plan).await);
    Ok(Explained { at, cost, verdict: answer.verdict, blocked: false, limits })
}

/// Releases the permits that were taken by these decisions.
async fn release<C: Clock>(service: &Service<C>, hits: &[Hit<'_>], decisions: &[Decision]) -> Result<(), ServiceError> {
    let taken = hits.iter().zip(decisions).filter(|(hit, _)| hit.quota.algorithm() == Algorithm::Concurrency);
    for (hit, decision) in taken {
        if let (Op::Take { cost, .. }, receipt @ Some(_)) = (hit.op, decision.receipt) {
            service.decide_alone(&hit.with_op(Op::Refund { cost, receipt })).await?;
        }
    }
    Ok(())
}
