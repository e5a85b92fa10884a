//! Reports that are as large, as small or as hostile as a report can be.

use std::cmp::Reverse;

use super::samples::{BEGIN_NS, attention, shop};
use spillgate::rules::LimitDescription;
use spillgate_replay::report::*;

/// Texts that run as a script, load something, or hide a part of the page, if they are not escaped.
const HOSTILE: [&str; 12] = [
    "<script>window.hacked=1;document.title='hacked'</script>",
    "\"><img src=http://127.0.0.1:9/a.png onerror=\"window.hacked=2\">",
    "' onmouseover='window.hacked=3' onfocus='window.hacked=3' autofocus='",
    "</title></style></textarea></pre><script>document.title='hacked'</script><style>*{display:none}",
    "<svg onload=window.hacked=4><animate onbegin=window.hacked=4 attributeName=x dur=1s>",
    "<!-- ]]> {{7*7}} <iframe srcdoc='<script>parent.hacked=5</script>'>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/b'><base href='http://127.0.0.1:9/'>",
    "<link rel=stylesheet href=http://127.0.0.1:9/c.css><a href=\"javascript:window.hacked=6\">x</a>",
    "&lt;script&gt;window.hacked=7&lt;/script&gt; &#60;script&#62;",
    "\u{202e}\u{2066}drawkcab\u{202d}\u{0}\u{1b}[2J\u{7}\u{9b}31m\u{200b}\u{feff}\u{2028}\r\n\t\u{7f}",
    "Z\u{301}\u{302}\u{303}\u{304}\u{305}\u{306}\u{307}\u{308}\u{30a}\u{30b} \u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{0}\u{fffe}\u{10ffff}",
    "url(http://127.0.0.1:9/d) expression(window.hacked=8) \\3c script\\3e ${window.hacked=9}",
];

/// Returns hostile texts, each one followed by many characters without a place for a line break.
fn hostile() -> impl FnMut() -> String {
    let mut texts = HOSTILE.into_iter().cycle();
    move || format!("{}{}", texts.next().expect("it never ends"), "x".repeat(120))
}

/// Returns the report of the shop, in which each text is hostile.
pub(crate) fn hostile_texts() -> ReplayReport {
    let mut report = shop();
    let mut text = hostile();
    report.notes = vec![text(), text()];
    report.warnings = vec![text()];
    let log = &mut report.log;
    log.files.iter_mut().chain(&mut log.descriptors).chain([&mut log.format]).for_each(|field| *field = text());
    for samples in [&mut log.unreadable, &mut log.late, &mut log.not_decided] {
        let line =
            |text: &mut dyn FnMut() -> String| SampleLine { file: text(), line: 1, why: text(), text: Some(text()) };
        samples.first = (0..5).map(|_| line(&mut text)).collect();
        samples.count = 5;
    }
    for run in &mut report.runs {
        run.name = text();
        run.limits.iter_mut().for_each(|limit| hostile_limit(limit, &mut text));
    }
    for result in &mut report.suggestions {
        hostile_name(&mut result.limit, &mut text);
        result.suggested_rules = text();
    }
    if let Some(comparison) = &mut report.comparison {
        (comparison.old, comparison.new) = (text(), text());
        for limit in &mut comparison.limits {
            (limit.domain, limit.rule, limit.name) = (text(), text(), Some(text()));
        }
        comparison.callers.iter_mut().for_each(|change| change.caller = text());
    }
    report.suggestion_notes = vec![text(), text()];
    report
}

fn hostile_name(name: &mut LimitDescription, text: &mut impl FnMut() -> String) {
    (name.domain, name.rule, name.name) = (text(), text(), Some(text()));
    (name.file, name.algorithm, name.options.binding) = (text(), text(), text());
}

fn hostile_limit(limit: &mut LimitReport, text: &mut impl FnMut() -> String) {
    hostile_name(&mut limit.limit, text);
    limit.note = Some(text());
    for refusal in limit.first_refusals.iter_mut().chain(&mut limit.longest_refusals) {
        (refusal.file, refusal.caller, refusal.text) = (text(), text(), Some(text()));
    }
    limit
        .callers
        .top_refused
        .iter_mut()
        .chain(&mut limit.callers.top_allowed)
        .for_each(|caller| caller.caller = text());
    if let Some(whole_log) = &mut limit.whole_log {
        (whole_log.reason, whole_log.suggested_rules) = (text(), Some(text()));
    }
    if let Some(period) = &mut limit.period {
        period.report.reason = text();
        period.suggested_rules = Some(text());
        let tops = [&mut period.report.top_allowed, &mut period.report.top_refused];
        tops.into_iter().flat_map(|top| &mut top.callers).for_each(|caller| caller.name = Some(text()));
    }
}

/// Returns a report of many limits, with hidden callers.
pub(crate) fn forty_limits() -> ReplayReport {
    let mut report = shop();
    (report.comparison, report.suggestions, report.anonymous) = (None, Vec::new(), true);
    report.suggestion_notes.clear();
    report.runs.truncate(1);
    let limits = &mut report.runs[0].limits;
    let first = limits.clone();
    for index in limits.len()..40 {
        let mut limit = first[index % first.len()].clone();
        limit.limit.name = Some(format!("plan_{index}"));
        let refusals = limit.first_refusals.iter_mut().chain(&mut limit.longest_refusals);
        refusals.for_each(|refusal| (refusal.text, refusal.caller) = (None, "caller 3f9a21c0".into()));
        let callers = limit.callers.top_refused.iter_mut().chain(&mut limit.callers.top_allowed);
        callers.for_each(|caller| caller.caller = "caller 3f9a21c0".into());
        limits.push(limit);
    }
    limits.sort_by_key(|limit| Reverse(attention(limit)));
    report
}

/// Returns the report of an empty log by rules without limits.
pub(crate) fn nothing() -> ReplayReport {
    let run = RunReport { name: "empty.yaml".into(), ..RunReport::default() };
    ReplayReport { runs: vec![run], ..ReplayReport::default() }
}

/// Returns the report of a log of one line, for a limit that is not watched.
pub(crate) fn one_line() -> ReplayReport {
    let mut report = shop();
    let timeline =
        Timeline { begin_ns: BEGIN_NS, step_ns: 1_000_000_000, points: vec![Counts { allowed: 1, refused: 0 }] };
    let mut limit = report.runs[0].limits.swap_remove(0);
    (limit.period, limit.whole_log, limit.timeline) = (None, None, timeline.clone());
    (limit.allowed_requests, limit.refused_requests) = (1, 0);
    (limit.first_refusals, limit.longest_refusals) = (Vec::new(), Vec::new());
    limit.callers = LimitCallers::default();
    limit.hours.clear();
    limit.note = Some("This limit is not watched.".into());
    let run = RunReport {
        name: "one.yaml".into(),
        allowed_requests: 1,
        limits: vec![limit],
        timeline,
        ..RunReport::default()
    };
    report.log = LogSummary {
        files: vec!["-".into()],
        format: "json".into(),
        descriptors: vec!["path={path}".into()],
        lines: 1,
        requests: 1,
        from_ns: BEGIN_NS,
        to_ns: BEGIN_NS,
        ..LogSummary::default()
    };
    ReplayReport { log: report.log, runs: vec![run], ..ReplayReport::default() }
}

/// Returns the report of the shop, in which each number is as large as it can be.
pub(crate) fn huge_numbers() -> ReplayReport {
    let mut report = shop();
    const MOST: u64 = u64::MAX;
    let log = &mut report.log;
    (log.lines, log.bytes, log.requests, log.without_descriptor, log.to_ns) = (MOST, MOST, MOST, MOST, MOST);
    (log.unreadable.count, log.late.count, log.not_decided.count) = (MOST, MOST, MOST);
    for run in &mut report.runs {
        (run.allowed_requests, run.refused_requests, run.unmatched_requests) = (MOST, MOST, MOST);
        run.timeline =
            Timeline { begin_ns: MOST, step_ns: MOST, points: vec![Counts { allowed: MOST, refused: MOST }; 240] };
        for limit in &mut run.limits {
            (limit.limit.limit, limit.limit.capacity, limit.limit.window_ns) = (MOST, MOST, Some(MOST));
            (limit.allowed_requests, limit.refused_requests) = (MOST, MOST);
            limit.callers.further = Counts { allowed: MOST, refused: MOST };
            for caller in limit.callers.top_refused.iter_mut().chain(&mut limit.callers.top_allowed) {
                caller.counts = Counts { allowed: MOST, refused: MOST };
            }
            limit.timeline.points.fill(Counts { allowed: 0, refused: MOST });
            let Some(period) = &mut limit.period else { continue };
            (period.from_ns, period.to_ns, period.burst_error_units) = (MOST, MOST, Some(f64::MAX));
            period.burst_needed =
                (0..64).map(|power| Bar { at_most: Some(f64::from(power).exp2()), callers: MOST }).collect();
            period.burst_needed.push(Bar { at_most: None, callers: MOST });
            period.used.iter_mut().for_each(|bar| bar.callers = MOST);
        }
    }
    if let Some(comparison) = &mut report.comparison {
        comparison.requests =
            Agreement { both_allow: MOST, both_refuse: MOST, only_old_refuses: MOST, only_new_refuses: MOST };
        comparison.callers.iter_mut().for_each(|change| (change.requests, change.new_refused) = (MOST, MOST));
        comparison.further_callers = MOST;
    }
    report
}
