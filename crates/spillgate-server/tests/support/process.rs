//! A child process whose output is read as it comes, and that never outlives its test.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::DEADLINE;

/// What of a process's stderr is kept to explain a failure.
const KEPT_LINES: usize = 100;
/// Lines of stdout that may wait to be read.
const WAITING_LINES: usize = 4096;
/// How long SIGTERM is given before SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    /// Lines of stdout; closed when the process has ended.
    stdout: Receiver<String>,
    stderr: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Process {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let (send, stdout) = sync_channel(WAITING_LINES);
        // A line that nobody reads is dropped: a full pipe must not stop the process.
        lines(child.stdout.take().expect("piped"), move |line| drop(send.try_send(line)));
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&stderr);
        lines(child.stderr.take().expect("piped"), move |line| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == KEPT_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        });
        Process { name, child, stdout, stderr }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its resident memory.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("a running process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a running process has a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a whole number") * 1024
    }

    /// The next line of stdout; `None` if the process closed it.
    pub(crate) fn line(&self) -> Option<String> {
        self.line_within(DEADLINE)
    }

    pub(crate) fn line_within(&self, deadline: Duration) -> Option<String> {
        match self.stdout.recv_timeout(deadline) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("{} printed no line within {deadline:?}", self.name),
        }
    }

    /// The lines of stderr so far, the last of them at most.
    pub(crate) fn stderr(&self) -> Vec<String> {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The first line of stderr with `text` in it.
    pub(crate) fn logged(&self, text: &str) -> String {
        super::eventually(&format!("`{text}` in the log"), || {
            self.stderr().into_iter().find(|line| line.contains(text))
        })
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGTERM, which a well-behaved server answers by draining.
    pub(crate) fn terminate(&self) {
        // The standard library sends SIGKILL only.
        let status = Command::new("sh").args(["-c", r#"kill -TERM "$1""#, "sh", &self.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "{} cannot be told to stop", self.name);
    }

    /// SIGKILL: gone without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Waits until the process ends by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        super::eventually(&format!("the end of {}", self.name), || {
            self.child.try_wait().expect("a child can be waited for")
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            if !thread::panicking() {
                self.terminate();
                // The end of stdout is the end of the process.
                while self.stdout.recv_timeout(GRACE).is_ok() {}
            }
            drop(self.child.kill());
            drop(self.child.wait());
        }
        if thread::panicking() {
            for line in self.stderr() {
                eprintln!("{}: {line}", self.name);
            }
        }
    }
}

fn lines(pipe: impl Read + Send + 'static, mut each: impl FnMut(String) + Send + 'static) {
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            match line {
                Ok(line) => each(line),
                Err(_) => break,
            }
        }
    });
}
