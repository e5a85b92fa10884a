//! `spillgate reset`: sets the counters of a caller to zero.

use serde::Deserialize;
use spillgate::rules::LimitDescription;

use crate::command::terminal::count;

#[derive(Deserialize)]
pub(super) struct Reset {
    reset: usize,
    #[serde(default)]
    reset_also_in: Vec<String>,
    limits: Vec<Limit>,
    limits_left_out: usize,
}

#[derive(Deserialize)]
struct Limit {
    limit: LimitDescription,
    shared: bool,
}

/// Says which limits were reset. A value can belong to other limits than those that the operator has in mind.
pub(super) fn lines(reset: &Reset) -> Vec<String> {
    let mut lines = vec![format!("all units are there again: {}", count(reset.reset, "limit"))];
    for Limit { limit, shared } in &reset.limits {
        let shared = if *shared { " (all callers share this counter)" } else { "" };
        lines.push(format!("  {}{shared}", limit.full_name()));
    }
    if reset.limits_left_out > 0 {
        lines.push(format!("  and {}", count(reset.limits_left_out, "more limit")));
    }
    if !reset.reset_also_in.is_empty() {
        lines.push(format!("Other regions share it: repeat the reset in {}", reset.reset_also_in.join(", ")));
    }
    lines
}
