//! Runs the code blocks of a page as a reader would: in one folder, in the order of the page, with real servers.
//!
//! The folder is new. It has links to the folders `examples` and `deploy` of the repository. In commands and files, the
//! ports of the page are replaced by free ports. In the output of commands and servers, the free ports are replaced by
//! the ports of the page. A server runs until the page ends, or until the page starts another server on the same port.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::loose;
use super::page::{Block, quotes};
use spillgate_testkit::free_port;

use crate::support::process::Process;
use crate::support::{eventually, root};

/// The ports in the commands and texts of the pages.
const PORTS: [u16; 10] = [8080, 8081, 6070, 6379, 8090, 8100, 6071, 6072, 6380, 6381];

/// After this many seconds, the commands of a block are ended. They are a hundred times faster, unless a command waits for
/// something that never comes.
const BLOCK_SECONDS: &str = "300";

#[derive(Debug)]
pub(crate) struct Session {
    folder: TempDir,
    ports: BTreeMap<u16, u16>,
    /// The running servers. The key is the port on which a server listens.
    servers: BTreeMap<u16, Process>,
    /// The process id of the `spillgate serve` that was started last.
    last_server: Option<u32>,
}

impl Session {
    pub(crate) fn start() -> Session {
        let folder = TempDir::new().expect("a temporary folder can be made");
        for name in ["examples", "deploy"] {
            symlink(root().join(name), folder.path().join(name)).expect("the link can be made");
        }
        let ports = PORTS.iter().map(|port| (*port, free_port())).collect();
        let session = Session { folder, ports, servers: BTreeMap::new(), last_server: None };
        fs::create_dir(session.bin()).expect("the folder can be made");
        session.write_program("spillgate", &format!("exec {} \"$@\"\n", env!("CARGO_BIN_EXE_spillgate")));
        let redis = session.ports[&6379];
        session.write_program("redis-cli", &format!("exec redis-cli -p {redis} \"$@\"\n"));
        let folder = session.folder.path().display();
        let bind = format!("--port {redis} --bind 127.0.0.1 --dir {folder}");
        session.write_program("redis-server", &format!("exec redis-server {bind} \"$@\"\n"));
        fs::write(session.bin().join(".curlrc"), "silent\nshow-error\nnoproxy = \"*\"\n")
            .expect("the file can be written");
        session
    }

    /// Runs all blocks. If something differs from the page, the error says what differs.
    pub(crate) fn run(&mut self, blocks: &[Block]) -> Result<(), String> {
        for (at, block) in blocks.iter().enumerate() {
            let next = blocks.get(at + 1).filter(|next| next.language == "text" && next.not_run.is_none());
            self.run_block(block, next).map_err(|error| format!("line {}: {error}", block.line))?;
        }
        Ok(())
    }

    fn run_block(&mut self, block: &Block, next: Option<&Block>) -> Result<(), String> {
        if block.not_run.is_some() {
            return Ok(());
        }
        if let Some(from) = &block.from {
            let file = fs::read_to_string(root().join(from)).map_err(|error| format!("{from}: {error}"))?;
            return if quotes(&file, &block.text) {
                Ok(())
            } else {
                Err(format!("{from} does not contain the lines of this block"))
            };
        }
        if let Some(name) = block.file_name() {
            let path = self.folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be made");
            fs::write(path, self.to_free_ports(&block.text)).expect("the file can be written");
        }
        if block.language == "text" && block.text.trim() == "..." {
            return Err("this block has only `...`, so it would match any output".to_owned());
        }
        match &*block.language {
            "sh" if block.file_name().is_none() => {
                let printed = self.run_commands(block)?;
                let difference = next.and_then(|shown| loose::difference(&shown.text, &printed));
                difference.map_or(Ok(()), Err)
            }
            "yaml" => self.validate(block),
            "json" => serde_json::from_str::<serde_json::Value>(&block.text).map(|_| ()).map_err(|e| e.to_string()),
            "sh" | "text" | "rust" | "rust,no_run" | "python" => Ok(()),
            other => {
                Err(format!("session.rs cannot test a block of `{other}`: add a test, or `<!-- not run: REASON -->`"))
            }
        }
    }

    /// Checks a block of YAML with `spillgate validate`. A block with a line `domain:` has rules. Any other block has settings.
    fn validate(&self, block: &Block) -> Result<(), String> {
        let name = block.file_name().unwrap_or("block.yaml");
        fs::write(self.folder.path().join(name), self.to_free_ports(&block.text)).expect("the file can be written");
        let is_rules = block.text.lines().any(|line| line.starts_with("domain:"));
        let arguments = if is_rules { name.to_owned() } else { format!("--config {name} examples/quickstart.yaml") };
        let (code, printed) = self.bash(&format!("spillgate validate {arguments}"));
        if code == block.exit {
            Ok(())
        } else {
            Err(format!("`spillgate validate` ended with exit code {code}:\n{printed}"))
        }
    }

    fn run_commands(&mut self, block: &Block) -> Result<String, String> {
        let text = block.text.replace("cargo run --release --", "spillgate");
        let (mut printed, mut script, mut code) = (String::new(), String::new(), 0);
        for line in logical_lines(&text).chain([String::new()]) {
            let is_server = line.starts_with("spillgate serve ") || line.starts_with("redis-server");
            if (is_server || line.is_empty()) && !script.is_empty() {
                let (ended, text) = self.bash(&std::mem::take(&mut script));
                (code, printed) = (ended, printed + &text);
                if code != 0 && !line.is_empty() {
                    return Err(format!("a command ended with exit code {code}:\n{printed}"));
                }
            }
            match line {
                line if is_server => self.start_server(&line, &mut printed),
                line => {
                    script.push_str(&line);
                    script.push('\n');
                }
            }
            if script == "\n" {
                script.clear();
            }
        }
        if code == block.exit { Ok(printed) } else { Err(format!("a command ended with exit code {code}:\n{printed}")) }
    }

    /// Starts a server, and waits until it is ready. If the server is spillgate, `printed` gets the lines that the
    /// server prints until then.
    fn start_server(&mut self, line: &str, printed: &mut String) {
        let line = line.trim_end_matches('&').trim_end();
        let is_redis = line.starts_with("redis-server");
        let (flag, usual) = if is_redis { (" --port ", 6379) } else { (" --http ", 8080) };
        let named = line.split(flag).nth(1).and_then(|rest| rest.split(' ').next()?.rsplit(':').next()?.parse().ok());
        let port = named.unwrap_or(usual);
        if let Some(mut before) = self.servers.remove(&port) {
            before.terminate();
            before.wait();
        }
        let mut command = self.command("bash");
        command.args(["-c", &format!("exec {}", self.to_free_ports(line))]);
        let name = if is_redis { "redis-server" } else { "spillgate" };
        let process = Process::start(name, &mut command);
        if is_redis {
            let ping = format!("redis-cli -p {port} ping");
            // A server whose user `default` is off answers, too.
            let answers = |text: &str| text.starts_with("PONG") || text.starts_with("NOAUTH");
            eventually("redis-server", || answers(&self.bash(&ping).1).then_some(()));
        } else {
            self.last_server = Some(process.id());
            while let Some(line) = process.line() {
                let _ = writeln!(printed, "{}", self.to_ports_of_the_page(&line));
                if line.starts_with("  store") {
                    break;
                }
            }
        }
        self.servers.insert(port, process);
    }

    fn bash(&self, script: &str) -> (i32, String) {
        let script = format!("exec 2>&1\nset -eu -o pipefail\n{}", self.to_free_ports(script));
        let mut command = self.command("timeout");
        let output = command.args([BLOCK_SECONDS, "bash", "-c", &script]).stdin(Stdio::null()).output();
        let output = output.expect("bash runs");
        let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        (output.status.code().unwrap_or(-1), self.to_ports_of_the_page(&text))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SPILLGATE_")) {
            command.env_remove(name);
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let python = root().join("target/venv/rls/bin");
        command.env("PATH", format!("{}:{}:{path}:/usr/sbin", self.bin().display(), python.display()));
        for (name, port) in [("HTTP", 8080), ("GRPC", 8081), ("ADMIN", 6070)] {
            command.env(format!("SPILLGATE_{name}"), format!("127.0.0.1:{}", self.ports[&port]));
        }
        // Commands for operators ask the usual port if the page names none.
        command.env("SPILLGATE_ADMIN_URL", format!("http://127.0.0.1:{}", self.ports[&6070]));
        if self.servers.contains_key(&6379) {
            // On a busy machine the store can answer late, so the deadline is longer than the default.
            command.env("SPILLGATE_STORE_DEADLINE", "5s");
        }
        let server = self.last_server.map(|id| id.to_string()).unwrap_or_default();
        command
            .env("PID", server)
            .env("CURL_HOME", self.bin())
            .env("NO_COLOR", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command.env_remove("PYTHONPATH").current_dir(self.folder.path());
        command
    }

    /// Returns the folder for the programs of `write_program`. It is inside the folder of the page's files.
    fn bin(&self) -> PathBuf {
        self.folder.path().join(".bin")
    }

    /// Writes a program with the lines of `script`. The commands of a page then run this program instead of the
    /// system's program with the same name. The program removes its own folder from `PATH`, so that `script` can run
    /// the system's program.
    fn write_program(&self, name: &str, script: &str) {
        let bin = self.bin().display().to_string();
        let path = self.bin().join(name);
        let without = format!("#!/bin/bash\nPATH=\"${{PATH#{bin}:}}\"\n{script}");
        fs::write(&path, without).expect("the file can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file can be made executable");
    }

    fn to_free_ports(&self, text: &str) -> String {
        let replace = |text: String, (page, free): (&u16, &u16)| replace_number(&text, *page, *free);
        self.ports.iter().fold(text.to_owned(), replace)
    }

    fn to_ports_of_the_page(&self, text: &str) -> String {
        let replace = |text: String, (page, free): (&u16, &u16)| replace_number(&text, *free, *page);
        self.ports.iter().fold(text.to_owned(), replace)
    }
}

/// Returns the lines of a script. If a line ends with a backslash, it is joined with the next line.
fn logical_lines(text: &str) -> impl Iterator<Item = String> {
    let text = text.replace("\\\n", " ");
    let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    lines.into_iter()
}

/// Replaces the number `from` by the number `to` in a text. Digits that are only part of a longer number stay.
fn replace_number(text: &str, from: u16, to: u16) -> String {
    let (from, to) = (from.to_string(), to.to_string());
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(&from) {
        let after = &rest[at + from.len()..];
        let is_whole = !is_digit(rest[..at].chars().next_back()) && !is_digit(after.chars().next());
        done.push_str(&rest[..at]);
        done.push_str(if is_whole { &to } else { &from });
        rest = after;
    }
    done + rest
}
