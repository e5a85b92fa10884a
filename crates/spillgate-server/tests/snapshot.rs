//! `spillgate serve` with a snapshot, ended in every way there is and started again.

mod cli_support;
mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use cli_support::Folder;
use serde_json::{Value, json};
use support::process::Process;
use support::spillgate::Spillgate;
use support::{DEADLINE, eventually, http};

const RULES: &str = "
domain: api
descriptors:
  - {key: day, rate_limit: {unit: day, requests_per_unit: 100000}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 5000}}
  - {key: counter, rate_limit: {algorithm: sliding_window_counter, unit: day, requests_per_unit: 5000}}
  - {key: log, rate_limit: {algorithm: sliding_window_log, unit: day, requests_per_unit: 5000}}
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
        let path = path.to_str().expect("UTF-8");
        let arguments = ["--memory-snapshot-path", path, "--memory-snapshot-interval", interval, "--grpc=off"];
        Spillgate::serve(&self.folder.path("rules.yaml"), &arguments)
    }
}

fn ask(server: &Spillgate, path: &str, body: &Value) -> Value {
    let answer = http::request(server.http(), "POST", path, &[], &body.to_string()).expect("an answer");
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// What remains after one more check.
fn check(server: &Spillgate, key: &str, value: &str) -> u64 {
    let answer = ask(server, "/v1/check", &json!({"domain": "api", "descriptors": [{key: value}]}));
    answer["remaining"].as_u64().unwrap_or_else(|| panic!("no remaining: {answer}"))
}

fn metric(server: &Spillgate, name: &str) -> u64 {
    let text = http::get(server.admin(), "/metrics", &[]).body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {text}"))
}

fn logged(process: &Process, text: &str) -> String {
    eventually(&format!("`{text}` in the log"), || process.stderr().into_iter().find(|line| line.contains(text)))
}

/// Waits for a snapshot that was begun from now on.
fn next_snapshot(server: &Spillgate) {
    let before = metric(server, "spillgate_snapshots_total");
    // The next to be finished may have been begun before.
    eventually("two snapshots", || (metric(server, "spillgate_snapshots_total") >= before + 2).then_some(()));
}

#[test]
fn a_terminated_server_forgets_nothing() {
    let served = Served::new();
    let mut server = served.serve("1h");
    let used = 37;
    for i in 0..used {
        assert_eq!(check(&server, "day", "a"), 99_999 - i);
        for key in ["bucket", "counter", "log"] {
            assert_eq!(check(&server, key, "a"), 4_999 - i);
        }
    }
    (0..2).for_each(|_| _ = check(&server, "strict", "a"));
    let slots = json!({"bucket": "jobs", "key": "a", "limit": 3, "algorithm": "concurrency", "lease_ms": 3_600_000});
    let lease = ask(&server, "/v1/hit", &slots);
    assert_eq!((&lease["allowed"], &lease["remaining"]), (&json!(true), &json!(2)), "{lease}");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
    logged(&server.process, "a restart keeps all counts");
    assert_eq!(fs::metadata(served.path()).expect("a snapshot").permissions().mode() & 0o777, 0o600);

    let server = served.serve("1h");
    let line = logged(&server.process, "counts restored from the snapshot");
    assert!(line.contains("entries=6 stale=0"), "{line}");
    assert_eq!(check(&server, "day", "a"), 99_999 - used);
    for key in ["bucket", "counter", "log"] {
        assert_eq!(check(&server, key, "a"), 4_999 - used, "{key}");
    }
    assert_eq!(check(&server, "day", "b"), 99_999, "others are as they were");
    let strict = ask(&server, "/v1/check", &json!({"domain": "api", "descriptors": [{"strict": "a"}]}));
    let wait_ms = strict["retry_after_ms"].as_u64().expect("a wait");
    assert!(
        (60_001..=3_600_000).contains(&wait_ms),
        "the limit alone asks for a minute, the penalty for more: {strict}"
    );
    // Leases too, and who holds one can still give it back.
    assert_eq!(ask(&server, "/v1/hit", &slots)["remaining"], 1);
    let released = ask(&server, "/v1/release", &json!({"lease_id": lease["lease_id"]}));
    assert_eq!(ask(&server, "/v1/hit", &slots)["remaining"], 1, "{released}");
    println!("SIGTERM: {used} requests by each of four algorithms, a penalty and a lease: 0 forgotten");
}

#[test]
fn a_killed_server_forgets_at_most_what_came_since_the_last_snapshot() {
    let served = Served::new();
    let (mut used_least, mut used_most, mut forgotten) = (0, 0, 0);
    for round in 0..5 {
        let mut server = served.serve("200ms");
        for _ in 0..50 {
            check(&server, "day", "a");
        }
        used_least += 50;
        next_snapshot(&server);
        let used_then = 99_999 - check(&server, "day", "a");
        let since = 20 * round;
        for _ in 0..since {
            check(&server, "day", "a");
        }
        used_most = used_then + 1 + since;
        server.process.kill();

        let mut server = served.serve("1h");
        let used = 99_999 - check(&server, "day", "a");
        assert!((used_then..=used_most).contains(&used), "round {round}: {used} of {used_then} to {used_most}");
        assert!(used >= used_least, "{used} of at least {used_least}");
        println!(
            "SIGKILL {round}: {} admitted since a snapshot was written, {} forgotten",
            since + 1,
            used_most - used
        );
        forgotten += used_most - used;
        server.process.terminate();
        assert_eq!(server.process.wait().code(), Some(0));
    }
    println!("SIGKILL: {used_most} admitted in five lives, {forgotten} forgotten, none from before the last snapshot");
}

#[test]
fn bad_files_are_told_and_three_are_kept_aside() {
    let served = Served::new();
    let mut server = served.serve("1h");
    check(&server, "day", "a");
    server.process.terminate();
    server.process.wait();
    let whole = fs::read(served.path()).expect("a snapshot");
    let mut newer = whole.clone();
    newer[16] += 1;
    let (damaged, foreign, other) =
        ("the snapshot is damaged", "the file is not a snapshot", "the snapshot has format 3");
    let moved = "it was moved to";
    let files: [(&[u8], &str, &str); 4] = [
        (&whole[..whole.len() - 1], damaged, moved),
        (b"hello", foreign, moved),
        (&newer, other, moved),
        (b"good bye", foreign, "the next snapshot replaces it"),
    ];
    for (file, why, whither) in files {
        fs::write(served.path(), file).expect("written");
        let mut server = served.serve("1h");
        logged(&server.process, why);
        logged(&server.process, whither);
        assert_eq!(check(&server, "day", "a"), 99_999, "counts start at zero");
        server.process.terminate();
        assert_eq!(server.process.wait().code(), Some(0));
        assert!(fs::read(served.path()).expect("a snapshot").starts_with(&whole[..24]), "the next snapshot is good");
    }
    for (name, (file, ..)) in ["state.bad", "state.bad.2", "state.bad.3"].into_iter().zip(files) {
        assert_eq!(fs::read(served.folder.path(name)).expect("kept"), file, "{name}");
    }
    let names = fs::read_dir(served.folder.path("")).expect("a folder").count();
    assert_eq!(names, 6, "the rules, the snapshot, its lock and three that are none");
}

#[test]
fn what_is_no_file_or_cannot_be_read_is_told_and_left_alone() {
    let served = Served::new();
    fs::create_dir(served.folder.path("folder")).expect("a folder");
    served.folder.write("folder/precious", "not ours");
    let _socket = UnixListener::bind(served.folder.path("socket")).expect("a socket");
    // No mode stops root from reading, but nobody can follow this.
    symlink("loop", served.folder.path("loop")).expect("a link");
    for (path, why) in [
        ("folder", "folder: it is not a regular file"),
        ("socket", "socket: it is not a regular file"),
        ("loop", "the snapshot loop cannot be read: "),
    ] {
        let arguments =
            format!("serve rules.yaml --memory-snapshot-path {path} --http 127.0.0.1:0 --admin off --grpc off");
        let said = served.folder.run(&arguments);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
        assert!(said.stderr.contains(why) && said.stderr.contains("help: "), "{}", said.stderr);
    }
    assert_eq!(fs::read_to_string(served.folder.path("folder/precious")).expect("there"), "not ours");
    for name in ["socket", "loop"] {
        assert!(fs::symlink_metadata(served.folder.path(name)).is_ok(), "{name} is still there");
    }
}

#[test]
fn a_server_that_is_told_twice_cuts_requests_but_forgets_nothing() {
    let served = Served::new();
    let mut server = served.serve("1h");
    assert_eq!(check(&server, "day", "a"), 99_999);
    // A request whose body never comes, so that there is something to drain.
    let mut stream = TcpStream::connect(server.http()).expect("it listens");
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let mut asked = [0; 12];
    stream.read_exact(&mut asked).expect("the server wants the body");
    assert_eq!(&asked, b"HTTP/1.1 100");
    server.process.terminate();
    logged(&server.process, "draining");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(3));
    logged(&server.process, "a restart keeps all counts");
    assert_eq!(check(&served.serve("1h"), "day", "a"), 99_998);
}

#[test]
fn snapshots_that_cannot_be_written_are_told_once_and_counted() {
    let served = Served::new();
    let mut server = served.serve("100ms");
    next_snapshot(&server);
    assert!(metric(&server, "spillgate_snapshot_timestamp_seconds") > 1_700_000_000);
    // No mode stops root, but a folder at the draft's name stops everybody.
    eventually("a folder", || fs::create_dir(served.folder.path("state.draft")).ok());
    eventually("failures", || (metric(&server, "spillgate_snapshot_failures_total") >= 3).then_some(()));
    let told = |server: &Spillgate| server.process.stderr().iter().filter(|l| l.contains("cannot be written")).count();
    assert_eq!(told(&server), 1, "{:?}", server.process.stderr());
    assert_eq!(check(&server, "day", "a"), 99_999, "it serves all the same");
    fs::remove_dir(served.folder.path("state.draft")).expect("removed");
    next_snapshot(&server);
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
    assert_eq!(told(&server), 1);
    assert_eq!(check(&served.serve("1h"), "day", "a"), 99_998);
}

#[test]
fn a_folder_that_is_missing_is_told_before_anything_is_served() {
    let served = Served::new();
    let said = served.folder.run("serve rules.yaml --memory-snapshot-path none/state --admin off --grpc off");
    assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
    assert!(said.stderr.contains("none/state: its folder does not exist"), "{}", said.stderr);
}

/// `serve` in the folder, which is to say why not.
fn refused(folder: &Folder, arguments: &str, code: i32, why: &str) {
    let said = folder.run(&format!("serve {arguments} --http 127.0.0.1:0 --admin off --grpc off"));
    assert_eq!((said.code, said.stdout.as_str()), (code, ""), "{arguments}: {said:?}");
    assert!(said.stderr.contains(why) && said.stderr.contains("help: "), "{arguments}: {}", said.stderr);
}

#[test]
fn a_second_server_on_the_same_snapshot_is_refused_until_the_first_has_ended() {
    let served = Served::new();
    let mut server = served.serve("1h");
    check(&server, "day", "a");
    symlink("state", served.folder.path("alias")).expect("a link");
    for path in ["state", "./state", "alias"] {
        let arguments = format!("rules.yaml --memory-snapshot-path {path}");
        refused(&served.folder, &arguments, 3, "state is in use by another server");
    }
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(0));
    assert_eq!(check(&served.serve("1h"), "day", "a"), 99_998, "its lock ended with it");
}

#[test]
fn a_folder_that_cannot_be_written_to_is_told_before_anything_is_served() {
    let served = Served::new();
    // No mode stops root, but a folder at the lock's name stops everybody.
    fs::create_dir(served.folder.path("state.lock")).expect("a folder");
    refused(&served.folder, "rules.yaml --memory-snapshot-path state", 3, "state cannot be written: ");
}

#[test]
fn a_last_snapshot_that_fails_shows_in_the_exit_code() {
    let served = Served::new();
    let mut server = served.serve("1h");
    fs::create_dir(served.folder.path("state.draft")).expect("a folder");
    server.process.terminate();
    assert_eq!(server.process.wait().code(), Some(3));
    logged(&server.process, "cannot be written");
}

#[test]
fn what_the_server_reads_is_no_place_for_its_snapshot() {
    let served = Served::new();
    let folder = &served.folder;
    folder.write("rules/a.yaml", &RULES.replace("api", "web"));
    folder.write("spillgate.yaml", "shadow: false\n");
    folder.write("token", "0123456789abcdef");
    symlink("rules.yaml", folder.path("alias")).expect("a link");
    for path in ["rules.yaml", "alias", "rules/a.yaml", "rules/state.yml", "spillgate.yaml", "token"] {
        let arguments = "rules.yaml rules -c spillgate.yaml --admin-token-file token --admin 127.0.0.1:0";
        let said =
            folder.run(&format!("serve {arguments} --grpc off --http 127.0.0.1:0 --memory-snapshot-path {path}"));
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{path}: {said:?}");
        let why = format!("the snapshot {path} would replace a file that is read from ");
        assert!(said.stderr.contains(&why), "{path}: {}", said.stderr);
    }
    assert_eq!(fs::read_to_string(folder.path("rules.yaml")).expect("there"), RULES);
    let names = fs::read_dir(folder.path("")).expect("a folder").count();
    assert_eq!(names, 5, "nothing was moved or made");
}

#[test]
fn a_link_stays_and_the_snapshot_goes_where_it_leads() {
    let served = Served::new();
    fs::create_dir(served.folder.path("data")).expect("a folder");
    symlink("data/state", served.folder.path("state")).expect("a link to nothing yet");
    for left in [99_999, 99_998] {
        let mut server = served.serve("1h");
        assert_eq!(check(&server, "day", "a"), left);
        server.process.terminate();
        assert_eq!(server.process.wait().code(), Some(0));
        let link = fs::read_link(served.path()).expect("still a link");
        assert_eq!(link.to_str(), Some("data/state"));
        assert!(fs::metadata(served.folder.path("data/state")).expect("a snapshot").is_file());
    }
}
