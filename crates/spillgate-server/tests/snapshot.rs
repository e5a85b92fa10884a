//! Tests of restarts of `spillgate serve` with a snapshot: after a signal to end, after a crash, and with an invalid file.
//!
//! If a restart lost the counts, every client could use its whole limit again.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use crate::cli_support::Folder;
use crate::support::process::Process;
use crate::support::spillgate::Spillgate;
use crate::support::{DEADLINE, eventually, http};
use serde_json::{Value, json};

const RULES: &str = "
domain: api
descriptors:
  - {key: window, rate_limit: {unit: year, requests_per_unit: 100000}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 5000}}
  - {key: counter, rate_limit: {algorithm: sliding_window_counter, unit: year, requests_per_unit: 5000}}
  - {key: log, rate_limit: {algorithm: sliding_window_log, unit: year, requests_per_unit: 5000}}
  - {key: strict, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 1, penalty: 1h}}
";

struct Served {
    folder: Folder,
}

impl Served {
    fn new() -> Served {
        Served { folder: Folder::new(&[("rules.yaml", RULES)]) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path("state")
    }

    fn serve(&self, interval: &str) -> Spillgate {
        let path = self.path();
        let path = path.to_str().expect("the path is UTF-8");
        let arguments = ["--memory-snapshot-path", path, "--memory-snapshot-interval", interval, "--grpc=off"];
        Spillgate::serve(&self.folder.path("rules.yaml"), &arguments)
    }
}

fn post(server: &Spillgate, path: &str, body: &Value) -> Value {
    let answer = http::request(server.http(), "POST", path, &[], &body.to_string()).expect("the server answers");
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// Sends one more request. Returns the units that remain after this request.
fn check(server: &Spillgate, key: &str, value: &str) -> u64 {
    let answer = post(server, "/v1/check", &json!({"domain": "api", "descriptors": [{key: value}]}));
    answer["remaining"].as_u64().unwrap_or_else(|| panic!("the answer has no `remaining`: {answer}"))
}

fn metric(server: &Spillgate, name: &str) -> u64 {
    let text = http::get(server.admin(), "/metrics", &[]).body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("`/metrics` has no {name}: {text}"))
}

fn logged(process: &Process, text: &str) -> String {
    eventually(&format!("the log contains `{text}`"), || process.stderr().into_iter().find(|line| line.contains(text)))
}

/// Waits until the server has begun and completed a snapshot after this call.
fn next_snapshot(server: &Spillgate) {
    let before = metric(server, "spillgate_snapshots_total");
    // If the server is writing a snapshot now, this snapshot began before the call. So this function waits until two more
    // snapshots are written.
    eventually("two more snapshots are written", || {
        (metric(server, "spillgate_snapshots_total") >= before + 2).then_some(())
    });
}

#[test]
fn a_terminated_server_loses_no_counts() {
    let served = Served::new();
    let mut server = served.serve("1h");
    let used = 37;
    for i in 0..used {
        assert_eq!(check(&server, "window", "a"), 99_999 - i);
        for key in ["bucket", "counter", "log"] {
            assert_eq!(check(&server, key, "a"), 4_999 - i);
        }
    }
    (0..2).for_each(|_| _ = check(&server, "strict", "a"));
    let permits = json!({"bucket": "jobs", "key": "a", "limit": 3, "algorithm": "concurrency", "lease_ms": 3_600_000});
    let lease = post(&server, "/v1/hit", &permits);
    assert_eq!((&lease["allowed"], &lease["remaining"]), (&json!(true), &json!(2)), "{lease}");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
    logged(&server.process, "a restart keeps all counts");
    assert_eq!(fs::metadata(served.path()).expect("the snapshot exists").permissions().mode() & 0o777, 0o600);

    let server = served.serve("1h");
    let line = logged(&server.process, "counts restored from the snapshot");
    assert!(line.contains("entries=6 stale=0"), "{line}");
    assert_eq!(check(&server, "window", "a"), 99_999 - used);
    for key in ["bucket", "counter", "log"] {
        assert_eq!(check(&server, key, "a"), 4_999 - used, "{key}");
    }
    assert_eq!(check(&server, "window", "b"), 99_999, "the key b was not used before the restart");
    let strict = post(&server, "/v1/check", &json!({"domain": "api", "descriptors": [{"strict": "a"}]}));
    let wait_ms = strict["retry_after_ms"].as_u64().expect("the answer has a wait");
    assert!(
        (60_001..=3_600_000).contains(&wait_ms),
        "without the penalty of one hour, the wait would be at most one minute: {strict}"
    );
    // Leases are restored too, and a client can still release a lease from before the restart.
    assert_eq!(post(&server, "/v1/hit", &permits)["remaining"], 1);
    let released = post(&server, "/v1/release", &json!({"lease_id": lease["lease_id"]}));
    assert_eq!(post(&server, "/v1/hit", &permits)["remaining"], 1, "{released}");
    println!("SIGTERM: {used} requests with each of four algorithms, a penalty and a lease: 0 lost");
}

#[test]
fn a_killed_server_loses_at_most_the_counts_since_the_last_snapshot() {
    let served = Served::new();
    let (mut used_least, mut used_most, mut lost) = (0, 0, 0);
    for round in 0..5 {
        let mut server = served.serve("200ms");
        for _ in 0..50 {
            check(&server, "window", "a");
        }
        used_least += 50;
        next_snapshot(&server);
        let used_then = 99_999 - check(&server, "window", "a");
        let since = 20 * round;
        for _ in 0..since {
            check(&server, "window", "a");
        }
        used_most = used_then + 1 + since;
        server.process.kill();

        let mut server = served.serve("1h");
        let used = 99_999 - check(&server, "window", "a");
        assert!(
            (used_then..=used_most).contains(&used),
            "round {round}: {used} units are used, expected {used_then} to {used_most}"
        );
        assert!(used >= used_least, "{used} units are used, expected at least {used_least}");
        println!(
            "SIGKILL {round}: {} requests admitted since the last snapshot, {} of them lost",
            since + 1,
            used_most - used
        );
        lost += used_most - used;
        server.process.terminate();
        assert_eq!(server.process.wait().code(), Some(0));
    }
    println!(
        "SIGKILL: {used_most} requests admitted in five runs, {lost} lost, all of them admitted after the last snapshot"
    );
}

#[test]
fn invalid_files_are_reported_and_three_of_them_are_kept() {
    let served = Served::new();
    let mut server = served.serve("1h");
    check(&server, "window", "a");
    server.process.terminate();
    server.process.wait();
    let whole = fs::read(served.path()).expect("the snapshot exists");
    let mut newer = whole.clone();
    newer[16] += 1;
    let (damaged, no_snapshot, newer_format) =
        ("the snapshot is damaged", "the file is not a snapshot", "the snapshot has format 3");
    let moved = "the invalid snapshot was moved to";
    let files: [(&[u8], &str, &str); 4] = [
        (&whole[..whole.len() - 1], damaged, moved),
        (b"hello", no_snapshot, moved),
        (&newer, newer_format, moved),
        (b"good bye", no_snapshot, "the next snapshot replaces the invalid snapshot"),
    ];
    for (file, why, result) in files {
        fs::write(served.path(), file).expect("the file is written");
        let mut server = served.serve("1h");
        logged(&server.process, why);
        logged(&server.process, result);
        assert_eq!(check(&server, "window", "a"), 99_999, "with an invalid snapshot, counts start at zero");
        server.process.terminate();
        assert_eq!(server.process.wait().code(), Some(0));
        assert!(
            fs::read(served.path()).expect("the snapshot exists").starts_with(&whole[..24]),
            "the next snapshot is valid"
        );
    }
    for (name, (file, ..)) in ["state.bad", "state.bad.2", "state.bad.3"].into_iter().zip(files) {
        assert_eq!(fs::read(served.folder.path(name)).expect("the invalid file is kept"), file, "{name}");
    }
    let names = fs::read_dir(served.folder.path("")).expect("the folder can be read").count();
    assert_eq!(names, 6, "the rules, the snapshot, its lock and three invalid files");
}

#[test]
fn a_path_that_cannot_be_read_is_reported_and_left_alone() {
    let served = Served::new();
    fs::create_dir(served.folder.path("folder")).expect("the folder is created");
    served.folder.write("folder/precious", "not ours");
    let _socket = UnixListener::bind(served.folder.path("socket")).expect("the socket is created");
    // The file must be unreadable even for root. Root can read a file with any mode, but not a link that points to
    // itself.
    symlink("loop", served.folder.path("loop")).expect("the link is created");
    for (path, why) in [
        ("folder", "folder: it is not a regular file"),
        ("socket", "socket: it is not a regular file"),
        ("loop", "the snapshot loop cannot be read: "),
    ] {
        let arguments =
            format!("serve rules.yaml --memory-snapshot-path {path} --http 127.0.0.1:0 --admin off --grpc off");
        let output = served.folder.run(&arguments);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{output:?}");
        assert!(output.stderr.contains(why) && output.stderr.contains("help: "), "{}", output.stderr);
    }
    assert_eq!(fs::read_to_string(served.folder.path("folder/precious")).expect("the file still exists"), "not ours");
    for name in ["socket", "loop"] {
        assert!(fs::symlink_metadata(served.folder.path(name)).is_ok(), "{name} must still exist");
    }
}

#[test]
fn a_second_signal_cuts_requests_but_loses_no_counts() {
    let served = Served::new();
    let mut server = served.serve("1h");
    assert_eq!(check(&server, "window", "a"), 99_999);
    // The client never sends the body of this request. So the server cannot finish the request while it drains.
    let mut stream = TcpStream::connect(server.http()).expect("the server listens");
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("the request is sent");
    stream.set_read_timeout(Some(DEADLINE)).expect("the timeout is valid");
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).expect("the server asks for the body");
    assert_eq!(&reply, b"HTTP/1.1 100");
    server.process.terminate();
    logged(&server.process, "draining");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(3));
    logged(&server.process, "a restart keeps all counts");
    assert_eq!(check(&served.serve("1h"), "window", "a"), 99_998);
}

#[test]
fn snapshots_that_cannot_be_written_are_reported_once_and_counted() {
    let served = Served::new();
    let mut server = served.serve("100ms");
    next_snapshot(&server);
    assert!(metric(&server, "spillgate_snapshot_timestamp_seconds") > 1_700_000_000);
    assert_eq!(metric(&server, "spillgate_snapshot_last_successful"), 1);
    // The server writes a snapshot to a draft file first. Root can write to every file, but even root cannot write the
    // draft if a folder has the name of the draft.
    eventually("the folder `state.draft` is created", || fs::create_dir(served.folder.path("state.draft")).ok());
    eventually("three snapshots fail", || (metric(&server, "spillgate_snapshot_failures_total") >= 3).then_some(()));
    assert_eq!(metric(&server, "spillgate_snapshot_last_successful"), 0);
    let lines = |server: &Spillgate| server.process.stderr().iter().filter(|l| l.contains("cannot be written")).count();
    assert_eq!(lines(&server), 1, "{:?}", server.process.stderr());
    assert_eq!(check(&server, "window", "a"), 99_999, "the server still answers");
    fs::remove_dir(served.folder.path("state.draft")).expect("the folder is removed");
    next_snapshot(&server);
    assert_eq!(metric(&server, "spillgate_snapshot_last_successful"), 1);
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
    assert_eq!(lines(&server), 1);
    assert_eq!(check(&served.serve("1h"), "window", "a"), 99_998);
}

#[test]
fn a_missing_folder_is_reported_before_the_server_starts() {
    let served = Served::new();
    let output = served.folder.run("serve rules.yaml --memory-snapshot-path none/state --admin off --grpc off");
    assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{output:?}");
    assert!(output.stderr.contains("none/state: its folder does not exist"), "{}", output.stderr);
}

/// Runs `serve` in the folder, and asserts that it ends with this exit code and reason.
fn refused(folder: &Folder, arguments: &str, code: i32, why: &str) {
    let output = folder.run(&format!("serve {arguments} --http 127.0.0.1:0 --admin off --grpc off"));
    assert_eq!((output.code, output.stdout.as_str()), (code, ""), "{arguments}: {output:?}");
    assert!(output.stderr.contains(why) && output.stderr.contains("help: "), "{arguments}: {}", output.stderr);
}

#[test]
fn a_second_server_on_the_same_snapshot_is_refused_until_the_first_has_ended() {
    let served = Served::new();
    let mut server = served.serve("1h");
    check(&server, "window", "a");
    symlink("state", served.folder.path("alias")).expect("the link is created");
    for path in ["state", "./state", "alias"] {
        let arguments = format!("rules.yaml --memory-snapshot-path {path}");
        refused(&served.folder, &arguments, 3, "state is in use by another server");
    }
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
    assert_eq!(check(&served.serve("1h"), "window", "a"), 99_998, "the end of the first server releases its lock");
}

#[test]
fn a_folder_that_cannot_be_written_to_is_reported_before_the_server_starts() {
    let served = Served::new();
    // Root can write to every file, but even root cannot write the lock file if a folder has the name of this file.
    fs::create_dir(served.folder.path("state.lock")).expect("the folder is created");
    refused(&served.folder, "rules.yaml --memory-snapshot-path state", 3, "state cannot be written: ");
}

#[test]
fn a_last_snapshot_that_fails_shows_in_the_exit_code() {
    let served = Served::new();
    let mut server = served.serve("1h");
    fs::create_dir(served.folder.path("state.draft")).expect("the folder is created");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(3));
    logged(&server.process, "cannot be written");
}

#[test]
fn a_snapshot_never_replaces_a_file_that_the_server_reads() {
    let served = Served::new();
    let folder = &served.folder;
    folder.write("rules/a.yaml", &RULES.replace("api", "web"));
    folder.write("spillgate.yaml", "shadow: false\n");
    folder.write("token", "0123456789abcdef");
    symlink("rules.yaml", folder.path("alias")).expect("the link is created");
    for path in ["rules.yaml", "alias", "rules/a.yaml", "rules/state.yml", "spillgate.yaml", "token"] {
        let arguments = "rules.yaml rules -c spillgate.yaml --admin-token-file token --admin 127.0.0.1:0";
        let output =
            folder.run(&format!("serve {arguments} --grpc off --http 127.0.0.1:0 --memory-snapshot-path {path}"));
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{path}: {output:?}");
        let why = format!("the snapshot {path} would replace a file that is read from ");
        assert!(output.stderr.contains(&why), "{path}: {}", output.stderr);
    }
    assert_eq!(fs::read_to_string(folder.path("rules.yaml")).expect("the file still exists"), RULES);
    let names = fs::read_dir(folder.path("")).expect("the folder can be read").count();
    assert_eq!(names, 5, "no file was moved or created");
}

#[test]
fn a_link_stays_and_the_snapshot_is_written_to_its_target() {
    let served = Served::new();
    fs::create_dir(served.folder.path("data")).expect("the folder is created");
    symlink("data/state", served.folder.path("state")).expect("the link is created");
    for left in [99_999, 99_998] {
        let mut server = served.serve("1h");
        assert_eq!(check(&server, "window", "a"), left);
        server.process.terminate();
        assert_eq!(server.process.wait().code(), Some(0));
        let link = fs::read_link(served.path()).expect("the path is still a link");
        assert_eq!(link.to_str(), Some("data/state"));
        assert!(fs::metadata(served.folder.path("data/state")).expect("the snapshot exists").is_file());
    }
}
