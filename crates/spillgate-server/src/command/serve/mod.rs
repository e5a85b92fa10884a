//! `spillgate serve`: runs the server from its start to its end.
//!
//! The server checks everything before it serves the first request: settings, rules, secrets, the snapshot and all
//! addresses.

mod banner;
mod certificates;
mod history;
mod limiter;
mod log;
mod open_files;
mod operator_lists;
mod refusal_log;
mod regions;
mod reload;
mod rule_changes;
mod rule_differences;
mod signals;
mod snapshot;
mod snapshot_file;
mod store_health;
mod store_memory;
mod store_transitions;
mod sweep;
mod warnings;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use spillgate::rules::Rules;

use crate::cli::Serve;
use crate::command::open::{forward_auth, rule_checks, rules, secret_file, settings};
use crate::command::terminal::{EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Problems, Terminal, print_beside};
use crate::listener::{self, App, Listen, Server, Tls};
use crate::settings::{Settings, StoreUrl};
use banner::Loaded;
use certificates::Certificates;
use regions::OtherRegions;
use reload::{RulesSeen, Started};
use signals::{Ending, HangUps, Signals};
use snapshot::Saver;
use snapshot_file::{LockedFile, SnapshotFile};
use spillgate_admin::{Access, AdminState};
use spillgate_grpc::Grpc;
use spillgate_http::{HttpOptions, HttpState};
use spillgate_service::metrics::Metrics;
use spillgate_service::reload_requests::{ReloadRequests, reload_requests};
use spillgate_service::reloads::ReloadHistory;
use spillgate_service::{Service, ServiceOptions};

/// The target of the log lines about the start and the end.
const TARGET: &str = module_path!();

/// How long the server waits at its end for the last snapshot. A store of 10 GB needs less on an ordinary disk. Without a
/// bound, a disk that does not answer would keep the server for ever.
const LAST_SNAPSHOT_WITHIN: Duration = Duration::from_secs(60);

/// Why the server does not start.
enum Failure {
    /// The command line, a setting or a rule is wrong.
    Usage(Problems),
    /// A resource of the system is not available.
    Unavailable(Problems),
}

pub(super) fn run(serve: &Serve, terminal: &mut Terminal) -> u8 {
    let (problems, code) = match start(serve, terminal) {
        Ok(code) => return code,
        Err(Failure::Usage(problems)) => (problems, EXIT_USAGE),
        Err(Failure::Unavailable(problems)) => (problems, EXIT_UNAVAILABLE),
    };
    problems.print(serve.json, terminal);
    code
}

fn start(serve: &Serve, terminal: &mut Terminal) -> Result<u8, Failure> {
    let hang_ups = HangUps::new().map_err(|error| unavailable(Problem::no_resources(&error)))?;
    let resolved = settings::load(serve.config.as_deref(), &serve.rules, &serve.flags).map_err(Failure::Usage)?;
    if serve.show_settings {
        banner::settings(&resolved, serve.json, terminal);
        return Ok(EXIT_OK);
    }
    let settings = resolved.settings.clone();
    let files = rules::files(&settings.rules).map_err(Failure::Usage)?;
    let rules = rules::parse(&settings, &files).map_err(Failure::Usage)?;
    let access = secret_file::admin_access(&settings).map_err(|problem| Failure::Usage(problem.into()))?;
    let metrics = Arc::new(Metrics::with_rule_values(settings.limits.metric_values));
    let log = log::start(&settings, terminal.err_colour(), &metrics);
    let _written_at_the_end = log.map_err(|error| unavailable(Problem::no_resources(&error)))?;
    let certificates = Certificates::open(&settings, &metrics).map_err(|problem| Failure::Usage(problem.into()))?;
    let open_http = warnings::of_http(settings.http.as_ref(), &settings.browsers.hosts);
    // A listener that wants certificates is not open to everyone.
    let open_http = open_http.filter(|_| !settings.wants_certificates("http"));
    for warning in
        warnings::of_access(settings.admin.as_ref(), &settings.admin_hosts, &access).into_iter().chain(open_http)
    {
        tracing::warn!("{warning}");
    }
    let clients = listener::Limits { connections: open_files::allow(&settings), ..settings.limits.clients };
    let (loaded, rules_seen) = (Loaded::of(&rules, files.len()), RulesSeen::of(files));
    let file = snapshot_file(serve, &settings)?;
    let regions = regions::start(&settings).map_err(|problem| Failure::Usage(problem.into()))?;
    let service = service(&settings, rules, (file.as_ref(), regions.as_ref()), metrics).map_err(Failure::Usage)?;
    let first_answer = store_health::start(&service).map_err(|error| unavailable(Problem::no_resources(&error)))?;
    operator_lists::start(&service, settings.store.deadline)
        .map_err(|error| unavailable(Problem::no_resources(&error)))?;
    first_answer.wait();
    let mut server = Server::new(clients, settings.workers, Arc::clone(service.metrics()));
    let (history, (reloads, queue)) = (ReloadHistory::default(), reload_requests());
    let tls = certificates.as_ref().map(Certificates::tls);
    let listening =
        bind(&settings, &service, (access.clone(), &history, &reloads), (&mut server, tls)).map_err(unavailable)?;
    let signals = Signals::new(hang_ups).map_err(|error| unavailable(Problem::no_resources(&error)))?;
    let running = server.start().map_err(|error| unavailable(Problem::no_resources(&error)))?;
    let saver = Saver::start(file, settings.memory.snapshot.interval, &service);
    let saver = Arc::new(saver.map_err(|error| unavailable(Problem::no_resources(&error)))?);
    if let Some(certificates) = &certificates {
        certificates.follow_ends().map_err(|error| unavailable(Problem::no_resources(&error)))?;
    }
    let started = Started { service: &service, access: &access, serve, resolved, rules: rules_seen, certificates };
    reload::start(started, (reloads.clone(), queue), history)
        .map_err(|error| unavailable(Problem::no_resources(&error)))?;
    let ending = Ending { delay: settings.limits.drain_delay, handle: running.handle(), saver: Arc::clone(&saver) };
    signals.follow(Arc::clone(&service), ending, reloads).map_err(unavailable)?;
    refusal_log::start(&service).map_err(|error| unavailable(Problem::no_resources(&error)))?;
    sweep::start(&service).map_err(|error| unavailable(Problem::no_resources(&error)))?;
    if settings.admin.is_some() {
        history::start(&service).map_err(|error| unavailable(Problem::no_resources(&error)))?;
    }
    let ready = banner::ready(&settings, &listening, &loaded, serve.json, terminal);
    print_beside(ready).map_err(|error| unavailable(Problem::no_resources(&error)))?;
    let ended = running.wait();
    // No request is served any more, so the last snapshot has all counts.
    let kept = saver.finish(LAST_SNAPSHOT_WITHIN);
    if let Some(regions) = &regions {
        regions.drain();
    }
    service.rules().log_refusals();
    match ended {
        Ok(drained) if drained.connections_cut > 0 => {
            tracing::warn!(connections = drained.connections_cut, "the time to drain is over; connections were cut");
        }
        Ok(_) => tracing::info!("drained"),
        Err(died) => {
            // The server does not continue without one of its threads. The process ends, so that its supervisor
            // restarts it.
            tracing::error!("{died}");
            return Ok(EXIT_UNAVAILABLE);
        }
    }
    Ok(if kept { EXIT_OK } else { EXIT_UNAVAILABLE })
}

fn unavailable(problem: Problem) -> Failure {
    Failure::Unavailable(problem.into())
}

/// Finds and locks the snapshot file.
fn snapshot_file(serve: &Serve, settings: &Settings) -> Result<Option<LockedFile>, Failure> {
    let Some(path) = &settings.memory.snapshot.path else { return Ok(None) };
    let read = settings.files().into_iter().chain(&serve.config);
    let file = SnapshotFile::find(path, read).map_err(|problem| Failure::Usage(problem.into()))?;
    file.lock().map(Some).map_err(unavailable)
}

fn service(
    settings: &Settings,
    mut rules: Rules,
    (file, regions): (Option<&LockedFile>, Option<&OtherRegions>),
    metrics: Arc<Metrics>,
) -> Result<Arc<Service>, Problems> {
    let limiter = limiter::open(settings, file, regions)?;
    rule_checks::check_for_server(settings, &rules)?;
    for note in rule_checks::notes(settings, &rules) {
        tracing::info!("{note}");
    }
    for (message, help) in forward_auth::avoidable_limits(settings, &rules) {
        tracing::warn!("{message} ({help})");
    }
    rules::open_sketches(settings, None, &mut rules, limiter.store().memory())?;
    let service = Service::new(rules, limiter, ServiceOptions::from(settings), metrics);
    Ok(Arc::new(match limiter::lists(settings)? {
        Some(lists) => service.with_shared_lists(lists),
        None => service,
    }))
}

/// Binds all listeners. Returns their names and addresses.
fn bind(
    settings: &Settings,
    service: &Arc<Service>,
    (access, history, reloads): (Access, &ReloadHistory, &ReloadRequests),
    (server, tls): (&mut Server, Option<&Arc<Tls>>),
) -> Result<Vec<(&'static str, Listen)>, Problem> {
    let unbuilt = |error: &dyn std::fmt::Display| Problem::new(error.to_string(), "correct the settings");
    let mut listening = Vec::new();
    let mut open = |name, listen: &Listen, app| -> Result<(), Problem> {
        let bound = match tls.filter(|_| settings.has_tls(name)) {
            Some(tls) => server.bind_tls(listen, app, tls, settings.wants_certificates(name)),
            None => server.bind(listen, app),
        };
        let address = bound.map_err(|error| unbound(name, listen, &error))?;
        listening.push((name, address));
        Ok(())
    };
    if let Some(listen) = &settings.http {
        let state = HttpState::new(Arc::clone(service), HttpOptions::from(settings)).map_err(|e| unbuilt(&e))?;
        open("http", listen, App::Http(state))?;
    }
    if let Some(listen) = &settings.grpc {
        let grpc = Grpc::new(Arc::clone(service), settings.allow.grpc, settings.limits.body);
        open("grpc", listen, App::Grpc(grpc.map_err(|e| unbuilt(&e))?))?;
    }
    if let Some(listen) = &settings.admin {
        let state = AdminState::new(Arc::clone(service), access).with_reloads(history.clone(), reloads.clone());
        let state = state.with_lost_lines(log::lost_by_this_thread);
        let store = (settings.store.url != StoreUrl::Memory).then(|| settings.store.url.to_string());
        open("admin", listen, App::Admin(spillgate_admin::router(state.with_store(store))))?;
    }
    if let Some(listen) = &settings.health {
        open("health", listen, App::Health(spillgate_admin::health_router(Arc::clone(service))))?;
    }
    Ok(listening)
}

/// Returns the error for a listener that cannot be bound, with help for the cause.
fn unbound(name: &str, listen: &Listen, error: &io::Error) -> Problem {
    let choose = format!("choose another with --{name}");
    let (why, help) = match (error.kind(), listen) {
        (ErrorKind::AddrInUse, Listen::Tcp(address)) => {
            let port = address.port();
            (
                "the address is in use".to_owned(),
                format!("stop the program that listens there (`ss -ltnp sport = :{port}` shows it), or {choose}"),
            )
        }
        (ErrorKind::AddrInUse, Listen::Unix(_)) => {
            ("another process listens there".to_owned(), format!("stop it, or {choose}"))
        }
        (ErrorKind::AddrNotAvailable, _) => {
            let help = format!("use 0.0.0.0 to listen on every address, or {choose}");
            ("this machine has no such address".to_owned(), help)
        }
        (ErrorKind::PermissionDenied, Listen::Tcp(_)) => {
            let help = format!("grant CAP_NET_BIND_SERVICE for ports below 1024, or {choose}");
            ("no permission".to_owned(), help)
        }
        (ErrorKind::PermissionDenied, Listen::Unix(_)) => {
            ("no permission".to_owned(), format!("make the folder writable for this user, or {choose}"))
        }
        (ErrorKind::NotFound, Listen::Unix(_)) => {
            ("its folder does not exist".to_owned(), format!("create the folder, or {choose}"))
        }
        (ErrorKind::AlreadyExists, Listen::Unix(_)) => {
            ("a file that is not a socket exists there".to_owned(), format!("move the file away, or {choose}"))
        }
        _ => (error.to_string(), choose),
    };
    Problem::new(format!("{name} cannot listen on {listen}: {why}"), help)
}
