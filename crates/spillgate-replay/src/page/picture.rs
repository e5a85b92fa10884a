//! What the pictures of the page have in common. A picture is SVG, as wide as the page. Its shapes are stretched, but
//! its texts are not, so that they are as easy to read on a phone as on a large screen.

use maud::{Markup, html};

use super::words::short;

/// The space above a plot, for the label of its highest line.
pub(super) const TOP: f64 = 18.0;
/// The space below a plot, for the labels of its axis.
pub(super) const BOTTOM: f64 = 22.0;

/// Returns a number that people like to read, and that is at least `highest`, but at most a third more. So a picture
/// fills its height.
pub(super) fn rounded_up(highest: f64) -> f64 {
    let power = 10_f64.powi(highest.max(1.0).log10().floor() as i32);
    // Small numbers are counts, which are whole.
    if highest <= 10.0 {
        return highest.ceil().max(1.0);
    }
    let step =
        [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0].into_iter().find(|step| step * power >= highest);
    step.unwrap_or(10.0) * power
}

/// Returns a part of the width of a picture in percent: `12.500%`.
pub(super) fn percent(part: f64) -> String {
    format!("{:.3}%", 100.0 * part)
}

/// Returns a picture. `says` is what a screen reader says instead of showing it.
pub(super) fn picture(says: &str, height: f64, body: &Markup) -> Markup {
    html! { svg class="plot" role="img" aria-label=(says) height=(height) { (body) } }
}

/// Returns the horizontal lines of a plot from 0 to `highest`, with their labels. The plot is between `top` and `top +
/// height`.
pub(super) fn lines(top: f64, height: f64, highest: f64, unit: &str) -> Markup {
    let mut values = vec![0.0, highest / 2.0, highest];
    // Half a request is no number.
    if highest % 2.0 > 0.0 || height < 80.0 {
        values.remove(1);
    }
    html! {
        @for value in values {
            @let y = top + height * (1.0 - value / highest);
            line class=[(value == 0.0).then_some("zero")] x1="0" x2="100%" y1=(y) y2=(y) {}
            @if value == highest { text x="0" y=(y - 5.0) { (unit) } }
            @if value > 0.0 {
                text x="-6" y=(y + 4.0) text-anchor="end" { (short(value)) }
            }
        }
    }
}

/// Returns a label of the horizontal axis. `part` says where: 0 is the left end and 1 is the right end.
pub(super) fn label(part: f64, y: f64, text: &str) -> Markup {
    let anchor = match part {
        ..0.04 => "start",
        0.96.. => "end",
        _ => "middle",
    };
    html! { text x=(percent(part)) y=(y) text-anchor=(anchor) { (text) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_line_is_at_least_the_highest_value() {
        let cases = [(0.0, 1.0), (1.0, 1.0), (3.0, 3.0), (5.1, 6.0), (7.0, 7.0), (1_001.0, 1_200.0), (1.8e19, 2e19)];
        for (highest, expected) in cases {
            assert!((rounded_up(highest) / expected - 1.0).abs() < 1e-9, "{highest}: {}", rounded_up(highest));
        }
        for highest in 1..5_000 {
            let up = rounded_up(f64::from(highest)) / f64::from(highest);
            assert!((1.0 - 1e-9..1.34).contains(&up), "{highest}: {up}");
        }
    }
}
