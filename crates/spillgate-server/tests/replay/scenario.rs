//! Generates logs, and replays them in the process of the test.

use std::fmt::Write as _;
use std::io::{Cursor, Read};

use spillgate::rules::{Rules, RulesFile};
use spillgate::{KeyHasher, MemoryOptions, Time};
use spillgate_replay::access_log::{OUT_OF_ORDER, Ordered, Reader};
use spillgate_replay::{
    CALLERS, ClientSettings, Filled, LoggedRequest, Names, Replay, Replayed, Run, RunOptions, Templates,
};
use spillgate_service::{CallerKeys, Insight, ServiceOptions};
use spillgate_testkit::Random;

/// 2026-03-01 11:30:00 UTC. The log crosses full hours.
const BEGIN_S: u64 = 1_772_364_600;

/// A pattern whose times have fractions of a second.
pub(crate) const FRACTIONS: &str = "$remote_addr $msec \"$request\"";

/// Returns the settings of a server that watches callers by name.
pub(crate) fn options() -> RunOptions {
    let insight = Insight { max_callers: 65_536, keys: CallerKeys::Plain };
    let service = ServiceOptions { insight, ..ServiceOptions::default() };
    RunOptions {
        service,
        memory: MemoryOptions::default(),
        keys: KeyHasher::with_secret(*b"0123456789abcdef"),
        callers: CALLERS,
    }
}

pub(crate) fn rules(text: &str) -> Rules {
    let files = [RulesFile { name: "rules.yaml".into(), text: text.into() }];
    let mut rules = Rules::parse(&files).unwrap_or_else(|errors| panic!("{errors}: {text}"));
    rules.open_sketches(None, std::num::NonZeroU32::MIN).expect("there is memory");
    rules
}

/// Generates a log with this many lines. Some callers ask all the time, some in bursts, and most now and then. The time
/// between two lines is about `step_ms` milliseconds.
pub(crate) fn log(lines: u64, step_ms: u64, seed: u64) -> String {
    let mut random = Random(seed);
    let (mut text, mut now_ms) = (String::new(), BEGIN_S * 1_000);
    let mut burst = 0;
    for _ in 0..lines {
        if burst == 0 {
            now_ms += random.below(2 * step_ms + 1);
            burst = if random.one_in(40) { 20 } else { 1 };
        }
        burst -= 1;
        let caller = if burst > 1 { 1 + now_ms / 60_000 % 5 } else { random.below(60).min(random.below(60)) };
        let path = ["/", "/login", "/search", "/a/b"][random.index(4)];
        let at = (now_ms / 1_000, now_ms % 1_000);
        writeln!(text, "203.0.113.{caller} {}.{:03} \"GET {path}?q=1 HTTP/1.1\"", at.0, at.1).expect("a text can grow");
    }
    text
}

pub(crate) type Log = Box<dyn Read + Send>;

pub(crate) fn of_text(text: &str) -> Log {
    Box::new(Cursor::new(text.to_owned()))
}

/// Reads a log, and passes each request to `each`, with the values of this request for the templates.
pub(crate) fn read(log: Log, format: &str, templates: &Templates, mut each: impl FnMut(&LoggedRequest<'_>, &Filled)) {
    let reader = Reader::new(format, templates.fields(), None).expect("the format is right");
    let mut log = Ordered::new(vec![log], &reader, OUT_OF_ORDER);
    let mut filled = Filled::default();
    while let Some(logged) = log.next() {
        templates.fill(&mut filled, |index| logged.fields.value(index));
        each(&LoggedRequest { time: logged.time, file: "access.log", line: logged.line, text: logged.text }, &filled);
    }
}

pub(crate) fn templates(texts: &[&str]) -> Templates {
    let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
    Templates::parse(&texts, ClientSettings::default()).expect("the templates are right")
}

/// Replays a log once for each of several sets of rules of the domain `web`.
pub(crate) fn replay(log: &str, all: Vec<Rules>, compares: bool, descriptors: &[&str]) -> Replayed {
    let templates = templates(descriptors);
    let (mut all, mut replay) = (Some(all), None);
    read(of_text(log), FRACTIONS, &templates, |logged, filled| {
        if let Some(rules) = all.take() {
            let run = |rules| Run::new("rules.yaml".into(), rules, &options(), logged.time).expect("there is memory");
            replay = Some(Replay::new(rules.into_iter().map(run).collect(), compares));
        }
        let request = templates.request("web", filled).expect("each line has the fields");
        replay.as_mut().expect("there is a replay").decide(logged, &request);
    });
    replay.expect("the log has lines").finish(false, &Names::plain())
}

/// Returns the last nanosecond of the hour of a time.
pub(crate) fn end_of_hour(time: Time) -> Time {
    const HOUR_NS: u64 = 3_600_000_000_000;
    Time::from_nanos((time.as_nanos() / HOUR_NS + 1) * HOUR_NS - 1)
}
