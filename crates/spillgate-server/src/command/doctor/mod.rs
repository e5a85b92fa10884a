//! `spillgate doctor`: finds faults of a shared store and says how to fix them.
//!
//! A store can work now and lose counts later, because of eviction, a failover or a missing right. The doctor shows
//! such faults before counts are lost.

mod findings;
mod render;

use spillgate::{Clock as _, SystemClock};
use spillgate_redis::doctor::{Report, examine};

use crate::cli::Doctor;
use crate::command::open::{redis, settings, store};
use crate::command::terminal::{EXIT_DENIED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Problems, Terminal};
use crate::settings::Settings;
use findings::Finding;

pub(super) fn run(doctor: &Doctor, terminal: &mut Terminal) -> u8 {
    match examined(doctor) {
        Ok((settings, report)) => {
            let findings = findings::of(&settings, &report);
            render::print(doctor, &settings, &findings, terminal);
            if findings.iter().any(Finding::is_to_fix) { EXIT_DENIED } else { EXIT_OK }
        }
        Err((problems, code)) => {
            problems.print(doctor.json, terminal);
            code
        }
    }
}

fn examined(doctor: &Doctor) -> Result<(Settings, Report), (Problems, u8)> {
    let wrong = |problems| (problems, EXIT_USAGE);
    let settings = settings::load(doctor.config.as_deref(), &[], &doctor.flags).map_err(wrong)?.settings;
    let mut reached = store::redis_settings(&settings, 1).map_err(|problem| wrong(problem.into()))?;
    // Errors of the settings are reported before the store is asked.
    store::redis_store_with(&settings, &reached).map_err(|problem| wrong(problem.into()))?;
    reached.timeout = store::ANSWER_TIMEOUT;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let no_runtime =
        |error| wrong(Problem::new(format!("the runtime cannot start: {error}"), "free some memory").into());
    let clock = SystemClock::start();
    let report = runtime.map_err(no_runtime)?.block_on(examine(&reached, &|| clock.now()));
    match report {
        Ok(report) => Ok((settings, report)),
        Err(failed) => {
            let failed = redis::explained(failed, store::is_secure(&settings));
            Err((store::unreachable(&settings, &failed).into(), EXIT_UNAVAILABLE))
        }
    }
}
