//! A child process that ends at the latest when its test ends, even if the test is killed. Its output is read while it runs.
//!
//! If no code read the output, the pipe would become full, and the process would wait forever when it writes to the
//! pipe. If a process ran after its test, it would disturb the next test.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use spillgate_testkit::start_bound;

use super::DEADLINE;

/// How many of the last lines of stderr are kept. These lines explain a failure.
const KEPT_LINES: usize = 100;
/// How many lines of stdout can wait until the test reads them.
const WAITING_LINES: usize = 4096;
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    /// Receives the lines of stdout. The channel is closed when the process has ended.
    stdout: Receiver<String>,
    stderr: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Process {
        Process::start_with(name, command, Stdio::piped())
    }

    /// Starts a process with this stderr. If it is not [`Stdio::piped`], [`Process::stderr`] is empty.
    pub(crate) fn start_with(name: &'static str, command: &mut Command, stderr: Stdio) -> Process {
        let child = start_bound(command, [Stdio::null(), Stdio::piped(), stderr]);
        let mut child = child.unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let (send, stdout) = sync_channel(WAITING_LINES);
        // If too many lines wait, new lines are dropped. So the process never has to wait for a full pipe.
        lines(child.stdout.take().expect("stdout is piped"), move |line| drop(send.try_send(line)));
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&stderr);
        if let Some(pipe) = child.stderr.take() {
            lines(pipe, move |line| {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() == KEPT_LINES {
                    kept.pop_front();
                }
                kept.push_back(line);
            });
        }
        Process { name, child, stdout, stderr }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a running process has memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("the size is a whole number") * 1024
    }

    /// Returns the next line of stdout. Returns `None` if the process has closed stdout.
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

    /// Returns the last lines of stderr, at most [`KEPT_LINES`].
    pub(crate) fn stderr(&self) -> Vec<String> {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Waits for a line of stderr that contains `text`, and returns the first one.
    pub(crate) fn logged(&self, text: &str) -> String {
        super::eventually(&format!("the log contains `{text}`"), || {
            self.stderr().into_iter().find(|line| line.contains(text))
        })
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM. After this signal, spillgate finishes its requests and ends.
    pub(crate) fn terminate(&self) {
        // The standard library can send only SIGKILL.
        let status = Command::new("sh").args(["-c", r#"kill -TERM "$1""#, "sh", &self.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "SIGTERM cannot be sent to {}", self.name);
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Waits until the process ends by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        super::eventually(&format!("{} ends", self.name), || self.child.try_wait().expect("a child can be waited for"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            if !thread::panicking() {
                self.terminate();
                // Stdout is closed when the process ends.
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
