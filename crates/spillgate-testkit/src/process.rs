//! Starts processes that end with the test program at the latest. On Linux, they end even if the test program is killed.
//!
//! A test ends its processes when it drops them. But nothing is dropped if the test program is killed, for example
//! because it took too long. The processes would then run on and slow down every later test.

use std::env;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread;

/// A command to start, and the channel to which the started process is sent.
type Order = (Command, SyncSender<io::Result<Child>>);

/// The thread that starts all processes. Linux kills a process when the *thread* that started it ends, and the threads
/// of tests end earlier than the processes that they share. This thread ends together with the test program.
static STARTER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (send, orders) = channel::<Order>();
    thread::spawn(move || {
        for (mut command, started) in orders {
            drop(started.send(command.spawn()));
        }
    });
    send
});

/// Whether `setpriv` can make a process end with the thread that started it. `setpriv` belongs to util-linux: almost
/// every Linux has it, and no other system has it.
static CAN_BIND: LazyLock<bool> = LazyLock::new(|| {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
});

/// Starts a process with this stdin, stdout and stderr. Linux kills the process when the test program ends. From
/// `command`, only the program, the arguments, the variables and the folder are used.
///
/// # Errors
/// Returns an error if the process cannot be started.
///
/// # Panics
/// Panics if the system cannot start threads.
pub fn start_bound(command: &Command, [stdin, stdout, stderr]: [Stdio; 3]) -> io::Result<Child> {
    // A missing program is started without setpriv, so that the caller gets the usual error.
    let mut bound = if *CAN_BIND && is_installed(command) {
        // setpriv replaces itself with the program, so the process id is that of the program.
        let mut bound = Command::new("setpriv");
        bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program());
        bound
    } else {
        Command::new(command.get_program())
    };
    bound.args(command.get_args()).stdin(stdin).stdout(stdout).stderr(stderr);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        bound.current_dir(folder);
    }
    let (send, started) = sync_channel(1);
    STARTER.send((bound, send)).expect("the thread that starts processes runs as long as the test program");
    started.recv().expect("the thread that starts processes answers")
}

fn is_installed(command: &Command) -> bool {
    let program = Path::new(command.get_program());
    if program.components().count() > 1 {
        return !program.is_absolute() || program.exists();
    }
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|folder| folder.join(program).exists())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::*;
    use crate::eventually;

    /// Set only in the process that the test starts and kills.
    const KILLED: &str = "TESTKIT_KILLED";

    #[test]
    fn a_process_outlives_the_thread_that_asked_for_it_and_ends_when_the_test_program_is_killed() {
        let sleep = || {
            let mut command = Command::new("sleep");
            start_bound(command.arg("1000"), [Stdio::null(), Stdio::null(), Stdio::null()]).expect("sleep starts")
        };
        if env::var_os(KILLED).is_some() {
            let mut sleeping = thread::spawn(sleep).join().expect("the thread does not panic");
            println!("\nsleeps {}", sleeping.id());
            drop(sleeping.wait());
            return;
        }
        if !*CAN_BIND {
            return;
        }
        let test = thread::current().name().expect("a test has a name").to_owned();
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.args([&test, "--exact", "--nocapture"]).env(KILLED, "1");
        let mut killed = start_bound(&command, [Stdio::null(), Stdio::piped(), Stdio::null()]).expect("it starts");
        let mut lines = BufReader::new(killed.stdout.take().expect("stdout is piped")).lines().map_while(Result::ok);
        let sleeping = lines.find_map(|line| Some(line.strip_prefix("sleeps ")?.to_owned())).expect("it prints an id");
        let stat = || std::fs::read_to_string(format!("/proc/{sleeping}/stat")).unwrap_or_default();
        // As long as the process is still setpriv, it may not yet have asked Linux to end it.
        eventually("it is sleep, although the thread that asked for it has ended", || {
            stat().contains(" (sleep) ").then_some(())
        });
        // A process that has ended keeps its id, with the state Z, until its parent has waited for it.
        let state = || stat().rsplit_once(") ").map(|(_, rest)| rest[..1].to_owned());
        killed.kill().expect("it runs");
        killed.wait().expect("it ends");
        eventually("it is killed too", || state().is_none_or(|state| state == "Z").then_some(()));
    }
}
