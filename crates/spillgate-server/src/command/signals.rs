//! Signals: SIGTERM and SIGINT drain, SIGHUP reads the rules again.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use spillgate::rules::Rules;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::UNSERVED;
use super::announce::Loaded;
use super::load::{self, Trouble};
use super::serve::no_resources;
use super::snapshot::Saver;
use super::store::check_served_rules;
use crate::listener::Handle;
use crate::service::{Readiness, Service};
use crate::settings::Settings;

/// Rules named in the log when a reload makes them count anew.
const NAMED_ANEW: usize = 10;

/// The signals that are followed; taken before anybody is told that the server is there.
pub(super) struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Signals> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hang_up = signal(SignalKind::hangup())?;
        drop(guard);
        Ok(Signals { runtime, terminate, interrupt, hang_up })
    }

    /// Drains at the first end, ends without it at the second, reloads at each hang-up.
    pub(super) fn follow(
        mut self,
        service: Arc<Service>,
        handle: Handle,
        saver: Arc<Saver>,
        settings: Settings,
    ) -> Result<(), Trouble> {
        let work = move || {
            self.runtime.block_on(async {
                let mut draining = false;
                loop {
                    tokio::select! {
                        Some(()) = self.terminate.recv() => {}
                        Some(()) = self.interrupt.recv() => {}
                        Some(()) = self.hang_up.recv() => {
                            reload_or_keep(&service, &settings);
                            continue;
                        }
                    }
                    if draining {
                        tracing::warn!("told to end again: requests in flight are cut");
                        saver.finish();
                        std::process::exit(UNSERVED.into());
                    }
                    draining = true;
                    tracing::info!("draining: no new connections, requests in flight are answered");
                    service.set_readiness(Readiness::Draining);
                    handle.drain();
                }
            });
        };
        let spawned = std::thread::Builder::new().name("signals".into()).spawn(work);
        spawned.map(drop).map_err(|error| no_resources(&error))
    }
}

/// Reads the rules again; whatever goes wrong, those in force stay.
fn reload_or_keep(service: &Service, settings: &Settings) {
    let reloaded = catch_unwind(AssertUnwindSafe(|| reload(service, settings)));
    if !reloaded.unwrap_or(false) {
        service.metrics().reload_failures.inc();
        tracing::error!("the rules were not reloaded; those loaded before stay in force");
    }
}

/// All files or none; says whether they are in force.
fn reload(service: &Service, settings: &Settings) -> bool {
    let loaded = load::rules(settings).and_then(|(rules, files)| {
        check_served_rules(settings, &rules)?;
        Ok((rules, files))
    });
    let (rules, files) = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => {
            for line in problems.lines() {
                tracing::error!("{line}");
            }
            return false;
        }
    };
    let anew = counting_anew(&service.rules(), &rules);
    for rule in anew.iter().take(NAMED_ANEW) {
        tracing::info!("the window or algorithm of {rule} changed: what was used before no longer counts");
    }
    if anew.len() > NAMED_ANEW {
        tracing::info!("the same holds for {} more rules", anew.len() - NAMED_ANEW);
    }
    let Loaded { domains, rules: count, warnings, .. } = Loaded::of(&rules, files);
    service.replace_rules(rules);
    tracing::info!(files, domains = domains.len(), rules = count, warnings, "rules reloaded");
    true
}

/// Rules that are in both loads and have a limit whose state the other load cannot find: a
/// changed limit or burst keeps its counts, a changed window or algorithm does not.
fn counting_anew(before: &Rules, after: &Rules) -> Vec<String> {
    let was: HashMap<(&str, &str), _> = before.rules().map(|rule| ((&*rule.domain, &*rule.path), rule)).collect();
    let changed = after.rules().filter(|rule| {
        let Some(old) = was.get(&(&*rule.domain, &*rule.path)) else { return false };
        let known = |identity| old.limits.iter().any(|limit| limit.quota.identity() == identity);
        !old.limits.is_empty() && rule.limits.iter().any(|limit| !known(limit.quota.identity()))
    });
    changed.map(|rule| format!("{}: {} ({})", rule.domain, rule.path, rule.origin)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillgate::rules::RulesFile;

    fn rules(limit: &str) -> Rules {
        let text = format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}, {{key: b}}]");
        Rules::parse(&[RulesFile { name: "d.yaml".to_owned(), text }]).expect("valid")
    }

    #[test]
    fn a_changed_window_or_algorithm_counts_anew_and_a_changed_limit_does_not() {
        let before = rules("window: 1m, limit: 5");
        assert_eq!(counting_anew(&before, &rules("window: 1m, limit: 50")), [""; 0]);
        assert_eq!(counting_anew(&before, &rules("window: 1h, limit: 5")), ["d: a (d.yaml:2)"]);
        assert_eq!(
            counting_anew(&before, &rules("window: 1m, limit: 5, algorithm: token_bucket")),
            ["d: a (d.yaml:2)"]
        );
    }
}
