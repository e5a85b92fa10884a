//! Prints an explanation as text: how each descriptor found its rule, and what each limit decided.
//!
//! `spillgate check` prints its own explanations, and `spillgate explain` those of a server. Both read the same JSON,
//! so both say the same. The JSON of a server came over the network, so its texts are cleaned.

use std::time::Duration;

use serde::Deserialize;
use spillgate::rules::LimitDescription;
use spillgate::{Binding, Reason};
use spillgate_service::explain::{KnownRules, UnknownName};

use super::terminal::{Problem, Problems, Table, Terminal, Tone, clean, count, date_time, duration, thousands};

#[derive(Deserialize)]
pub(super) struct Explanation {
    pub(super) costs: Vec<u64>,
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) unknown: Vec<UnknownName>,
    known: KnownRules,
    pub(super) asked: Vec<Asked>,
}

#[derive(Deserialize)]
pub(super) struct Descriptor {
    entries: Vec<(String, String)>,
    steps: Vec<Step>,
    steps_left_out: usize,
    pub(super) matched: Option<Matched>,
    pub(super) block: Option<Block>,
}

#[derive(Deserialize)]
struct Step {
    level: usize,
    key: String,
    value: String,
    how: String,
    pattern: Option<String>,
    outcome: String,
    file: Option<String>,
    line: Option<u32>,
}

#[derive(Deserialize)]
pub(super) struct Matched {
    pub(super) rule: String,
    file: String,
    line: u32,
    unlimited: bool,
    shadow_mode: bool,
    quota_mode: bool,
    shadow_switches: Vec<Switch>,
    limits: Vec<MatchedLimit>,
}

#[derive(Deserialize)]
struct MatchedLimit {
    #[serde(flatten)]
    limit: LimitDescription,
    replaced: bool,
}

#[derive(Deserialize)]
struct Switch {
    scope: String,
    ends_in_ms: u64,
}

#[derive(Deserialize)]
pub(super) struct Block {
    key: String,
    value: String,
    domain: Option<String>,
    ends_in_ms: u64,
    reason: Option<String>,
}

/// One request, and what the limits decided.
#[derive(Deserialize)]
pub(super) struct Asked {
    cost: u64,
    at_ns: u64,
    pub(super) allowed: bool,
    retry_after_ns: Option<u64>,
    pub(super) limits: Vec<AskedLimit>,
}

#[derive(Deserialize)]
pub(super) struct AskedLimit {
    descriptor: usize,
    index: Option<usize>,
    label: String,
    binding: String,
    allowed: bool,
    reason: String,
    soft_over: bool,
    capacity: u64,
    before: State,
    after: State,
    retry_after_ns: Option<u64>,
    delay_ns: u64,
    told: Option<Told>,
}

/// What other regions have told of a limit that they share.
#[derive(Deserialize)]
struct Told {
    span_start_ms: u64,
    by: Vec<ToldBy>,
}

#[derive(Deserialize)]
struct ToldBy {
    region: Option<String>,
    units: u64,
}

#[derive(Deserialize)]
struct State {
    remaining: u64,
    reset_after_ns: Option<u64>,
}

/// Deeper levels are not indented further. No rule is that deep, but a number from the network can be any number.
const LEVELS: usize = 64;

/// Fails if a request has a name that no rule has.
pub(super) fn check_names(unknown: &[UnknownName]) -> Result<(), Problems> {
    let problem = |name: &UnknownName| {
        let help = format!("{} (or accept it with --allow-unmatched)", clean(&name.help));
        Problem::new(name.message.clone(), help)
    };
    Problems::check(unknown.iter().map(problem).collect())
}

impl Explanation {
    /// Returns the names that no rule has, each on a line. Without `--allow-unmatched`, they are errors.
    pub(super) fn unknown_lines(&self, terminal: &Terminal) -> String {
        let line = |name: &UnknownName| format!("{}: {}", clean(&name.message), clean(&name.help));
        self.unknown.iter().map(|name| terminal.paint(Tone::Warn, &line(name)) + "\n").collect()
    }

    /// Returns what to do if a descriptor matches no rule: the paths of the rules, and how to find all limits of a caller.
    pub(super) fn known_lines(&self) -> String {
        let KnownRules { paths, left_out } = &self.known;
        if paths.is_empty() {
            return String::new();
        }
        let paths: Vec<_> = paths.iter().map(|path| clean(path)).collect();
        let more = if *left_out > 0 { format!(", and {left_out} more") } else { String::new() };
        format!(
            "\nthe rules with limits of this domain have the keys, in this order: {}{more}\n\
             `spillgate explain --caller KEY=VALUE` finds all limits of a caller\n",
            paths.join("; ")
        )
    }

    /// Returns the descriptors, each with the search for its rule.
    pub(super) fn descriptors(&self, terminal: &Terminal) -> String {
        let mut text = String::new();
        for (number, descriptor) in self.descriptors.iter().enumerate() {
            text.push('\n');
            self.descriptor(&mut text, number, descriptor, terminal);
        }
        text
    }

    fn descriptor(&self, text: &mut String, number: usize, descriptor: &Descriptor, terminal: &Terminal) {
        let shown: Vec<_> = descriptor.entries.iter().map(|(key, value)| clean(&format!("{key}={value}"))).collect();
        text.push_str(&format!("descriptor {}: {}\n", number + 1, terminal.paint(Tone::Title, &shown.join(", "))));
        let mut table = Table::new(2);
        for step in &descriptor.steps {
            let origin = step.file.as_ref().zip(step.line).map(|(file, line)| format!("{file}:{line}"));
            table.row([
                (
                    Tone::Plain,
                    format!(
                        "{}{}",
                        "  ".repeat(step.level.min(LEVELS)),
                        clean(&format!("{}={}", step.key, step.value))
                    ),
                ),
                (Tone::Plain, clean(&step.how())),
                (Tone::Plain, step.outcome().to_owned()),
                (Tone::Faint, clean(&origin.unwrap_or_default())),
            ]);
        }
        text.push_str(&table.text(false, terminal));
        if descriptor.steps_left_out > 0 {
            text.push_str(&format!("  and {}\n", count(descriptor.steps_left_out, "more step")));
        }
        if let Some(block) = &descriptor.block {
            text.push_str(&format!("  {}\n", terminal.paint(Tone::Bad, &block.text())));
        }
        // A block on any descriptor refuses the whole request, so no limit of it is asked.
        let is_blocked = self.descriptors.iter().any(|descriptor| descriptor.block.is_some());
        let Some(rule) = &descriptor.matched else {
            let is_denied = |limit: &AskedLimit| limit.descriptor == number && limit.index.is_none();
            let denied = self.asked.iter().any(|asked| asked.limits.iter().any(is_denied));
            let outcome = if denied { "refused (unmatched: deny)" } else { "allowed and not counted" };
            if !is_blocked {
                text.push_str(&format!("  no rule matches: {outcome}\n"));
            }
            return;
        };
        let place = clean(&format!("{}:{}", rule.file, rule.line));
        text.push_str(&format!(
            "  rule {} at {place}{}\n",
            terminal.paint(Tone::Title, &clean(&rule.rule)),
            rule.modes()
        ));
        if rule.unlimited {
            text.push_str("    unlimited: allowed and not counted\n");
        } else if rule.limits.is_empty() {
            text.push_str("    without a limit: allowed and not counted\n");
        }
        for MatchedLimit { limit, replaced } in &rule.limits {
            let left_out = match (is_blocked, replaced) {
                (true, _) => "; not asked: a block refuses the request",
                (false, true) => "; left out: another rule of this request replaces it",
                (false, false) => "",
            };
            let name = limit.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
            text.push_str(&format!("    limit{}: {}{left_out}\n", clean(&name), clean(&limit.summary())));
        }
        for switch in &rule.shadow_switches {
            let (scope, left) = (scope_words(&switch.scope), left(switch.ends_in_ms));
            text.push_str(&format!("    in shadow {scope}, for {left}: it counts, but refuses nothing\n"));
        }
    }

    /// Returns the table of what each limit decided. `shows_time` says whether the requests have times.
    pub(super) fn table(&self, shows_time: bool, terminal: &Terminal) -> String {
        let (several, costs) = (self.descriptors.len() > 1, self.costs.len() > 1);
        let mut table = Table::new(0);
        let titles = ["at", "answer", "limit", "says", "left", "retry after", "reset after", "delay"];
        table.row(titles.map(|title| (Tone::Faint, title.to_owned())));
        for asked in &self.asked {
            let (tone, answer) = if asked.allowed { (Tone::Good, "allowed") } else { (Tone::Bad, "refused") };
            let when = match (shows_time, costs) {
                (false, _) => String::new(),
                (true, true) => format!("{}, cost {}", nanos(asked.at_ns), asked.cost),
                (true, false) => nanos(asked.at_ns),
            };
            let head = [(Tone::Plain, when), (tone, answer.to_owned())];
            let blank = [const { (Tone::Plain, String::new()) }; 2];
            if asked.limits.is_empty() {
                table.row(head.clone());
            }
            for (row, limit) in asked.limits.iter().enumerate() {
                let head = if row == 0 { head.clone() } else { blank.clone() };
                table.row(head.into_iter().chain(limit.cells(several)));
            }
        }
        table.text(true, terminal) + &self.told_lines()
    }

    /// Returns how many units other regions have charged, a line for each limit that they share.
    fn told_lines(&self) -> String {
        let mut text = String::new();
        for limit in self.asked.last().into_iter().flat_map(|asked| &asked.limits) {
            let Some(Told { span_start_ms, by }) = &limit.told else { continue };
            let one = |ToldBy { region, units }: &ToldBy| {
                format!(
                    "{} by {}",
                    thousands(*units),
                    region.as_deref().unwrap_or("a region that is not in regions.peers")
                )
            };
            let by =
                if by.is_empty() { "nothing".to_owned() } else { by.iter().map(one).collect::<Vec<_>>().join(", ") };
            let since = date_time(span_start_ms.saturating_mul(1_000_000));
            let line = format!("{}: charged by other regions since {since} UTC: {by}", limit.label);
            text.push_str(&format!("\n{}\n", clean(&line)));
        }
        text
    }

    /// Returns the answer to the first request in one sentence, as the page of the server says it.
    pub(super) fn sentence(&self, terminal: &Terminal) -> String {
        let Some(asked) = self.asked.first() else { return String::new() };
        let blocks = self.descriptors.iter().filter_map(|descriptor| descriptor.block.as_ref());
        if let Some(block) = blocks.max_by_key(|block| block.ends_in_ms) {
            return terminal.paint(Tone::Bad, "Refused now by a block")
                + &format!(", for {}\n", left(block.ends_in_ms));
        }
        if asked.limits.is_empty() && self.descriptors.iter().all(|descriptor| descriptor.matched.is_none()) {
            let passes = "No limit and no block matches this request, so it passes";
            return terminal.paint(Tone::Warn, passes) + "\n";
        }
        if asked.allowed {
            let limits = if asked.limits.is_empty() { ": its rules have no limit" } else { "" };
            return terminal.paint(Tone::Good, "Allowed now") + limits + "\n";
        }
        // A limit in shadow refuses nothing. Of the others, the one with the longest wait says when to ask again.
        let refusing = asked.limits.iter().filter(|limit| limit.refuses()).max_by_key(|limit| {
            // A request that never fits has no wait.
            (limit.retry_after_ns.is_none(), limit.retry_after_ns)
        });
        let by = refusing.map(|limit| {
            let rule = self.descriptors.get(limit.descriptor).and_then(|descriptor| descriptor.matched.as_ref());
            let rule = rule.map(|rule| format!(" ({})", rule.rule)).unwrap_or_default();
            clean(&format!(" by {}{rule}", limit.label))
        });
        let again = asked.retry_after_ns.map(|ns| format!(". Ask again in {}", nanos(ns)));
        terminal.paint(Tone::Bad, "Refused now") + &by.unwrap_or_default() + &again.unwrap_or_default() + "\n"
    }
}

impl Step {
    fn how(&self) -> String {
        match (&*self.how, &self.pattern) {
            ("exact", _) => "this key and value".to_owned(),
            ("wildcard", Some(pattern)) => format!("wildcard {pattern}"),
            ("key", _) => "the key, any value".to_owned(),
            ("nothing", _) => "nothing fits".to_owned(),
            (other, _) => other.to_owned(),
        }
    }

    fn outcome(&self) -> &'static str {
        match &*self.outcome {
            "went_deeper" => "goes on below",
            "went_back" => "nothing below matches: goes back",
            "matched" => "matched",
            _ if self.how != "nothing" => "the rule ends here, the descriptor goes on",
            _ => "no rule",
        }
    }
}

impl Matched {
    fn modes(&self) -> String {
        let modes = [(self.shadow_mode, "shadow: never refuses"), (self.quota_mode, "quota mode")];
        modes.iter().filter(|(on, _)| *on).map(|(_, mode)| format!(", {mode}")).collect()
    }
}

impl Block {
    pub(super) fn text(&self) -> String {
        let Block { key, value, domain, ends_in_ms, reason } = self;
        let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        clean(&format!("{key}={value} is blocked {} for {}{reason}", where_words(domain.as_deref()), left(*ends_in_ms)))
    }
}

impl AskedLimit {
    /// Returns whether the limit refuses the request.
    fn refuses(&self) -> bool {
        !self.allowed && self.binding == Binding::Enforce.as_str() && self.reason != Reason::NotAsked.as_str()
    }

    fn cells(&self, several: bool) -> [(Tone, String); 6] {
        let label = if several { format!("{}: {}", self.descriptor + 1, self.label) } else { self.label.clone() };
        let (tone, says) = self.says();
        let retry_after = match self.retry_after_ns {
            _ if self.allowed => "-".to_owned(),
            Some(ns) => nanos(ns),
            None if self.reason == Reason::CostAboveCapacity.as_str() => "never".to_owned(),
            None => "unknown".to_owned(),
        };
        [
            (Tone::Plain, clean(&label)),
            (tone, says),
            (Tone::Plain, format!("{} -> {} of {}", self.before.remaining, self.after.remaining, self.capacity)),
            (Tone::Plain, retry_after),
            (Tone::Plain, self.after.reset_after_ns.map_or_else(|| "-".to_owned(), nanos)),
            (Tone::Plain, if self.delay_ns == 0 { "-".to_owned() } else { nanos(self.delay_ns) }),
        ]
    }

    fn says(&self) -> (Tone, String) {
        let (tone, says) = match &*self.reason {
            _ if self.soft_over => (Tone::Warn, "yes, over the soft limit"),
            _ if self.allowed && self.delay_ns > 0 => (Tone::Good, "yes, after the delay"),
            _ if self.allowed => (Tone::Good, "yes"),
            "cost_above_capacity" if self.capacity == 0 => (Tone::Bad, "never: the limit is 0"),
            "cost_above_capacity" => (Tone::Bad, "never: the cost is above the capacity"),
            "penalty" => (Tone::Bad, "no: penalty"),
            "wait_too_long" => (Tone::Bad, "no: longer than the caller accepts"),
            "store_full" => (Tone::Bad, "no: the store is full"),
            "lease_expired" => (Tone::Bad, "no: the lease has expired"),
            "unsupported" => (Tone::Bad, "no: this algorithm does not support the operation"),
            "store_failed" => (Tone::Bad, "no: the store failed"),
            "exceeded" | "fits" | "not_asked" => (Tone::Bad, "no: used up"),
            _ => (Tone::Bad, "no"),
        };
        (tone, says.to_owned())
    }
}

pub(super) fn nanos(ns: u64) -> String {
    duration(Duration::from_nanos(ns))
}

/// Returns how long something still lasts, in whole seconds, rounded up.
pub(super) fn left(ms: u64) -> String {
    duration(Duration::from_secs(ms.div_ceil(1000)))
}

pub(super) fn where_words(domain: Option<&str>) -> String {
    domain.map_or_else(|| "in all domains".to_owned(), |domain| format!("in the domain {domain}"))
}

pub(super) fn scope_words(scope: &str) -> &'static str {
    if scope == "fleet" { "on all servers of the fleet" } else { "on this server only" }
}

#[cfg(test)]
mod tests {
    use spillgate::rules::How;

    use super::*;

    #[test]
    fn a_step_says_how_it_matched_as_the_library_does() {
        for how in [How::Exact, How::Wildcard("/a*".into()), How::KeyAlone, How::Nothing] {
            let step = Step {
                level: 0,
                key: String::new(),
                value: String::new(),
                how: how.as_str().to_owned(),
                pattern: how.pattern().map(str::to_owned),
                outcome: String::new(),
                file: None,
                line: None,
            };
            assert_eq!(step.how(), how.to_string());
        }
    }

    #[test]
    fn the_time_that_is_left_is_rounded_up() {
        assert_eq!([0, 1, 1_000, 1_001, 599_400].map(left), ["0s", "1s", "1s", "2s", "10m"]);
    }
}
