//! `spillgate doctor`: finds faults of a shared store and says how to fix them.
//!
//! A store can work now and lose counts later, because of eviction, a failover or a missing right. The doctor shows
//! such faults before counts are lost. With `regions.peers`, it also examines the stores of the other regions. With a
//! settings file, it finds files whose changes the server cannot see, and a certificate or key with which it would not start.

mod files;
mod finding;
mod redis;
mod regions;
mod render;

use crate::cli::Doctor;
use crate::command::open::{listener_tls, settings};
use crate::command::terminal::{EXIT_DENIED, EXIT_OK, EXIT_USAGE, Problems, Terminal};
use crate::settings::{Settings, StoreUrl};
use finding::{Finding, Grade};

pub(super) fn run(doctor: &Doctor, terminal: &mut Terminal) -> u8 {
    match examined(doctor) {
        Ok((settings, findings)) => {
            render::print(doctor, &settings, &findings, terminal);
            if findings.iter().any(Finding::is_to_fix) { EXIT_DENIED } else { EXIT_OK }
        }
        Err((problems, code)) => {
            problems.print(doctor.json, terminal);
            code
        }
    }
}

fn examined(doctor: &Doctor) -> Result<(Settings, Vec<Finding>), (Problems, u8)> {
    let loaded = settings::load(doctor.config.as_deref(), &[], &doctor.flags);
    let settings = loaded.map_err(|problems| (problems, EXIT_USAGE))?.settings;
    let mut findings = files::examine(&settings, doctor.config.as_deref());
    if let Err(problem) = listener_tls::check_settings(&settings) {
        findings.push(Finding::new("tls", Grade::Fix, problem.to_string(), problem.help()));
    }
    let has_files = doctor.config.is_some() || !settings.files().is_empty();
    if settings.store.url == StoreUrl::Memory && has_files {
        // Nobody but the server can examine its memory. Its files are all that is left.
        if findings.is_empty() {
            findings.push(Finding::good("files", "no file is mounted alone, so the server sees every change"));
        }
    } else {
        findings.extend(redis::examine(&settings)?);
    }
    Ok((settings, findings))
}
