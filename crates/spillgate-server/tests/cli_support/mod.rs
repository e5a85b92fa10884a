//! Runs the real binary in a temporary folder, for commands that end by themselves.
//!
//! Every run has a time limit, so a command that never ends makes its test fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use spillgate_testkit::start_bound;
use tempfile::TempDir;

use crate::support::DEADLINE;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A temporary folder with files. The commands of a test run in this folder.
#[derive(Debug)]
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new(files: &[(&str, &str)]) -> Folder {
        let folder = Folder(TempDir::new().expect("a temporary folder can be made"));
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    /// Writes a file. One that exists is replaced in one step, because a server that watches it reads it at any moment.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        let Ok(path) = path.canonicalize() else {
            fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be created");
            return fs::write(path, text).expect("the file can be written");
        };
        let elsewhere = tempfile::NamedTempFile::new_in(std::env::temp_dir()).expect("a file can be made");
        fs::write(elsewhere.path(), text).expect("the file can be written");
        let mode = fs::metadata(&path).expect("the file exists").permissions();
        fs::set_permissions(elsewhere.path(), mode).expect("it is our file");
        elsewhere.persist(path).expect("the file can be replaced");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `spillgate` in this folder. `arguments` are separated by spaces.
    pub(crate) fn run(&self, arguments: &str) -> Output {
        self.run_with(&arguments.split(' ').filter(|a| !a.is_empty()).collect::<Vec<_>>(), &[])
    }

    pub(crate) fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        run(command(self.0.path()).args(arguments).envs(variables.iter().copied()))
    }
}

/// Returns the command `spillgate`. It runs in `folder`, and its environment has no variables that begin with
/// `SPILLGATE_`.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spillgate"));
    command.current_dir(folder).env_remove("NO_COLOR");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SPILLGATE_")) {
        command.env_remove(name);
    }
    command
}

fn run(command: &mut Command) -> Output {
    let child = start_bound(command, [Stdio::null(), Stdio::piped(), Stdio::piped()]).expect("spillgate runs");
    let id = child.id();
    let (send, ended) = channel();
    thread::spawn(move || send.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(DEADLINE) else {
        signal(id, "KILL");
        panic!("{command:?} did not end within {DEADLINE:?}");
    };
    let output = output.expect("the output of the command can be read");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    let code = output.status.code().expect("the command ended by itself");
    Output { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Sends a signal to a process that the test started. `name` has no SIG, for example `HUP`.
pub(crate) fn signal(id: u32, name: &str) {
    let status = Command::new("sh").args(["-c", r#"kill -"$1" "$2""#, "sh", name, &id.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "the signal {name} cannot be sent to {id}");
}

/// Returns the lines of a text without the spaces at the end of each line.
pub(crate) fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).collect()
}
