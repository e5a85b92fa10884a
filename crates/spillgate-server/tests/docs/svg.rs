//! Builds a picture as the text of an SVG file. The picture is a list of shapes, in the order in which they are drawn.

use std::fmt::Write as _;

pub(crate) const BLUE: &str = "#2166ac";
pub(crate) const RED: &str = "#d6604d";
pub(crate) const GREY: &str = "#b0b0b0";
pub(crate) const DARK: &str = "#222222";
pub(crate) const PALE: &str = "#dbe9f6";
pub(crate) const SAND: &str = "#f6ecd9";

/// A picture that is being drawn. Lengths are in pixels. Numbers have at most one digit after the point, so that the
/// picture is the same on every machine.
#[derive(Debug)]
pub(crate) struct Svg {
    width: u32,
    height: u32,
    body: String,
}

impl Svg {
    pub(crate) fn new(width: u32, height: u32) -> Svg {
        Svg { width, height, body: String::new() }
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), color: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(&format!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}"/>"#));
    }

    pub(crate) fn dashes(&mut self, from: (f64, f64), to: (f64, f64), color: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let line = format!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}""#);
        self.add(&format!(r#"{line} stroke-dasharray="4 3"/>"#));
    }

    pub(crate) fn arrow(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.line(from, to, DARK);
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1.0);
        let (ux, uy) = (dx / length * 7.0, dy / length * 7.0);
        let side = |s: f64| format!("{:.1},{:.1}", to.0 - ux - uy * s, to.1 - uy + ux * s);
        self.add(&format!(r#"<polygon points="{:.1},{:.1} {} {}" fill="{DARK}"/>"#, to.0, to.1, side(0.5), side(-0.5)));
    }

    pub(crate) fn dot(&mut self, at: (f64, f64), radius: f64, color: &str) {
        self.add(&format!(r#"<circle cx="{:.1}" cy="{:.1}" r="{radius:.1}" fill="{color}"/>"#, at.0, at.1));
    }

    pub(crate) fn bar(&mut self, at: (f64, f64), size: (f64, f64), color: &str) {
        let ((x, y), (w, h)) = (at, size);
        self.add(&format!(r#"<rect x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" fill="{color}"/>"#));
    }

    /// Draws a box with centred lines of text.
    pub(crate) fn labelled(&mut self, at: (f64, f64), size: (f64, f64), color: &str, lines: &[&str]) {
        let ((x, y), (w, h)) = (at, size);
        let shape = format!(r#"<rect x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" rx="4" fill="{color}""#);
        self.add(&format!(r#"{shape} stroke="{DARK}"/>"#));
        let first = y + h / 2.0 + 4.0 - 8.0 * (lines.len() as f64 - 1.0);
        for (number, line) in lines.iter().enumerate() {
            self.write((x + w / 2.0, first + 16.0 * number as f64), "middle", line);
        }
    }

    /// Writes text that begins at this position.
    pub(crate) fn text(&mut self, at: (f64, f64), text: &str) {
        self.write(at, "start", text);
    }

    /// Writes text with its middle at this position.
    pub(crate) fn middle(&mut self, at: (f64, f64), text: &str) {
        self.write(at, "middle", text);
    }

    /// Writes text that ends at this position.
    pub(crate) fn end(&mut self, at: (f64, f64), text: &str) {
        self.write(at, "end", text);
    }

    fn write(&mut self, (x, y): (f64, f64), anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(&format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{DARK}">{text}</text>"#));
    }

    fn add(&mut self, shape: &str) {
        let _ = writeln!(self.body, "  {shape}");
    }

    pub(crate) fn finish(self) -> String {
        let Svg { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"13\">\n  <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }
}
