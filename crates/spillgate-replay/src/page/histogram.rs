//! The pictures of callers: which burst they need, and how much of the limit they use.

use maud::{Markup, html};

use super::picture::{BOTTOM, TOP, label, lines, percent, picture, rounded_up};
use super::words::{count, number, quota, short, times};
use crate::report::{Bar, Period};
use spillgate::rules::LimitDescription;

const HEIGHT: f64 = 120.0;
/// More labels than this do not fit under a picture on a phone.
const MOST_LABELS: usize = 7;
/// With more bars than this, the bars have no numbers above them.
const MOST_NUMBERS: usize = 12;
/// A caller that uses more than this percentage of a limit is near to it.
const NEAR: f64 = 95.0;

/// A bar with its two ends, as positions on the axis. 0 is the left end of the axis and 1 is its right end.
struct Drawn {
    from: f64,
    to: f64,
    callers: u64,
    class: &'static str,
}

/// Returns the figure of the bursts that callers need. The axis has powers of two.
pub(super) fn bursts(limit: &LimitDescription, period: &Period) -> Markup {
    let bars = &period.burst_needed;
    let Some(axis) = Octaves::of(bars, limit.capacity) else { return html! {} };
    let says = bursts_in_words(limit, period);
    let at = axis.place(limit.capacity.max(1) as f64);
    let drawn = axis.drawn(bars, at);
    let body = html! {
        (plot(&drawn, bars.len()))
        (axis.labels())
        line class="limit" x1=(percent(at)) x2=(percent(at)) y1="2" y2=(TOP + HEIGHT) {}
        text class="limit" x=(percent(at)) y="12" dx=(if at < 0.5 { "5" } else { "-5" })
            text-anchor=(if at < 0.5 { "start" } else { "end" }) { "this limit: " (short(limit.capacity as f64)) }
    };
    html! {
        figure {
            figcaption {
                strong { "Burst that callers need, in units. " } (times(period.from_ns, period.to_ns)) ": " (says)
                @if drawn.iter().any(|bar| bar.class == "mixed" && bar.callers > 0) {
                    " In the grey bar, some callers can need more than the limit has, and some less."
                }
                @if let Some(error) = period.burst_error_units {
                    " The log has whole seconds, so a burst is wrong by at most " (short(error))
                    " in each direction."
                }
            }
            @if shows_more_than_words(bars) {
                (picture(&format!("Callers by the burst that they need. {says}"), TOP + HEIGHT + BOTTOM, &body))
            }
        }
    }
}

/// Says how many callers need more than the limit has. One bar can have callers that do and callers that do not, so the
/// answer can be a range.
fn bursts_in_words(limit: &LimitDescription, period: &Period) -> String {
    let capacity = limit.capacity as f64;
    let all = sum(&period.burst_needed, |_, _| true);
    let most = sum(&period.burst_needed, |_, to| to.is_none_or(|to| to > capacity));
    let least = sum(&period.burst_needed, |from, _| from >= capacity);
    let sampled = if is_sampled(period) { " of the sample" } else { "" };
    let more = match (least, most) {
        (_, 0) => "No caller needs".to_owned(),
        (least, most) if least == most && most == 1 => "1 caller needs".to_owned(),
        (least, most) if least == most => format!("{} need", count(most, "caller")),
        (least, most) => format!("{} to {} need", number(least), count(most, "caller")),
    };
    format!("{more} more than {} at once, of {}{sampled}.", short(capacity), count(all, "caller"))
}

/// Returns the number of callers in all bars for which `counts` returns true. `counts` gets both ends of a bar.
fn sum(bars: &[Bar], counts: impl Fn(f64, Option<f64>) -> bool) -> u64 {
    let mut from = 0.0;
    let mut all = 0_u64;
    for bar in bars {
        if counts(from, bar.at_most) {
            all = all.saturating_add(bar.callers);
        }
        from = bar.at_most.unwrap_or(from);
    }
    all
}

fn is_sampled(period: &Period) -> bool {
    period.report.spans.iter().any(|span| span.callers.asked.relative_error > 0.0)
}

/// An axis on which each power of two has the same width.
struct Octaves {
    first: i32,
    last: i32,
    /// Whether the right end of the axis is for bars without an upper end.
    open: bool,
}

impl Octaves {
    /// Returns an axis for these bars and the burst of the limit. `None` if there is no bar.
    fn of(bars: &[Bar], capacity: u64) -> Option<Octaves> {
        let ends = || bars.iter().filter_map(|bar| bar.at_most).map(exponent);
        let own = exponent(capacity.max(1) as f64);
        let open = bars.iter().any(|bar| bar.at_most.is_none());
        let last = ends().fold(own, i32::max) + i32::from(open);
        (!bars.is_empty()).then(|| Octaves { first: ends().fold(own, i32::min).min(last - 3) - 1, last, open })
    }

    fn place(&self, units: f64) -> f64 {
        let width = f64::from((self.last - self.first).max(1));
        ((units.max(f64::MIN_POSITIVE).log2() - f64::from(self.first)) / width).clamp(0.0, 1.0)
    }

    /// Returns the bars. If the burst of the limit is inside of a bar, some callers of this bar can need more than the
    /// limit has, and others not.
    fn drawn(&self, bars: &[Bar], limit: f64) -> Vec<Drawn> {
        let drawn = |bar: &Bar| {
            let end = bar.at_most.map_or(f64::from(self.last).exp2(), |end| f64::from(exponent(end)).exp2());
            let (from, to) = (self.place(end / 2.0), self.place(end));
            let class = match () {
                () if limit <= from => "refused",
                () if to <= limit => "allowed",
                () => "mixed",
            };
            Drawn { from, to, callers: bar.callers, class }
        };
        bars.iter().map(drawn).collect()
    }

    fn labels(&self) -> Markup {
        let last = self.last - i32::from(self.open);
        let every = ((last - self.first) as usize).div_ceil(MOST_LABELS).max(1);
        html! {
            // No burst is below 1 unit.
            @for power in (self.first.max(0)..=last).step_by(every) {
                // The label at the right end, "no end", needs this place.
                @if !self.open || self.place(f64::from(power).exp2()) < 0.85 {
                (label(self.place(f64::from(power).exp2()), TOP + HEIGHT + 16.0, &short(f64::from(power).exp2())))
                }
            }
            @if self.open { (label(1.0, TOP + HEIGHT + 16.0, "no end")) }
        }
    }
}

/// Returns the exponent of the lowest power of two that is at least this number.
fn exponent(units: f64) -> i32 {
    units.clamp(1.0, 1e300).log2().ceil() as i32
}

/// Returns the figure of the callers by their highest use of the limit.
pub(super) fn uses(limit: &LimitDescription, period: &Period) -> Markup {
    let bars = &period.used;
    if bars.is_empty() {
        return html! {};
    }
    let says = uses_in_words(period);
    // Only a soft limit can be used by more than 100 %. Callers that do so are at the right end.
    let end = if bars.iter().any(|bar| bar.at_most.is_none()) { 105.0 } else { 100.0 };
    let mut drawn = Vec::new();
    let mut from = 0.0;
    for bar in bars {
        let to = bar.at_most.unwrap_or(end).clamp(from, end);
        let class = if from >= NEAR { "near" } else { "allowed" };
        drawn.push(Drawn { from: from / end, to: to / end, callers: bar.callers, class });
        from = to;
    }
    let body = html! {
        (plot(&drawn, bars.len()))
        @for share in [0.0, 25.0, 50.0, 75.0, 100.0] {
            (label(share / end, TOP + HEIGHT + 16.0, &format!("{share:.0}\u{a0}%")))
        }
    };
    html! {
        figure {
            figcaption {
                strong { "Callers by their highest use of the limit. " } (times(period.from_ns, period.to_ns)) ": " (says)
            }
            @if shows_more_than_words(bars) {
                (picture(&format!("Callers by use of {}. {says}", quota(limit)), TOP + HEIGHT + BOTTOM, &body))
            }
        }
    }
}

fn uses_in_words(period: &Period) -> String {
    let all = sum(&period.used, |_, _| true);
    let near = sum(&period.used, |from, _| from >= NEAR);
    let sampled = if is_sampled(period) { " of the sample" } else { "" };
    let mut says = format!("{} of {}{sampled} use more than 95\u{a0}%.", number(near), count(all, "caller"));
    let [.., hour] = &period.report.spans;
    if let Some(share) = &hour.use_share {
        says += &format!(" Half of all callers use at most {:.0}\u{a0}%.", (100.0 * share.median.at_least).ceil());
    }
    says
}

/// Returns whether a picture of the bars says more than its words. One bar alone does not.
fn shows_more_than_words(bars: &[Bar]) -> bool {
    bars.iter().filter(|bar| bar.callers > 0).count() > 1
}

/// Returns the bars, and the lines behind them.
fn plot(bars: &[Drawn], count: usize) -> Markup {
    let highest = rounded_up(bars.iter().map(|bar| bar.callers as f64).fold(0.0, f64::max));
    html! {
        (lines(TOP, HEIGHT, highest, "callers"))
        @for bar in bars.iter().filter(|bar| bar.callers > 0) {
            // A bar must be visible even if it has the fewest callers.
            @let height = (HEIGHT * bar.callers as f64 / highest).max(1.5);
            rect class=(bar.class) x=(percent(bar.from)) y=(TOP + HEIGHT - height) width=(percent(bar.to - bar.from))
                height=(height) {}
            @if count <= MOST_NUMBERS {
                text class="number" x=(percent((bar.from + bar.to) / 2.0)) y=(TOP + HEIGHT - height - 4.0) text-anchor="middle" {
                    (short(bar.callers as f64))
                }
            }
        }
    }
}
