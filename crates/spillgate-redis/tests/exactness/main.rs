//! Several processes take from one key, each with its own store. Together they are admitted exactly the limit. If
//! several quotas count on one key, together they admit what the largest quota admits.

#![allow(clippy::print_stdout, reason = "a process tells the one that started it what it was admitted")]

#[path = "../transport/server.rs"]
#[allow(dead_code, reason = "nothing is killed or frozen here")]
mod server;
mod several_quotas;

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use server::Server;
use spillgate_core::{Anchor, Binding, Decision, Hit, Op, Quota, Store as _, Timing};
use spillgate_redis::{RedisStore, Settings};
use tokio::runtime::Runtime;

const PROCESSES: usize = 4;
const TASKS: usize = 64;
const TAKES_A_TASK: usize = 10;
const LIMIT: usize = 1000;

/// An environment variable that is set only in the processes that take. It is the URL of the server.
const SERVER: &str = "EXACTNESS_SERVER";
/// The words that these processes print: the first when they are ready, the second before each number of admitted
/// units.
const READY: &str = "ready";
const ADMITTED: &str = "admitted ";

/// Returns a quota of a thousand units for each algorithm. The units become free again only long after the test.
fn quotas() -> Vec<Quota> {
    let day = Duration::from_secs(86_400);
    let limit = LIMIT as u64;
    let builders = [
        Quota::token_bucket(1, day).burst(limit),
        // The queue serves one unit while the others wait.
        Quota::leaky_bucket(1, day).queue(limit - 1),
        Quota::fixed_window(limit, day * 365),
        Quota::fixed_window(limit, day).anchor(Anchor::FirstHit),
        Quota::sliding_window_log(limit, day),
        Quota::sliding_window_counter(limit, day * 365),
        Quota::sliding_window_counter(limit, day * 360).segments(10),
        Quota::concurrency(limit).lease(day),
    ];
    builders.map(|builder| builder.build().expect("valid")).into()
}

#[test]
fn four_processes_of_64_tasks_on_one_key_are_admitted_exactly_the_limit() {
    // The processes that are started run this same test, with the environment variable.
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
            process.stdin.write_all(b"go\n").expect("it waits");
        }
        let admitted: Vec<usize> =
            processes.iter_mut().map(|process| process.hears(ADMITTED).parse().expect("a number")).collect();
        assert_eq!(admitted.iter().sum::<usize>(), LIMIT, "{admitted:?} by {quota:?}");
    }
}

/// A process that runs this program again, with only that test.
struct Process {
    process: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(test: &str, url: &str) -> Process {
        let mut process = Command::new(std::env::current_exe().expect("this program has a path"))
            .args([test, "--exact", "--nocapture"])
            .env(SERVER, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs once more");
        let stdin = process.stdin.take().expect("piped");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Process { process, stdin, lines }
    }

    /// Returns the text after `word` on the next line that contains it. The test harness prints other text around it.
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

/// Waits for the start word. Then takes with each quota, and prints how many takes were admitted.
fn take(url: &str) {
    let patience = Duration::from_secs(30);
    let settings = Settings { timeout: patience, connect_timeout: patience, ..Settings::new(url) };
    let (runtime, store) = (Runtime::new().expect("a runtime"), RedisStore::new(&settings).expect("an address"));
    runtime.block_on(store.wait_connected()).expect("the server is up");
    for (key, quota) in (1..).zip(quotas()) {
        println!("{READY}");
        std::io::stdin().read_line(&mut String::new()).expect("the other process waits");
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
