//! The picture of allowed and refused requests over time.
//!
//! Refused requests are on top of the allowed ones. Few refusals among many requests would be too thin to see, so a
//! second plot shows the refused ones alone.

use std::fmt::Write as _;

use maud::{Markup, html};

use crate::calendar::utc;

use super::picture::{BOTTOM, TOP, label, lines, percent, picture, rounded_up};
use super::words::{count, duration, number, share, times};
use crate::report::{Counts, Timeline};

const SECOND_NS: u64 = 1_000_000_000;
const DAY_S: u64 = 86_400;
/// The heights of the two plots: of all requests, and of the refused ones.
const ALL: f64 = 120.0;
const REFUSED: f64 = 44.0;
/// More labels than this do not fit under a picture on a phone.
const MOST_LABELS: u64 = 6;
/// The possible times between two labels, in seconds. The last one is a century, and a log of many centuries does not
/// exist.
const STEPS_S: [u64; 27] = [
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1_800,
    3_600,
    7_200,
    10_800,
    21_600,
    43_200,
    DAY_S,
    2 * DAY_S,
    7 * DAY_S,
    14 * DAY_S,
    30 * DAY_S,
    91 * DAY_S,
    182 * DAY_S,
    365 * DAY_S,
    3_652 * DAY_S,
    36_525 * DAY_S,
];

/// Returns the figure. `judged` has the beginning and the end of the hour that the verdict is about.
pub(super) fn figure(timeline: &Timeline, judged: Option<(u64, u64)>) -> Markup {
    let points = &timeline.points;
    if points.is_empty() {
        return html! { p class="empty" { "There were no requests." } };
    }
    let says = summary(timeline);
    let is_refused = points.iter().any(|point| point.refused > 0);
    let height = TOP + ALL + if is_refused { TOP + REFUSED } else { 0.0 } + BOTTOM;
    // A step of many days needs no parts of a second.
    let step_ns =
        if timeline.step_ns < SECOND_NS { timeline.step_ns } else { timeline.step_ns / SECOND_NS * SECOND_NS };
    let unit = format!("requests in each {}", duration(step_ns));
    let body = html! {
        (plot(TOP, ALL, points, |point| (point.allowed, point.refused), &unit))
        @if is_refused {
            (plot(2.0 * TOP + ALL, REFUSED, points, |point| (0, point.refused), "refused requests alone"))
        }
        @if let Some(judged) = judged { (judged_hour(timeline, judged, height - BOTTOM)) }
        (axis(timeline, height - BOTTOM))
    };
    html! {
        figure {
            figcaption {
                strong { "Requests over time. " } (says)
                @if judged.is_some() { " The thick line on the axis is the hour that is described above." }
            }
            p class="legend" aria-hidden="true" {
                span class="key allowed" {} " allowed "
                @if is_refused { span class="key refused" {} " refused" }
            }
            (picture(&format!("Areas over time. {says}"), height, &body))
        }
    }
}

/// Says in words what the picture shows.
fn summary(timeline: &Timeline) -> String {
    let sum = |number: fn(&Counts) -> u64| timeline.points.iter().map(number).fold(0, u64::saturating_add);
    let (allowed, refused) = (sum(|point| point.allowed), sum(|point| point.refused));
    let time_of = |step: usize| timeline.begin_ns.saturating_add(timeline.step_ns.saturating_mul(step as u64));
    // Limits can have requests at different times, so the pictures can show different times.
    let all = count(allowed.saturating_add(refused), "request");
    let all = format!("{all} from {}", times(timeline.begin_ns, time_of(timeline.points.len())));
    let Some((worst, point)) = timeline.points.iter().enumerate().max_by_key(|(_, point)| point.refused) else {
        return String::new();
    };
    if point.refused == 0 {
        return format!("{all}. None is refused.");
    }
    let when = times(time_of(worst), time_of(worst + 1));
    let in_step = point.allowed.saturating_add(point.refused);
    format!(
        "{all}. {} are refused. The step with the most refusals is {when}: {} of {in_step}.",
        share(refused, allowed.saturating_add(refused)),
        number(point.refused),
        in_step = count(in_step, "request"),
    )
}

/// Returns a plot with two areas on top of each other. All points have the same width.
fn plot(top: f64, height: f64, points: &[Counts], of: fn(&Counts) -> (u64, u64), unit: &str) -> Markup {
    let total = |point: &Counts| of(point).0 as f64 + of(point).1 as f64;
    let highest = rounded_up(points.iter().map(total).fold(0.0, f64::max));
    let path = |value: &dyn Fn(&Counts) -> f64| {
        let mut path = format!("M0 {height}");
        for (index, point) in points.iter().enumerate() {
            let _ = write!(path, "V{:.1}H{}", height * (1.0 - value(point) / highest), index + 1);
        }
        path + &format!("V{height}Z")
    };
    let allowed = |point: &Counts| of(point).0 as f64;
    html! {
        svg x="0" y=(top) width="100%" height=(height) viewBox={ "0 0 " (points.len()) " " (height) }
            preserveAspectRatio="none" {
            @if points.iter().any(|point| of(point).1 > 0) { path class="refused" d=(path(&total)) {} }
            @if points.iter().any(|point| of(point).0 > 0) { path class="allowed" d=(path(&allowed)) {} }
        }
        (lines(top, height, highest, unit))
    }
}

fn judged_hour(timeline: &Timeline, (from_ns, to_ns): (u64, u64), y: f64) -> Markup {
    let part = |time_ns| part_of(timeline, time_ns).clamp(0.0, 1.0);
    let width = (part(to_ns) - part(from_ns)).max(0.004);
    html! { rect class="judged" x=(percent(part(from_ns).min(1.0 - width))) y=(y - 1.0) width=(percent(width)) height="5" {} }
}

/// Returns where a time is on the axis: 0 is the beginning of the axis, and 1 is its end.
fn part_of(timeline: &Timeline, time_ns: u64) -> f64 {
    let length_ns = timeline.step_ns.max(1) as f64 * timeline.points.len() as f64;
    time_ns.saturating_sub(timeline.begin_ns) as f64 / length_ns
}

/// Returns the labels of the axis: round times, or the beginning if no round time is in the picture.
fn axis(timeline: &Timeline, y: f64) -> Markup {
    let labels = labels(timeline);
    html! {
        @for (part, text) in &labels {
            line class="tick" x1=(percent(*part)) x2=(percent(*part)) y1=(y) y2=(y + 5.0) {}
            (label(*part, y + 18.0, text))
        }
    }
}

fn labels(timeline: &Timeline) -> Vec<(f64, String)> {
    let begin_s = timeline.begin_ns.div_ceil(SECOND_NS);
    let length_s = timeline.step_ns.saturating_mul(timeline.points.len() as u64) / SECOND_NS;
    let step_s = STEPS_S.into_iter().find(|step_s| length_s / step_s < MOST_LABELS).unwrap_or(36_525 * DAY_S);
    let first_s = begin_s.next_multiple_of(step_s);
    let times =
        (0..MOST_LABELS).map(|index| first_s + index * step_s).take_while(|time_s| *time_s <= begin_s + length_s);
    let mut labels: Vec<(f64, String)> =
        times.map(|time_s| (part_of(timeline, time_s.saturating_mul(SECOND_NS)), label_of(time_s, step_s))).collect();
    if labels.is_empty() {
        labels.push((0.0, label_of(timeline.begin_ns / SECOND_NS, 1)));
    }
    labels
}

/// Returns the label of a time. Midnight has the day as its label.
fn label_of(time_s: u64, step_s: u64) -> String {
    let at = utc(time_s.saturating_mul(SECOND_NS));
    let format = match step_s {
        _ if step_s >= 91 * DAY_S => "%b %Y",
        _ if time_s.is_multiple_of(DAY_S) => "%-d %b",
        60.. => "%H:%M",
        _ => "%H:%M:%S",
    };
    at.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(begin_s: u64, step_s: u64, points: usize) -> Timeline {
        let points = vec![Counts { allowed: 3, refused: 1 }; points];
        Timeline { begin_ns: begin_s * SECOND_NS, step_ns: step_s * SECOND_NS, points }
    }

    #[test]
    fn labels_are_round_times_inside_the_picture() {
        let texts = |begin_s, step_s, points| {
            let labels = labels(&timeline(begin_s, step_s, points));
            assert!(labels.len() <= MOST_LABELS as usize && labels.iter().all(|(part, _)| (0.0..=1.0).contains(part)));
            labels.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
        };
        // 2026-03-01 12:00:00 UTC.
        let noon = 1_772_366_400;
        assert_eq!(texts(noon, 1, 1), "12:00:00 12:00:01");
        assert_eq!(texts(noon + 10, 60, 120), "12:30 13:00 13:30 14:00");
        assert_eq!(texts(noon, 600, 144), "12:00 18:00 2 Mar 06:00 12:00");
        assert_eq!(texts(noon, 86_400, 30), "5 Mar 12 Mar 19 Mar 26 Mar");
        assert_eq!(texts(noon, 86_400 * 4, 240), "Apr 2026 Oct 2026 Apr 2027 Oct 2027 Apr 2028");
        for length in 0..40 {
            assert_ne!(texts(noon - 7, 1 << length.min(24), 1 + length as usize), "");
        }
        let last = Timeline { begin_ns: u64::MAX, step_ns: u64::MAX, points: vec![Counts::default()] };
        assert!((1..=MOST_LABELS as usize).contains(&labels(&last).len()));
    }

    #[test]
    fn the_words_say_what_the_picture_shows() {
        let mut timeline = timeline(1_772_366_400, 60, 10);
        timeline.points[4] = Counts { allowed: 1, refused: 9 };
        let says = summary(&timeline).replace('\u{a0}', " ");
        assert_eq!(
            says,
            "46 requests from 2026-03-01 12:00 to 12:10 UTC. 39 % are refused. The step with the most refusals is \
             2026-03-01 12:04 to 12:05 UTC: 9 of 10 requests."
        );
        let markup = figure(&timeline, None).into_string();
        assert!(markup.contains(r#"role="img""#) && markup.contains("refused requests alone"), "{markup}");
        timeline.points.iter_mut().for_each(|point| point.refused = 0);
        let markup = figure(&timeline, None).into_string();
        assert!(!markup.contains("refused requests alone") && markup.contains("None is refused"), "{markup}");
    }
}
