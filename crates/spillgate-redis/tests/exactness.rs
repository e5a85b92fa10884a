//! Several processes take units from one key, each with its own `RedisStore`. Together they get exactly the limit. If
//! several quotas count on one key, all of them together admit no more than the largest quota alone would.

#![allow(clippy::print_stdout, reason = "a process prints how many units it got")]

mod several_quotas;

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::support::server::Server;
use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Store as _, Timing};
use spillgate_redis::{RedisStore, Settings};
use spillgate_testkit::start_bound;
use tokio::runtime::Runtime;

const PROCESSES: usize = 4;
const TASKS: usize = 64;
const TAKES_A_TASK: usize = 10;
const LIMIT: usize = 1000;

/// An environment variable that is set only in the processes that the test starts. Its value is the URL of Redis.
const SERVER: &str = "EXACTNESS_SERVER";
/// Each started process prints this word when it can begin to take units.
const READY: &str = "ready";
/// Each started process prints this word before each number of admitted units.
const ADMITTED: &str = "admitted ";

/// Returns a quota of a thousand units for each algorithm. The units become free again only long after the test.
fn quotas() -> Vec<Quota> {
    let day = Duration::from_secs(86_400);
    let limit = LIMIT as u64;
    let builders = [
        Quota::token_bucket(1, day).burst(limit),
        // One unit is served at once, and `limit - 1` units can wait.
        Quota::leaky_bucket(1, day).queue(limit - 1),
        Quota::fixed_window(limit, day * 365),
        Quota::fixed_window(limit, day).anchor(Anchor::FirstHit),
        Quota::sliding_window_log(limit, day),
        Quota::sliding_window_counter(limit, day * 365),
        Quota::sliding_window_counter(limit, day * 360).segments(10),
        Quota::concurrency(limit).lease(day),
    ];
    builders.map(|builder| builder.build().expect("the quota is valid")).into()
}

#[test]
fn four_processes_of_64_tasks_on_one_key_are_admitted_exactly_the_limit() {
    // A started process runs this same test, but finds the environment variable.
    match std::env::var(SERVER) {
        Ok(url) => take(&url),
        Err(_) => start_and_sum("four_processes_of_64_tasks_on_one_key_are_admitted_exactly_the_limit"),
    }
}

fn start_and_sum(test: &str) {
    let server = Server::start();
    let mut processes: Vec<Process> = (0..PROCESSES).map(|_| Process::start(test, &server.url())).collect();
    for quota in quotas() {
        for process in &mut processes {
            process.hears(READY);
        }
        for process in &mut processes {
            process.stdin.write_all(b"go\n").expect("the process reads its standard input");
        }
        let admitted: Vec<usize> = processes
            .iter_mut()
            .map(|process| process.hears(ADMITTED).parse().expect("the process prints a number"))
            .collect();
        assert_eq!(admitted.iter().sum::<usize>(), LIMIT, "the sum of {admitted:?} must be the limit: {quota:?}");
    }
}

/// A process that runs this program again, with only one test.
struct Process {
    process: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(test: &str, url: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        // The name of the test, without the name of the program: other tests can be in modules of the same program.
        let module = module_path!().split_once("::").map_or_else(String::new, |(_, module)| format!("{module}::"));
        command.args([&format!("{module}{test}"), "--exact", "--nocapture"]).env(SERVER, url);
        let process = start_bound(&command, [Stdio::piped(), Stdio::piped(), Stdio::inherit()]);
        let mut process = process.expect("this program can be started again");
        let stdin = process.stdin.take().expect("the input is a pipe");
        let lines = BufReader::new(process.stdout.take().expect("the output is a pipe")).lines();
        Process { process, stdin, lines }
    }

    /// Returns the text after `word`, from the next line that contains the word. The test harness can print other text
    /// on the same line.
    fn hears(&mut self, word: &str) -> String {
        let lines = self.lines.by_ref().map_while(Result::ok);
        let mut reported = lines.filter_map(|line| line.split_once(word).map(|(_, rest)| rest.to_owned()));
        reported.next().unwrap_or_else(|| panic!("a process ended before it printed {word:?}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// For each quota: waits for a line of input, takes with the quota, and prints how many takes were admitted.
fn take(url: &str) {
    let patience = Duration::from_secs(30);
    let settings = Settings { timeout: patience, connect_timeout: patience, ..Settings::new(url) };
    let (runtime, store) =
        (Runtime::new().expect("the runtime starts"), RedisStore::new(&settings).expect("the URL is valid"));
    runtime.block_on(store.wait_connected()).expect("the server is up");
    for (key, quota) in (1..).zip(quotas()) {
        println!("{READY}");
        std::io::stdin().read_line(&mut String::new()).expect("the process of the test writes a line");
        println!("{ADMITTED}{}", runtime.block_on(admitted(&store, key, &quota)));
    }
}

async fn admitted(store: &RedisStore, key: u128, quota: &Quota) -> usize {
    let task = |store: RedisStore, quota: Quota| async move {
        let mut admitted = 0;
        for _ in 0..TAKES_A_TASK {
            let hits = [Hit::new(key, &quota, Op::Take { cost: 1, max_wait_ns: u64::MAX }, Binding::Enforce)];
            let verdict =
                store.decide(Timing::BY_STORE, &hits, &mut [Decision::default()]).await.expect("the server answers");
            admitted += usize::from(verdict.allowed);
        }
        admitted
    };
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(task(store.clone(), quota.clone()))).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.expect("no task panics");
    }
    sum
}
