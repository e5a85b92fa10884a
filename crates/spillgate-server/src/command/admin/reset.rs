//! `spillgate reset`: sets the counters of a caller to zero.

use serde::Deserialize;
use spillgate::rules::LimitDescription;

use crate::command::terminal::count;

#[derive(Deserialize)]
pub(super) struct Reset {
    reset: usize,
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
    lines
}
