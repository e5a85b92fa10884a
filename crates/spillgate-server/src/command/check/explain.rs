//! Prints the answers of `spillgate check` as text: the domain, the explanation, and how many requests were allowed.

use spillgate_service::Loaded;

use crate::cli::Check;
use crate::command::explained::Explanation;
use crate::command::terminal::{Terminal, Tone};

/// Returns the explanation as text.
pub(super) fn text(check: &Check, rules: &Loaded, explanation: &Explanation, terminal: &Terminal) -> String {
    let mut text = explanation.unknown_lines(terminal);
    if let Some(domain) = rules.domains().find(|domain| *domain.name == *check.domain) {
        let compat = if domain.compat_envoy { ", compat: envoy" } else { "" };
        text.push_str(&format!("domain {} ({}{compat})\n", terminal.paint(Tone::Title, &check.domain), domain.file));
    }
    text.push_str(&explanation.descriptors(terminal));
    text.push('\n');
    text.push_str(&explanation.table(true, terminal));
    let refused = explanation.asked.iter().filter(|asked| !asked.allowed).count();
    let summary = match (explanation.asked.len(), refused) {
        (1, _) => String::new(),
        (all, 0) => format!("\nall {all} allowed\n"),
        (all, refused) => format!("\n{} of {all} allowed, {refused} refused\n", all - refused),
    };
    text + &summary
}
