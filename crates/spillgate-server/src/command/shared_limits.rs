//! What all regions together admit of the limits that they share, in five lines for each limit.
//!
//! A limit that is shared is exact only while nobody asks elsewhere. So whoever writes one sees how much more that can be.

use std::num::NonZeroU32;
use std::time::Duration;

use spillgate::regions::Peers;
use spillgate::rules::{LimitDescription, Rules, limit_size};
use spillgate::text::thousands;
use spillgate::units::format_duration;
use spillgate::{AcrossRegions, Algorithm, Quota, Regions};

use super::terminal::{Table, Terminal, Tone};
use crate::settings::Settings;

/// When units are sent, another region usually knows them after this time. A round trip around the world takes 300 ms.
const DELAY: Duration = Duration::from_millis(400);

/// A limit that regions share: its description, and four lines, each with a title.
pub(super) struct SharedLimit {
    pub(super) name: String,
    pub(super) lines: [(&'static str, String); 4],
}

/// The names of the four lines in JSON. Their titles depend on the algorithm.
pub(super) const NAMES: [&str; 4] = ["at_once", "each_region", "long_run", "cut_off"];

/// Returns the limits that regions share, in the order of the rules.
pub(super) fn of(settings: &Settings, rules: &Rules) -> Vec<SharedLimit> {
    let nodes = settings.store.expected_nodes.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    let others = settings.regions.peers.iter().map(|peer| &*peer.name);
    let names: Vec<&str> = settings.regions.name.as_deref().into_iter().chain(others).collect();
    let limits = rules.rules().flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)));
    let shared = limits.filter_map(|(rule, limit)| {
        let AcrossRegions::Shared(regions) = limit.quota.across_regions() else { return None };
        // A limit of 0 refuses everything everywhere.
        if limit.quota.limit() == 0 {
            return None;
        }
        let described = LimitDescription::of(rule, limit);
        let name = format!("{}  {} ({})", described.rule_name(), described.summary(), names.join(", "));
        Some(SharedLimit { name, lines: lines(&limit.quota, regions, nodes, settings.regions.sync) })
    });
    shared.collect()
}

fn lines(quota: &Quota, regions: Regions, nodes: NonZeroU32, sync: Duration) -> [(&'static str, String); 4] {
    let count = u64::from(regions.get());
    let (untold, window_ns) = (Peers::untold_at_most(quota, nodes), Some(quota.window_ns()));
    let share = quota.guaranteed(1);
    // The rest of a counter's window before can be untold, too.
    let at_once =
        if quota.algorithm() == (Algorithm::SlidingWindowCounter { segments: 1 }) { 2 * untold } else { untold };
    let guaranteed = share.as_ref().map_or(0, |share| count * share.capacity());
    let mut parts = vec![thousands(quota.capacity())];
    let more = [(guaranteed, "guaranteed"), (at_once, "untold")].into_iter().filter(|(units, _)| *units > 0);
    parts.extend(more.map(|(units, what)| format!("{} {what}", thousands(units))));
    let others = if count == 2 { "one region admits" } else { "two regions admit" };
    let others = if count > 3 { format!("{} regions admit", count - 1) } else { others.to_owned() };
    parts.push(format!("what {others} in {}", format_duration(sync + DELAY)));
    let worst = count.saturating_mul(quota.capacity()).saturating_add(guaranteed);
    // Larger requests have a larger burst of the guaranteed share.
    let of_one = if share.is_some() { ", if requests cost 1" } else { "" };
    let each = match &share {
        None => "what the others leave of the window".to_owned(),
        Some(share) => {
            // The share has the units of the whole limit, in one window for each region.
            let size = match quota.limit().is_multiple_of(count) {
                true => limit_size(quota.limit() / count, window_ns),
                false => limit_size(share.limit(), Some(share.window_ns())),
            };
            format!("at least {size} if it asks for more, whatever the others do")
        }
    };
    let long_run = match (untold, &share) {
        (0, Some(_)) => format!("{} (all units are told)", limit_size(quota.limit(), window_ns)),
        (_, Some(_)) => {
            let more = (u128::from(quota.limit()) * u128::from(untold)).div_ceil(quota.capacity().into());
            let all = quota.limit().saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
            format!("at most {} (up to {} units stay untold)", limit_size(all, window_ns), thousands(untold))
        }
        (_, None) => "the same in each window: what was too much is not paid back".to_owned(),
    };
    let shares = if share.is_some() { " and the guaranteed shares" } else { "" };
    [
        (
            if share.is_some() { "at once" } else { "in each window" },
            format!("{}; at worst {}{of_one}", parts.join(" + "), thousands(worst)),
        ),
        ("each region", each),
        ("in the long run", long_run),
        ("a region cut off", format!("about twice the limit{shares}, until it is heard again")),
    ]
}

impl SharedLimit {
    pub(super) fn text(&self, terminal: &Terminal) -> String {
        let mut table = Table::new(2);
        for (title, text) in &self.lines {
            table.row([(Tone::Faint, (*title).to_owned()), (Tone::Plain, text.clone())]);
        }
        format!("\n{}\n{}", terminal.paint(Tone::Title, &self.name), table.text(false, terminal))
    }
}

#[cfg(test)]
mod tests {
    use spillgate::MAX_UNITS;

    use super::*;

    fn shown(quota: Quota, regions: u8, nodes: u32) -> Vec<String> {
        let regions = Regions::new(regions).expect("2 to 8");
        let quota = quota.across(AcrossRegions::Shared(regions)).expect("it can be shared");
        let nodes = NonZeroU32::new(nodes).expect("there is a server");
        lines(&quota, regions, nodes, Duration::from_millis(100))
            .into_iter()
            .map(|(title, text)| format!("{title}: {text}"))
            .collect()
    }

    #[test]
    fn the_figures_are_those_of_the_guarantees() {
        let minute = Duration::from_secs(60);
        let bucket = Quota::token_bucket(600, minute).build().expect("valid");
        // 600 units are less than 40 for each of the 2 * 8 ways to tell them.
        let expected = [
            "at once: 600 + 24 guaranteed + what two regions admit in 500ms; at worst 1,824, if requests cost 1",
            "each region: at least 200 per minute if it asks for more, whatever the others do",
            "in the long run: 600 per minute (all units are told)",
            "a region cut off: about twice the limit and the guaranteed shares, until it is heard again",
        ];
        assert_eq!(shown(bucket.clone(), 3, 8), expected);
        // A step is 5 % of 600, divided by 2 * 2: 7 units. So 6 of each of 4 ways stay untold.
        let lines = shown(bucket, 3, 2);
        assert!(lines[0].starts_with("at once: 600 + 24 guaranteed + 24 untold + what"), "{lines:?}");
        assert_eq!(lines[2], "in the long run: at most 624 per minute (up to 24 units stay untold)");
        let odd = shown(Quota::token_bucket(100, minute).burst(10).build().expect("valid"), 3, 1);
        assert_eq!(odd[1], "each region: at least 100 per 3m if it asks for more, whatever the others do");
        assert!(odd[0].starts_with("at once: 10 + 9 guaranteed + what two"), "B/R is less than eight: {odd:?}");
        // Bytes of a day are many units.
        let bytes = Quota::fixed_window(MAX_UNITS, minute).build().expect("valid");
        assert!(shown(bytes, 8, 1)[0].starts_with("in each window: "));
        let day = Duration::from_secs(86_400);
        let bytes = shown(Quota::token_bucket(100_000_000_000, day).build().expect("valid"), 3, 2);
        assert!(bytes[2].starts_with("in the long run: at most 104,"), "{bytes:?}");
        let window = shown(Quota::fixed_window(600, minute).build().expect("valid"), 2, 1);
        assert_eq!(window[0], "in each window: 600 + 29 untold + what one region admits in 500ms; at worst 1,200");
        assert_eq!(window[3], "a region cut off: about twice the limit, until it is heard again");
        let counter = shown(Quota::sliding_window_counter(600, minute).build().expect("valid"), 5, 1);
        assert_eq!(counter[0], "in each window: 600 + 48 untold + what 4 regions admit in 500ms; at worst 3,000");
    }
}
