//! The commands for operators. Each asks the admin listener of a running server, and prints its answer in the words of
//! the server's page.

mod answer;
mod blocks;
mod caller;
pub(super) mod client;
mod regions;
mod reload;
mod reloads;
mod reset;
pub(super) mod rule_name;
mod shadow;
mod tls;
mod top;

use serde_json::{Value, json};
use spillgate_service::operator::{LASTS_HELP, parse_lasts};

use super::explained::{Explanation, check_names, left};
use super::terminal::{EXIT_DENIED, EXIT_OK, EXIT_USAGE, Problem, Terminal};
use crate::cli::{Admin as Arguments, AdminAction, Entries, ExplainedRequest};
use answer::{Failure, Server, usage};
use blocks::NewBlock;

pub(super) fn run(arguments: &Arguments, terminal: &mut Terminal) -> u8 {
    let done = Server::new(arguments).and_then(|server| act(&server, &arguments.action, terminal));
    done.unwrap_or_else(|(problems, code)| {
        problems.print(arguments.json, terminal);
        code
    })
}

fn act(server: &Server, action: &AdminAction, terminal: &mut Terminal) -> Result<u8, Failure> {
    match action {
        AdminAction::Block { entry, lasts, domain, reason, allows_unmatched } => {
            let block = NewBlock { entry, lasts, domain, reason, allows_unmatched: *allows_unmatched };
            block.run(server, terminal)?;
        }
        AdminAction::Unblock { entry: (key, value), domain } => {
            blocks::unblock(server, (key, value), domain, terminal)?;
        }
        AdminAction::Blocks => {
            let answer = server.get("/blocks", terminal)?;
            server.list(&answer, terminal, blocks::list)?;
        }
        AdminAction::Shadow { rule, is_on, lasts, scope } => {
            shadow::run(server, rule, (*is_on, lasts, scope), terminal)?;
        }
        AdminAction::Shadows => {
            let answer = server.get("/shadows", terminal)?;
            server.list(&answer, terminal, shadow::list)?;
        }
        AdminAction::Reset { domain, descriptors } => {
            let body = json!({"domain": domain, "descriptors": pairs(descriptors)});
            let answer = server.post("/reset", &body, terminal)?;
            server.print(&answer, terminal, reset::lines)?;
        }
        AdminAction::Explain { request, cost, allows_unmatched } => {
            let body = match request {
                ExplainedRequest::Descriptors { domain, descriptors } => {
                    json!({"domain": domain, "descriptors": pairs(descriptors), "cost": cost}).to_string()
                }
                ExplainedRequest::Json(request) => request.clone(),
                ExplainedRequest::Hash(hash) => json!({"hash": hash, "cost": cost}).to_string(),
            };
            return explain(server, body, *allows_unmatched, terminal);
        }
        AdminAction::Caller { values, domain, allows_unmatched } => {
            return caller::run(server, (values, domain.as_deref()), *allows_unmatched, terminal);
        }
        AdminAction::Top { rule, domain } => {
            top::run(server, (rule.as_deref(), domain.as_deref()), terminal)?;
        }
        AdminAction::Reload => return reload::run(server, terminal),
        AdminAction::Reloads => {
            let answer = server.get("/reloads", terminal)?;
            server.list(&answer, terminal, reloads::text)?;
        }
        AdminAction::Regions(None) => {
            let answer = server.get("/regions", terminal)?;
            server.list(&answer, terminal, regions::list)?;
        }
        AdminAction::Regions(Some(action)) => regions::change(server, action, terminal)?,
    }
    Ok(EXIT_OK)
}

/// Adds the members that have a value.
fn add<const N: usize>(body: &mut Value, members: [(&str, &Option<String>); N]) {
    for (name, value) in members {
        if let Some(value) = value {
            body[name] = json!(value);
        }
    }
}

/// Checks the value of `--for` as the server does, whose error would call it as its JSON does.
fn check_lasts(lasts: &str) -> Result<(), Failure> {
    parse_lasts(lasts).map(drop).map_err(|why| usage(Problem::new(format!("--for is {why}"), LASTS_HELP)))
}

/// Returns descriptors in the form that keeps the order of their entries.
fn pairs(descriptors: &[Entries]) -> Vec<&[(String, String)]> {
    descriptors.iter().map(|Entries(entries)| &entries[..]).collect()
}

/// If the copy of the lists is older than this, the command says so. The page says it from the same age on.
const OLD_MS: u64 = 5_000;

/// Returns a line about a copy of the lists that may lack what is in the shared store.
fn copy_line(scope: &str, read_ms_ago: Option<u64>) -> String {
    match read_ms_ago {
        Some(age_ms) if age_ms > OLD_MS => format!("the shared store was last read {} ago\n", left(age_ms)),
        None if scope == "fleet" => {
            "the shared store was not read yet, so its blocks and switches are not known\n".to_owned()
        }
        _ => String::new(),
    }
}

fn explain(server: &Server, body: String, allows_unmatched: bool, terminal: &mut Terminal) -> Result<u8, Failure> {
    let answer = server.seek("/explain", body, terminal)?;
    let explanation: Explanation = server.parse(&answer)?;
    if !allows_unmatched {
        check_names(&explanation.unknown).map_err(|problems| (problems, EXIT_USAGE))?;
    }
    server.list(&answer, terminal, |explanation: &Explanation, terminal| {
        let (sentence, unknown) = (explanation.sentence(terminal), explanation.unknown_lines(terminal));
        let text = sentence + &unknown + &explanation.descriptors(terminal) + &explanation.known_lines();
        let is_decided = explanation.asked.iter().any(|asked| !asked.limits.is_empty());
        if is_decided { text + "\n" + &explanation.table(false, terminal) } else { text }
    })?;
    Ok(if explanation.asked.iter().all(|asked| asked.allowed) { EXIT_OK } else { EXIT_DENIED })
}
