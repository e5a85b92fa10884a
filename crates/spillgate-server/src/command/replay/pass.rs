//! One pass over the log: every line is read once, and decided by each run.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use spillgate::Time;
use spillgate_replay::access_log::{BEGINNING_BYTES, FORMATS, LogCounts, LogInput, Ordered, StepBack, newest_first};
use spillgate_replay::report::{LogSummary, SampleLine, Samples};
use spillgate_replay::{Filled, LoggedRequest, Names, Replay, Replayed, Run, RunOptions};
use tokio::time::Instant;

use super::fields::Unseen;
use super::inputs::{Inputs, NamedRules, is_input};
use crate::command::terminal::{Problem, Problems, Terminal, clean, count, thousands};

/// The clock is read only once in this many lines, so that its cost does not matter.
const LINES: u64 = 4096;
/// The shortest time between two updates of the progress.
const PROGRESS: Duration = Duration::from_millis(200);

/// What a pass has found.
pub(super) struct Passed {
    pub(super) log: LogSummary,
    /// What a server would count in another way.
    pub(super) warnings: Vec<String>,
    pub(super) replayed: Replayed,
}

/// The progress of a pass.
struct Progress {
    begun: Instant,
    shown: Instant,
    /// The bytes of all files. `None` if a file has no known end, for example standard input.
    bytes: Option<u64>,
}

/// Decides all requests of the log by each of `rules`.
pub(super) fn pass(
    inputs: &Inputs,
    rules: Vec<NamedRules>,
    compares: bool,
    names: &Names,
    terminal: &mut Terminal,
) -> Result<Passed, Problems> {
    let (files, bytes) = open(inputs)?;
    let file_names: Vec<String> = inputs.logs.iter().map(|path| path.display().to_string()).collect();
    let mut log = Ordered::new(files, &inputs.reader, inputs.out_of_order);
    let mut progress = Progress { begun: Instant::now(), shown: Instant::now(), bytes };
    let (mut rules, mut replay) = (Some(rules), None);
    let (mut filled, mut without_descriptor, mut read) = (Filled::default(), 0, 0);
    let (mut from, mut to) = (Time::EPOCH, Time::EPOCH);
    let mut unseen = Unseen::new(inputs);
    let max_wait_ns = u64::try_from(inputs.wait.as_nanos()).unwrap_or(u64::MAX);
    while let Some(logged) = log.next() {
        if let Some(rules) = rules.take() {
            from = logged.time;
            replay = Some(start(inputs, rules, compares, from)?);
        }
        to = logged.time;
        unseen.look(logged.text, |index| logged.fields.value(index));
        inputs.templates.fill(&mut filled, |index| logged.fields.value(index));
        match (inputs.templates.request(&inputs.domain, &filled), &mut replay) {
            (Some(request), Some(replay)) => {
                let (file, line, text) = (&*file_names[logged.file], logged.line, logged.text);
                let request = request.with_max_wait_ns(max_wait_ns);
                replay.decide(&LoggedRequest { time: logged.time, file, line, text }, &request);
            }
            _ => without_descriptor += 1,
        }
        read += 1;
        if read % LINES == 0 {
            progress.show(&log, terminal);
        }
    }
    terminal.progress("");
    if let Some(file) = log.newest_first() {
        return Err(newest_is_first(&file_names[file]).into());
    }
    if let Some(step) = log.step_back() {
        return Err(steps_back(&step, &file_names[step.file]).into());
    }
    let counts = log.counts();
    let Some(replay) = replay else { return Err(nothing_readable(inputs, counts, &file_names, names).into()) };
    if let Some(problem) = unseen.problem(inputs) {
        return Err(problem.into());
    }
    let whole_seconds = !counts.has_fractions;
    let replayed = replay.finish(whole_seconds, names);
    let log = LogSummary {
        format: inputs.format.clone(),
        descriptors: inputs.descriptors.clone(),
        lines: counts.lines,
        bytes: counts.bytes,
        requests: replayed.requests,
        unreadable: samples(&counts.unreadable, &file_names, names),
        late: samples(&counts.late, &file_names, names),
        without_descriptor,
        not_decided: replayed.not_decided.clone(),
        from_ns: from.as_nanos(),
        to_ns: to.as_nanos(),
        whole_seconds,
        files: file_names,
    };
    Ok(Passed { log, warnings: inputs.templates.warnings(&filled, names.are_hidden()), replayed })
}

/// Makes the runs, which begin at the time of the first request.
fn start(inputs: &Inputs, rules: Vec<NamedRules>, compares: bool, begin: Time) -> Result<Replay, Problem> {
    let run = |NamedRules { name, rules, callers }| {
        Run::new(name, rules, &RunOptions { callers, ..inputs.options.clone() }, begin)
    };
    let runs = rules.into_iter().map(run).collect::<Result<Vec<_>, _>>();
    let help = "lower its `sketch_memory`, or replay on a machine with more memory";
    Ok(Replay::new(runs.map_err(|error| Problem::new(error.to_string(), help))?, compares))
}

type Files = Vec<LogInput>;

/// Opens the logs. Returns the sum of their bytes, if all are regular files.
fn open(inputs: &Inputs) -> Result<(Files, Option<u64>), Problem> {
    let (mut files, mut bytes, mut opened) = (Files::new(), Some(0), HashSet::new());
    for path in &inputs.logs {
        if is_input(path) {
            files.push((Box::new(io::stdin()) as Box<dyn Read + Send>).into());
            bytes = None;
            continue;
        }
        let unread = |error: io::Error| {
            let message = format!("the log {} cannot be read: {error}", path.display());
            Problem::new(message, "check the path after --log and its permissions")
        };
        let file = File::open(path).map_err(unread)?;
        let metadata = file.metadata().map_err(unread)?;
        if metadata.is_dir() {
            return Err(unread(io::ErrorKind::IsADirectory.into()));
        }
        if metadata.is_file() && !opened.insert((metadata.dev(), metadata.ino())) {
            let message = format!("the log {} is given twice", path.display());
            return Err(Problem::new(message, "name each file once: two names can be links to one file"));
        }
        bytes = bytes.filter(|_| metadata.is_file()).map(|sum: u64| sum + metadata.len());
        files.push(if metadata.is_file() { input(file, inputs).map_err(unread)? } else { stream(file) });
    }
    Ok((files, bytes))
}

fn stream(file: File) -> LogInput {
    (Box::new(file) as Box<dyn Read + Send>).into()
}

/// Looks at the beginning of a regular file, and returns the file. If its newest line is the first one, its lines are
/// read from its end.
fn input(mut file: File, inputs: &Inputs) -> io::Result<LogInput> {
    let mut beginning = Vec::new();
    (&mut file).take(BEGINNING_BYTES as u64).read_to_end(&mut beginning)?;
    match newest_first(&beginning, &inputs.reader) {
        Some(reader) => LogInput::newest_first(file, reader),
        None => {
            file.rewind()?;
            Ok(stream(file))
        }
    }
}

/// Returns the problem that a file cannot be sorted, because its newest line is the first one.
fn newest_is_first(name: &str) -> Problem {
    let message = format!("the log {} has its newest line first", clean(name));
    let help = "turn it around, as `zcat access.log.gz | tac` does, or `jq -c '.[]' log.json | tac` for a JSON array, and give the \
                result with `--log -`. Or raise --out-of-order above the time that the log covers. A plain file of lines is turned \
                around by this command";
    Problem::new(message, help)
}

/// Returns the problem that older lines follow newer ones.
fn steps_back(step: &StepBack, name: &str) -> Problem {
    let StepBack { line, lines, late_s, .. } = step;
    let (name, lines) = (clean(name), count(thousands(*lines), "line"));
    let message = format!(
        "the times go back at {name}:{line}, by up to {late_s} s, and {lines} from there on are older than lines before"
    );
    let help = "join the logs with the oldest first, or name each log with a --log of its own, in any order. Or raise --out-of-order above \
                the time that the log covers";
    Problem::new(message, help)
}

/// Returns lines of the log as a report shows them.
fn samples(samples: &Samples<usize>, file_names: &[String], names: &Names) -> Samples {
    let mut samples = samples.named(|file| file_names.get(*file).cloned().unwrap_or_default());
    samples.hide(names);
    samples
}

/// Returns the problem that no line has the form of the format. Probably the format is wrong, so the first lines are
/// shown.
fn nothing_readable(inputs: &Inputs, counts: &LogCounts, file_names: &[String], names: &Names) -> Problem {
    if counts.unreadable.count == 0 {
        return Problem::new("the log has no lines", "check the files after --log");
    }
    let mut message = format!("no line of the log can be read with the format `{}`:", inputs.format);
    for SampleLine { file, line, why, text } in samples(&counts.unreadable, file_names, names).first {
        message.push_str(&format!("\n{}", clean(&format!("{file}:{line}: {why}"))));
        if let Some(text) = text {
            message.push_str(&format!("\n  {}", clean(&text)));
        }
    }
    Problem::new(
        message,
        format!(
            "choose another --format: {}, or a pattern such as '$remote_addr [$time_local] \"$request\"'",
            FORMATS.join(", ")
        ),
    )
}

impl Progress {
    /// Shows how much of the log was read, but not more often than [`PROGRESS`] says.
    fn show(&mut self, log: &Ordered, terminal: &mut Terminal) {
        let now = Instant::now();
        if now - self.shown < PROGRESS {
            return;
        }
        self.shown = now;
        let lines = log.counts().lines;
        let read = log.bytes_read();
        let share = match self.bytes {
            Some(bytes) if bytes > 0 => {
                let percent = (100.0 * read as f64 / bytes as f64).min(100.0);
                format!("[{}] {percent:.0} %, ", bar(percent))
            }
            _ => String::new(),
        };
        let per_second = lines as f64 / (now - self.begun).as_secs_f64().max(0.001);
        let (lines, per_second) = (thousands(lines), thousands(per_second as u64));
        terminal.progress(&format!("{share}{lines} lines, {per_second} in a second"));
    }
}

/// Returns a bar of 20 characters.
fn bar(percent: f64) -> String {
    let full = (percent / 5.0) as usize;
    format!("{}{}", "#".repeat(full.min(20)), ".".repeat(20 - full.min(20)))
}
