//! Tests of the HTML report of a replay in a real browser, light and dark, on large screens and on phones.
//!
//! If `REPLAY_PICTURES` is a folder, the pages, screenshots and PDF files are written into it, for people to look at.
//! Only then is a report of forty limits among the pages.

mod extremes;
mod samples;

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::browser::{Found, open};
use spillgate_replay::page::page;
use spillgate_replay::report::ReplayReport;

/// The report of the shop is not higher than this on a phone, in pixels: the reader opens what is folded.
const PHONE_HEIGHT: u64 = 12_500;

fn pictures() -> Option<PathBuf> {
    std::env::var_os("REPLAY_PICTURES").map(PathBuf::from)
}

/// Writes the pages into a folder and opens them.
fn opened(reports: &[(&str, ReplayReport)]) -> Vec<Found> {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let pictures = pictures();
    let pages = pictures.as_deref().unwrap_or(folder.path());
    let files: Vec<_> = reports.iter().map(|(name, report)| write(pages, name, &page(report))).collect();
    open(&files, pictures.as_deref())
}

fn write(folder: &Path, name: &str, page: &str) -> PathBuf {
    let file = folder.join(format!("{name}.html"));
    fs::write(&file, page).expect("the folder can be written");
    file
}

fn assert_harmless_and_readable(found: &Found, title: &str) {
    let Found { page, titles, scripts, active, requests, violations, too_wide, .. } = found;
    assert!(titles.len() == 5 && titles.iter().all(|shown| shown == title), "{page}: {titles:?} instead of {title:?}");
    let problems = [scripts, active, requests, violations, too_wide];
    assert!(problems.iter().all(|list| list.is_empty()), "{found:#?}");
}

#[test]
fn no_text_of_a_log_runs_loads_or_hides_anything() {
    let report = extremes::hostile_texts();
    let hostile = report.runs[0].name.clone();
    let [found] = &opened(&[("hostile", report)])[..] else { panic!("one page") };
    // The title shows the text as it is: the text has no character that has to be made visible.
    assert_harmless_and_readable(found, &format!("Replay of {hostile}"));
}

#[test]
fn reports_are_readable_on_each_screen() {
    let mut reports = vec![
        ("shop", samples::shop()),
        ("nothing", extremes::nothing()),
        ("one-line", extremes::one_line()),
        ("huge", extremes::huge_numbers()),
    ];
    // The report of forty limits has the most elements, so it takes a browser a long time.
    if pictures().is_some() {
        reports.push(("forty", extremes::forty_limits()));
    }
    assert_all_readable(&reports);
}

fn assert_all_readable(reports: &[(&str, ReplayReport)]) {
    let titles = reports.iter().map(|(_, report)| format!("Replay of {}", report.runs[0].name));
    for (found, title) in opened(reports).iter().zip(titles) {
        assert_harmless_and_readable(found, &title);
        // The report of the shop has six limits, and compares two rules files.
        assert!(found.page != "shop.html" || found.phone_height < PHONE_HEIGHT, "{found:#?}");
    }
}

/// Without this test, a browser that finds nothing in any page would let the other tests pass.
#[test]
fn the_browser_finds_what_a_page_must_not_have() {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let bad = "<!DOCTYPE html><html><title>t</title><body style='width:3000px'><p style='color:#999;background:#aaa'>Some text.</p>\
               <img src='http://127.0.0.1:9/a.png'><script>window.hacked = 1; document.title = 'hacked'</script></html>";
    let files = [write(folder.path(), "bad", bad)];
    let [Found { titles, scripts, active, requests, violations, too_wide, .. }] = &open(&files, None)[..] else {
        panic!("one page")
    };
    assert!(titles.iter().all(|title| title == "hacked") && !scripts.is_empty(), "{titles:?} {scripts:?}");
    assert!(active.contains(&"<script>".to_owned()) && active.contains(&"<img>".to_owned()), "{active:?}");
    assert!(requests.iter().any(|address| address.contains("127.0.0.1:9/a.png")), "{requests:?}");
    for rule in ["html-has-lang", "image-alt", "color-contrast"] {
        assert!(violations.iter().any(|violation| violation.contains(rule)), "{rule}: {violations:?}");
    }
    assert!(too_wide.contains(&"phone".to_owned()), "{too_wide:?}");
}
