//! Runs each example, and checks that it does what its comments say.
//!
//! `cargo test` builds the examples before it runs these tests. `cargo test --test main` does not build them.

#![allow(clippy::disallowed_methods, reason = "the examples have real clocks, so a test measures how long they ran")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use spillgate_testkit::{RedisServer, start_bound};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Returns a command that runs an example, which must have been built.
fn program(name: &str) -> Command {
    let test = std::env::current_exe().expect("this test has a path");
    let folder: PathBuf = test.parent().and_then(|deps| deps.parent()).expect("it is in target").join("examples");
    let program = folder.join(name);
    assert!(program.exists(), "{} is missing; build it with `cargo build -p spillgate --examples`", program.display());
    Command::new(program)
}

fn run(name: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = program(name).args(arguments).output().expect("the example was built");
    assert!(status.success(), "{name}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("the output is text")
}

/// An example that serves until it is dropped.
struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    fn start(name: &str) -> Serving {
        let process = start_bound(program(name).arg("127.0.0.1:0"), [Stdio::null(), Stdio::piped(), Stdio::inherit()]);
        let mut process = process.expect("the example was built");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("the output is read");
        BufReader::new(stdout).read_line(&mut line).expect("the example prints its address");
        let address = line.trim().strip_prefix("listening on ").expect("the address").to_owned();
        Serving { process, address }
    }

    /// Sends a request over HTTP/1.1 and returns the answer as text.
    fn request(&self, head: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("the example listens");
        write!(stream, "{head}\r\nhost: example\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs an example until `is_right` accepts its output, at most ten times. Examples have real clocks. On a busy
/// machine, so much time can pass that a limit admits more.
fn run_until(name: &str, is_right: impl Fn(&str) -> bool) -> String {
    let mut output = String::new();
    for _ in 0..10 {
        output = run(name, &[]);
        if is_right(&output) {
            break;
        }
    }
    output
}

#[test]
fn axum() {
    // The limit gets one more request each second. On a busy machine, the requests of the test can take longer than a
    // second, so the test tries again.
    for attempt in 1.. {
        let begun = Instant::now();
        let failed = std::panic::catch_unwind(axum_limits_each_client).err();
        let Some(failed) = failed else { return };
        if begun.elapsed() < Duration::from_secs(1) || attempt == 10 {
            std::panic::resume_unwind(failed);
        }
    }
}

fn axum_limits_each_client() {
    let server = Serving::start("axum");
    for left in (0..5).rev() {
        let answer = server.request("GET / HTTP/1.1");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(&format!("you have {left} requests left")), "{answer}");
        assert!(answer.contains("ratelimit-policy: \"client\";q=1;w=1"), "{answer}");
    }
    let refused = server.request("GET / HTTP/1.1\r\nx-forwarded-for: 203.0.113.9");
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n") && refused.contains("quota-exceeded"), "{refused}");
}

#[test]
fn a_client_of_the_axum_example_does_not_choose_its_limit_of_exports() {
    let server = Serving::start("axum");
    for (customer, expected) in [("a", 200), ("b", 200), ("c", 429)] {
        let answer = server.request(&format!("POST /export HTTP/1.1\r\nx-customer: {customer}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{answer}");
    }
}

#[tokio::test]
async fn tonic() {
    let server = Serving::start("tonic");
    let endpoint = tonic::transport::Endpoint::try_from(format!("http://{}", server.address)).expect("an address");
    let mut client = HealthClient::new(endpoint.connect().await.expect("the example listens"));
    for _ in 0..3 {
        client.check(HealthCheckRequest::default()).await.expect("the call passes");
    }
    let refused = client.check(HealthCheckRequest::default()).await.expect_err("the fourth call is refused");
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert_eq!(refused.message(), "the limit is used up");
    assert!(!refused.details().is_empty(), "the details have the time to wait");
}

#[test]
fn redis_fleet() {
    let redis = RedisServer::start();
    let url = redis.url();
    let begun = Instant::now();
    let programs = std::thread::scope(|scope| {
        [(), ()].map(|()| scope.spawn(|| run("redis_fleet", &[&url]))).map(|program| program.join().expect("it ends"))
    });
    let jobs = programs.iter().map(|output| {
        let text =
            output.strip_prefix("this program did ").and_then(|rest| rest.split_once(" jobs")).expect("a number").0;
        text.parse::<u64>().expect("a number")
    });
    let jobs: u64 = jobs.sum();
    // The limit gets one more job every six seconds.
    let most = 10 + begun.elapsed().as_secs() / 6;
    assert!((10..=most).contains(&jobs), "{jobs} jobs, at most {most}: {programs:?}");
    assert!(programs.iter().any(|output| output.contains("this program cleans up")), "{programs:?}");
}

#[test]
fn plans_per_user() {
    let output = run_until("plans_per_user", |output| output.contains("try again in Some(20) s"));
    let answers: Vec<&str> = output.lines().collect();
    assert_eq!(
        answers,
        [
            "user 7 (Free): passes, 2 left",
            "user 7 (Free): passes, 1 left",
            "user 7 (Free): passes, 0 left",
            "user 7 (Free): refused, try again in Some(20) s",
            "user 7 (Pro): passes, 26 left",
            "user 8 (Free): passes, 2 left",
        ]
    );
}

#[test]
fn login_guard() {
    let output = run("login_guard", &[]);
    let answers: Vec<&str> = output.lines().collect();
    assert_eq!(answers[4], "attempt 5: WrongPassword");
    assert!(answers[5].starts_with("attempt 6: TryLater"), "{output}");
    assert!(answers[6].starts_with("the right password, too late: TryLater"), "{output}");
    assert_eq!(answers[7], "another account: Welcome");
    assert_eq!(answers[8], "a client with 100 addresses of one network tried 20 passwords");
}

#[test]
fn llm_tokens() {
    let output = run("llm_tokens", &[]);
    let answers: Vec<&str> = output.lines().collect();
    assert_eq!(answers[..2], ["red used 505 tokens; left: Some(9495)", "red used no tokens"]);
    let of = |text: &str| answers[2..].iter().filter(|line| line.starts_with(text)).count();
    assert_eq!((answers.len(), of("red waits: "), of("red used 503 tokens; ")), (5, 1, 2), "{output}");
}

#[test]
fn outbound() {
    // A busy machine can wake the example so late that the next turn comes within 10 ms.
    let output = run_until("outbound", |output| output.contains("too late"));
    let answers: Vec<&str> = output.lines().collect();
    assert_eq!(answers.iter().filter(|line| line.ends_with(" calls")).count(), 8, "{output}");
    assert_eq!(answers[8], "eight calls took at least 0.7 s: true");
    assert_eq!(answers[9..], ["a caller with 10 ms learns at once that it is too late"]);
}
