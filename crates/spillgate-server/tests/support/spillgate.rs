//! Runs the real binary on free loopback ports.
//!
//! Tests run at the same time, so a test must not use a fixed port.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::process::Process;

/// How long a test waits until a server is ready. With many rules, a busy machine needs long.
const START: Duration = Duration::from_secs(300);

/// Arguments of a server with another region, which it never reaches.
pub(crate) const REGIONS: [&str; 6] =
    ["--regions-name", "eu", "--regions-peers", "us=redis://127.0.0.1:1", "--regions-default", "each"];

#[derive(Debug)]
pub(crate) struct Spillgate {
    pub(crate) process: Process,
    /// The line that `serve --json` prints when it is ready.
    pub(crate) ready: Value,
}

impl Spillgate {
    /// Starts a server with `rules`, and returns when all its listeners are open. By default, each listener is on a
    /// free port. `arguments` can choose other addresses.
    pub(crate) fn serve(rules: &Path, arguments: &[&str]) -> Spillgate {
        Spillgate::serve_with(rules, arguments, Stdio::piped())
    }

    /// Starts a server with this stderr.
    pub(crate) fn serve_with(rules: &Path, arguments: &[&str], stderr: Stdio) -> Spillgate {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spillgate"));
        command.arg("serve").arg(rules).arg("--json");
        for listener in ["--http", "--grpc", "--admin"] {
            if !arguments.iter().any(|argument| argument.split('=').next() == Some(listener)) {
                command.args([listener, "127.0.0.1:0"]);
            }
        }
        // A test that watches says so. In all others, only a signal or a request reloads.
        if !arguments.contains(&"--watch") {
            command.args(["--watch", "off"]);
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SPILLGATE_")) {
            command.env_remove(name);
        }
        let process = Process::start_with("spillgate", command.args(arguments), stderr);
        let Some(line) = process.line_within(START) else { panic!("spillgate ended before it was ready") };
        let ready =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("the ready line is not JSON ({error}): {line}"));
        Spillgate { process, ready }
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.listener("http")
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        self.listener("grpc")
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.listener("admin")
    }

    pub(crate) fn health(&self) -> SocketAddr {
        self.listener("health")
    }

    fn listener(&self, name: &str) -> SocketAddr {
        let address = self.ready[name].as_str().and_then(|address| address.parse().ok());
        address.unwrap_or_else(|| panic!("the server has no {name} listener: {}", self.ready))
    }
}
