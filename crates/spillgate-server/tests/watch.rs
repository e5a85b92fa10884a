//! Tests of a server that watches its files: which changes it sees, what it takes, and what it reports once.
//!
//! Nothing here depends on how fast the machine is: a test waits for what has to happen, and what must not happen is
//! seen in the list of reloads.

#![allow(clippy::disallowed_methods, reason = "a writer that pauses needs real time")]

mod load;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli_support::{Folder, command, signal};
use crate::support::process::Process;
use crate::support::redis::Redis;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

/// Arguments of a server that watches folders.
const ON: [&str; 2] = ["--watch", "on"];

fn rules(limit: u64) -> String {
    domain("api", limit)
}

fn domain(name: &str, limit: u64) -> String {
    format!("domain: {name}\ndescriptors: [{{key: user_id, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}]\n")
}

/// Returns the limit that a request of the domain meets, or `None` if the server has no such domain.
fn limit_of(server: &Spillgate, domain: &str) -> Option<u64> {
    let ask = json!({"domain": domain, "descriptors": [{"user_id": "7"}], "cost": 0}).to_string();
    let answer = http::request(server.http(), "POST", "/v1/check", &[], &ask).expect("the server answers");
    serde_json::from_str::<Value>(&answer.body).expect("the answer is JSON")["limit"].as_u64()
}

fn limit(server: &Spillgate) -> Option<u64> {
    limit_of(server, "api")
}

/// Waits until the server uses this limit.
fn until_limit(server: &Spillgate, expected: u64) {
    eventually(&format!("the limit is {expected}"), || (limit(server) == Some(expected)).then_some(()));
}

/// Returns the reloads, the newest first.
pub(crate) fn reloads(server: &Spillgate) -> Vec<Value> {
    let page: Value = serde_json::from_str(&http::get(server.admin(), "/reloads", &[]).body).expect("the page is JSON");
    page["reloads"].as_array().expect("the page has a list").clone()
}

/// Waits until there are this many reloads, and returns the newest one.
pub(crate) fn reload(server: &Spillgate, count: usize) -> Value {
    eventually(&format!("there are {count} reloads"), || {
        let all = reloads(server);
        assert!(all.len() <= count, "{all:?}");
        (all.len() == count).then(|| all[0].clone())
    })
}

fn metrics(server: &Spillgate) -> String {
    http::get(server.admin(), "/metrics", &[]).body
}

/// Empties a file and writes into it, as simple programs do.
fn in_place(folder: &Folder, name: &str, text: &str) {
    fs::write(folder.path(name), text).expect("the file can be written");
}

/// Replaces a file by renaming, as most tools do.
fn rename_over(folder: &Folder, name: &str, text: &str) {
    let beside = format!("{name}.new");
    folder.write(&beside, text);
    fs::rename(folder.path(&beside), folder.path(name)).expect("the file can be renamed");
}

/// Makes a symlink in place of another one, in one step.
pub(crate) fn link_anew(folder: &Folder, target: &str, name: &str) {
    let beside = folder.path(&format!("{name}_tmp"));
    symlink(target, &beside).expect("the link can be made");
    fs::rename(&beside, folder.path(name)).expect("the link can be renamed");
}

/// Changes files in all ways, and waits for the effect of each.
fn change_in_all_ways(folder: &Folder, server: &Spillgate) {
    in_place(folder, "rules/a.yaml", &rules(6));
    until_limit(server, 6);
    rename_over(folder, "rules/a.yaml", &rules(7));
    until_limit(server, 7);
    folder.write("rules/inside/b.yaml", &domain("web", 8));
    eventually("a file in a new folder is read", || limit_of(server, "web").filter(|limit| *limit == 8));
    in_place(folder, "rules/inside/b.yaml", &domain("web", 9));
    eventually("the new folder is watched too", || limit_of(server, "web").filter(|limit| *limit == 9));
    fs::remove_file(folder.path("rules/inside/b.yaml")).expect("the file exists");
    eventually("the domain has gone with its file", || limit_of(server, "web").is_none().then_some(()));
}

#[test]
fn changes_of_every_kind_are_seen() {
    let folder = Folder::new(&[("rules/a.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules"), &ON);
    assert_eq!(limit(&server), Some(5));
    change_in_all_ways(&folder, &server);
    assert!(server.process.logged("rules reloaded").contains("cause=\"watch\""));
    assert!(reloads(&server).iter().all(|reload| reload["cause"] == "watch"), "{:?}", reloads(&server));
    assert!(metrics(&server).contains("\nspillgate_watch_polls 0\n"));
    // The file says again what it said at first. It is new for the server, which has tried something else since then.
    folder.write("rules/a.yaml", &rules(5));
    until_limit(&server, 5);
    let all = eventually("the last reload is in the list", || {
        let all = reloads(&server);
        all[0]["changes"].to_string().contains("-> 5 per year").then_some(all.len())
    });
    assert!(metrics(&server).contains(&format!("spillgate_reloads_total{{cause=\"watch\"}} {all}\n")));
    signal(server.process.id(), "HUP");
    assert_eq!(reload(&server, all + 1)["cause"], "signal");
}

#[test]
fn a_server_that_polls_sees_the_same_changes() {
    let folder = Folder::new(&[("rules/a.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules"), &["--watch", "poll"]);
    change_in_all_ways(&folder, &server);
    assert!(metrics(&server).contains("\nspillgate_watch_polls 1\n"));
}

#[test]
fn a_server_that_does_not_watch_reads_its_files_when_it_is_told_to() {
    let folder = Folder::new(&[("rules/a.yaml", &rules(5))]);
    let watching = Spillgate::serve(&folder.path("rules"), &ON);
    let server = Spillgate::serve(&folder.path("rules"), &["--watch", "off"]);
    folder.write("rules/a.yaml", &rules(6));
    until_limit(&watching, 6);
    assert_eq!((limit(&server), reloads(&server).len()), (Some(5), 0));
    assert!(!metrics(&server).contains("spillgate_watch_polls"));
    signal(server.process.id(), "HUP");
    until_limit(&server, 6);
}

#[test]
fn a_configmap_is_read_again_at_each_swap_of_its_link() {
    let folder = Folder::new(&[("map/..2026_1/api.yaml", &rules(5)), ("map/..2026_1/web.yaml", &domain("web", 5))]);
    symlink("..2026_1", folder.path("map/..data")).expect("the link can be made");
    for name in ["api.yaml", "web.yaml"] {
        symlink(format!("..data/{name}"), folder.path(&format!("map/{name}"))).expect("the link can be made");
    }
    let whole = Spillgate::serve(&folder.path("map"), &ON);
    let single = Spillgate::serve(&folder.path("map/api.yaml"), &ON);
    for (version, limit) in [(2, 6), (3, 7), (4, 8)] {
        let name = format!("..2026_{version}");
        folder.write(&format!("map/{name}/api.yaml"), &rules(limit));
        folder.write(&format!("map/{name}/web.yaml"), &domain("web", limit));
        link_anew(&folder, &name, "map/..data");
        fs::remove_dir_all(folder.path(&format!("map/..2026_{}", version - 1))).expect("the folder exists");
        until_limit(&whole, limit);
        until_limit(&single, limit);
        assert_eq!(limit_of(&whole, "web"), Some(limit), "both files are of the same version");
    }
    assert!(reloads(&whole).iter().all(|reload| reload["outcome"] == "reloaded"), "{:?}", reloads(&whole));
}

#[test]
fn a_link_above_the_rules_can_be_made_anew() {
    let folder = Folder::new(&[("v1/config/a.yaml", &rules(5)), ("v2/config/a.yaml", &rules(6)), ("srv/x", "")]);
    symlink("../v1", folder.path("srv/current")).expect("the link can be made");
    let server = Spillgate::serve(&folder.path("srv/current/config"), &ON);
    assert_eq!(limit(&server), Some(5));
    link_anew(&folder, "../v2", "srv/current");
    until_limit(&server, 6);
    folder.write("v2/config/a.yaml", &rules(7));
    until_limit(&server, 7);
}

/// A program that writes a file in two steps must not be seen between them.
#[test]
fn a_file_whose_halves_come_one_after_the_other_is_never_taken_half_written() {
    let half = |limit: u64| {
        format!(
            "domain: api\ndescriptors:\n- {{key: user_id, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}\n"
        )
    };
    let whole = |limit| half(limit) + "- {key: other, rate_limit: {unit: year, requests_per_unit: 1}}\n";
    let folder = Folder::new(&[("rules.yaml", &whole(5))]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &ON);
    // On a busy machine a pause can take longer than a second. Such a round proves nothing.
    let mut had_long_pause = false;
    for limit in 6..11 {
        let begun = Instant::now();
        in_place(&folder, "rules.yaml", &half(limit));
        thread::sleep(Duration::from_millis(300));
        in_place(&folder, "rules.yaml", &whole(limit));
        had_long_pause |= begun.elapsed() > Duration::from_millis(900);
        until_limit(&server, limit);
    }
    let halves = reloads(&server).iter().filter(|reload| reload["loaded"]["rules"] != 2).count();
    assert!(halves == 0 || had_long_pause, "{:?}", reloads(&server));
}

#[test]
fn an_error_is_reported_once_with_its_line_and_keeps_no_token_out() {
    let tokens = ("the-write-token-of-this-test\n", "another-write-token-of-this-test\n");
    let folder = Folder::new(&[("rules/a.yaml", &rules(5)), ("token", tokens.0)]);
    let token = folder.path("token").display().to_string();
    let server = Spillgate::serve(&folder.path("rules"), &["--admin-token-file", &token, "--watch", "on"]);
    let get = |path: &str, token: &str| {
        http::get(server.admin(), path, &[("authorization", &format!("Bearer {}", token.trim()))])
    };
    folder.write("rules/a.yaml", "domain: api\ndescriptors: [{ky: user_id}]\n");
    let line = server.process.logged("did you mean `key`?");
    assert!(line.contains("a.yaml:2:16: "), "{line}");
    assert!(server.process.logged("the earlier rules stay in use").contains("cause=\"watch\""));
    folder.write("token", tokens.1);
    assert!(server.process.logged("an admin token has changed in its file").contains("cause=\"watch\""));
    assert_eq!([get("/rules", tokens.0).status, get("/rules", tokens.1).status], [401, 200]);
    let page = get("/metrics", tokens.1).body;
    for line in ["spillgate_reload_failed_units 1\n", "spillgate_reload_failures_total{unit=\"rules\"} 1\n"] {
        assert!(page.contains(line), "{line}");
    }
    // Another error of the other unit, after which the rules were looked at at least once more.
    folder.write("token", "");
    server.process.logged("the current tokens stay valid");
    folder.write("rules/a.yaml", &rules(6));
    until_limit(&server, 6);
    let count = |text: &str| server.process.stderr().iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        [count("did you mean"), count("the current tokens stay valid")],
        [1, 1],
        "{:?}",
        server.process.stderr()
    );
    // New rules are in force a moment before their reload is in the list.
    let units = eventually("all reloads are in the list", || {
        let page: Value = serde_json::from_str(&get("/reloads", tokens.1).body).expect("the page is JSON");
        let all = page["reloads"].as_array().expect("there is a list");
        (all.len() == 4).then(|| all.iter().map(|it| it["units"].clone()).collect::<Vec<_>>())
    });
    let unit = |name: &str, outcome: &str| json!([{"unit": name, "outcome": outcome}]);
    let expected = [
        unit("rules", "reloaded"),
        unit("admin_tokens", "failed"),
        unit("admin_tokens", "reloaded"),
        unit("rules", "failed"),
    ];
    assert_eq!(units, expected);
}

#[test]
fn a_request_says_what_became_of_each_unit() {
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("token", "the-write-token-of-this-test\n")]);
    let token = folder.path("token").display().to_string();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--admin-token-file", &token, "--watch", "on"]);
    folder.write("rules.yaml", &rules(6));
    folder.write("token", "two words");
    let headers = [("authorization", "Bearer the-write-token-of-this-test")];
    let answer = http::request(server.admin(), "POST", "/reload", &headers, "").expect("the server answers");
    let problem: Value = serde_json::from_str(&answer.body).expect("the answer is JSON");
    assert_eq!((answer.status, &problem["cause"]), (422, &json!("request")), "{problem}");
    assert_eq!(problem["detail"], "not everything was reloaded; what could not be taken stays as it was");
    let units = json!([{"unit": "rules", "outcome": "reloaded"}, {"unit": "admin_tokens", "outcome": "failed"}]);
    assert_eq!((&problem["units"], &problem["errors"][0]["unit"]), (&units, &json!("admin_tokens")), "{problem}");
    assert!(problem["errors"][0]["message"].as_str().is_some_and(|text| text.contains("token")), "{problem}");
    assert_eq!((&problem["errors"][0]["file"], &problem["errors"][0]["line"]), (&json!(token), &Value::Null));
    assert!(problem["changes"]["lines"][0].as_str().is_some_and(|text| text.contains("-> 6 per year")), "{problem}");
    assert_eq!(limit(&server), Some(6));
    server.process.logged("not reloaded: admin_tokens; errors: 1, changes: 1");
}

/// Each of these states is an error that stays. The server reports it once, and goes on with the earlier rules.
#[test]
fn what_cannot_be_read_is_reported_once() {
    let folder = Folder::new(&[("rules/a.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules"), &ON);
    let (rules_folder, extra) = (folder.path("rules"), folder.path("rules/b.yaml"));
    let huge = || fs::File::create(&extra).and_then(|file| file.set_len(100 << 20)).expect("a file can be made");
    let circle = || symlink("b.yaml", &extra).expect("a link can be made");
    let gone = || fs::rename(&rules_folder, folder.path("away")).expect("the folder can be renamed");
    let steps: [(&dyn Fn(), &str); 3] = [
        (&huge, "b.yaml is larger than 16 MiB"),
        (&circle, "b.yaml cannot be read: Too many levels of symbolic links"),
        (&gone, "rules cannot be read: No such file or directory"),
    ];
    for (number, (step, says)) in (1..).zip(steps) {
        let _ = fs::remove_file(&extra);
        step();
        server.process.logged(says);
        assert_eq!(limit(&server), Some(4 + number), "the earlier rules stay in use");
        if !rules_folder.exists() {
            fs::rename(folder.path("away"), &rules_folder).expect("the folder can be renamed");
        }
        let _ = fs::remove_file(&extra);
        // The next change is seen too, and so the server has looked again in between.
        folder.write("rules/a.yaml", &rules(5 + number));
        until_limit(&server, 5 + number);
        let lines = server.process.stderr();
        assert_eq!(lines.iter().filter(|line| line.contains(says)).count(), 1, "{lines:?}");
    }
}

#[test]
fn a_folder_in_which_files_change_all_the_time_hides_no_change() {
    let folder = Folder::new(&[("rules/a.yaml", &rules(5))]);
    let server = Spillgate::serve(&folder.path("rules"), &ON);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                folder.write("rules/notes.txt", "again");
                fs::remove_file(folder.path("rules/notes.txt")).expect("the file exists");
            }
        });
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for limit in 6..9 {
                folder.write("rules/a.yaml", &rules(limit));
                until_limit(&server, limit);
            }
        }));
        over.store(true, Ordering::Relaxed);
        changed.expect("each change is seen");
    });
    reload(&server, 3);
}

#[test]
fn a_reload_takes_two_settings_and_names_the_others() {
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("s.yaml", "log_level: warn\n")]);
    let settings = folder.path("s.yaml").display().to_string();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--config", &settings, "--watch", "on"]);
    folder.write("s.yaml", "log_level: info\nshadow: true\n");
    let first = reload(&server, 1);
    assert_eq!(first["units"], json!([{"unit": "settings", "outcome": "reloaded"}]));
    assert_eq!((&first["loaded"], &first["cause"]), (&Value::Null, &json!("watch")));
    assert_eq!(first["changes"]["lines"], json!(["setting log_level changed: warn -> info"]));
    let waits = "settings changed and take effect at a restart, not at a reload: shadow";
    assert_eq!(first["notes"]["lines"], json!([waits]));
    server.process.logged(waits);
    // A line of the level info.
    folder.write("rules.yaml", &rules(6));
    server.process.logged("rules reloaded");
    folder.write("s.yaml", "log_level: error\nshadow: true\n");
    reload(&server, 3);
    folder.write("rules.yaml", &rules(7));
    until_limit(&server, 7);
    folder.write("s.yaml", "log_levl: info\n");
    let failed = reload(&server, 5);
    assert_eq!(failed["units"], json!([{"unit": "settings", "outcome": "failed"}]));
    assert!(failed["errors"]["lines"][0].as_str().is_some_and(|line| line.contains("s.yaml:1:1: ")), "{failed}");
    assert!(metrics(&server).contains("\nspillgate_reload_failed_units 1\n"));
    folder.write("s.yaml", "log_level: error\nshadow: true\n");
    let corrected = reload(&server, 6);
    assert_eq!(corrected["units"], json!([{"unit": "settings", "outcome": "reloaded"}]));
    assert!(metrics(&server).contains("\nspillgate_reload_failed_units 0\n"));
    let lines = server.process.stderr();
    assert_eq!(lines.iter().filter(|line| line.contains("rules reloaded")).count(), 1, "{lines:?}");
}

#[test]
fn a_changed_key_secret_is_one_warning_and_changes_no_key() {
    let redis = Redis::start();
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("secret", "000102030405060708090a0b0c0d0e0f\n")]);
    let (url, secret) = (redis.url(), folder.path("secret").display().to_string());
    let arguments =
        ["--store", &url, "--store-expected-nodes", "1", "--store-key-secret-file", &secret, "--watch", "on"];
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    folder.write("secret", "ff0102030405060708090a0b0c0d0e0f\n");
    let noted = reload(&server, 1);
    assert_eq!(
        (&noted["units"], &noted["outcome"]),
        (&json!([{"unit": "key_secret", "outcome": "noted"}]), &json!("noted"))
    );
    let line = server.process.logged("(store.key_secret_file) has changed");
    assert!(line.contains("begin again at zero") && !line.contains("ff0102"), "{line}");
    assert!(line.contains("cause=\"watch\""), "{line}");
    signal(server.process.id(), "HUP");
    let again = reload(&server, 2);
    assert_eq!((&again["units"][1], &again["outcome"]), (&noted["units"][0], &json!("reloaded")), "{again}");
    let lines = server.process.stderr();
    assert_eq!(lines.iter().filter(|line| line.contains("has changed, but")).count(), 1, "{lines:?}");
    // A server would not start with this file.
    folder.write("secret", "no secret\n");
    let failed = reload(&server, 3);
    assert_eq!(failed["units"], json!([{"unit": "key_secret", "outcome": "failed"}]));
    folder.write("secret", "000102030405060708090a0b0c0d0e0f\n");
    let restored = reload(&server, 4);
    assert_eq!(restored["units"], json!([{"unit": "key_secret", "outcome": "reloaded"}]));
    assert!(
        restored["notes"]["lines"][0].as_str().is_some_and(|note| note.contains("has the secret again")),
        "{restored}"
    );
}

/// The secret of the start is the one that the store uses, and not what the file says a moment later.
#[test]
fn a_key_secret_that_changes_during_the_start_is_noticed() {
    let store = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("redis://{}", store.local_addr().expect("the listener has an address"));
    let rules = rules(5).replace("unit: year", "unit: year, on_store_failure: allow");
    let folder = Folder::new(&[("rules.yaml", &rules), ("secret", "000102030405060708090a0b0c0d0e0f\n")]);
    let arguments = "serve rules.yaml --http 127.0.0.1:0 --grpc 127.0.0.1:0 --admin 127.0.0.1:0 --watch on \
                     --store-key-secret-file secret --store";
    let mut command = command(&folder.path("."));
    let server = Process::start("spillgate", command.args(arguments.split_whitespace()).arg(&url));
    // The store has its secret when this line is written. The server then waits for a first answer of the store.
    server.logged("store.expected_nodes is not set");
    let connection = store.accept().expect("the server connects");
    folder.write("secret", "ff0102030405060708090a0b0c0d0e0f\n");
    drop((connection, store));
    server.logged("(store.key_secret_file) has changed");
}

#[test]
fn a_folder_of_rules_with_a_watched_file_is_watched_as_a_whole() {
    let folder = Folder::new(&[("rules/a/b/y.yaml", &rules(5)), ("rules/a/token", "the-write-token-of-this-test\n")]);
    let token = folder.path("rules/a/token").display().to_string();
    let server = Spillgate::serve(&folder.path("rules"), &["--admin-token-file", &token, "--watch", "on"]);
    folder.write("rules/a/b/y.yaml", &rules(6));
    until_limit(&server, 6);
}

/// A file that is put back means a recovery, although nothing is new.
#[test]
fn a_recovery_is_listed() {
    let text = "the-write-token-of-this-test\n";
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("token", text)]);
    let token = folder.path("token").display().to_string();
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--admin-token-file", &token, "--watch", "on"]);
    let listed = || {
        let page = http::get(server.admin(), "/reloads", &[("authorization", &format!("Bearer {}", text.trim()))]).body;
        let page: Value = serde_json::from_str(&page).expect("the page is JSON");
        page["reloads"].as_array().expect("the page has a list").clone()
    };
    folder.write("token", "two words\n");
    server.process.logged("the current tokens stay valid");
    folder.write("token", text);
    let line = server.process.logged("the files of admin_tokens say what is in use again");
    assert!(line.contains("cause=\"watch\""), "{line}");
    let all = eventually("both are listed", || Some(listed()).filter(|all| all.len() == 2));
    assert_eq!(all[0]["units"], json!([{"unit": "admin_tokens", "outcome": "reloaded"}]));
    assert_eq!((&all[0]["outcome"], &all[1]["outcome"]), (&json!("reloaded"), &json!("failed")));
}

/// Starts a server for which a limit of the system is 0. Returns `None` if this machine has no user namespaces.
fn serve_with_limit(rules: &Path, limit: &str) -> Option<Spillgate> {
    let enter = ["-Ur", "sh", "-c"];
    let set = format!("echo 0 > /proc/sys/user/{limit}");
    let can = Command::new("unshare").args(enter).arg(&set).stderr(std::process::Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(enter).arg(format!("{set} && exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_spillgate"));
    command.arg("serve").arg(rules).arg("--json");
    for listener in ["--http", "--grpc", "--admin"] {
        command.args([listener, "127.0.0.1:0"]);
    }
    let process = Process::start("spillgate", &mut command);
    let line = process.line().expect("the server is ready");
    Some(Spillgate { ready: serde_json::from_str(&line).expect("the line is JSON"), process })
}

#[test]
fn a_folder_that_cannot_be_watched_is_polled_and_the_log_says_why() {
    for (limit, says, knob) in [
        ("max_inotify_watches", "no inotify watch is left", "fs.inotify.max_user_watches"),
        ("max_inotify_instances", "no inotify instance or no file descriptor is left", "fs.inotify.max_user_instances"),
    ] {
        let folder = Folder::new(&[("rules/a.yaml", &rules(5))]);
        let Some(server) = serve_with_limit(&folder.path("rules"), limit) else {
            eprintln!("skipped: this machine has no user namespaces, so {limit} cannot be set");
            return;
        };
        let line = server.process.logged(says);
        assert!(line.contains(knob) && line.contains("reads all files each second"), "{line}");
        change_in_all_ways(&folder, &server);
        assert!(metrics(&server).contains("\nspillgate_watch_polls 1\n"));
        let lines = server.process.stderr();
        assert_eq!(lines.iter().filter(|line| line.contains(says)).count(), 1, "{lines:?}");
    }
}

/// A mount of a single file, as Kubernetes makes it for `subPath`.
#[test]
fn the_doctor_finds_files_that_are_mounted_alone() {
    let settings = "rules: [rules]\nadmin_token_file: token\ntls: {cert: c.pem, key: c.key, client_ca: ca.pem}\n";
    let folder = Folder::new(&[
        ("new.yaml", &rules(6)),
        ("rules/a.yaml", &rules(5)),
        ("s.yaml", settings),
        ("token", "the-write-token-of-this-test\n"),
        ("c.pem", ""),
        ("c.key", ""),
        ("ca.pem", ""),
    ]);
    let alone = ["c.key", "c.pem", "ca.pem", "rules/a.yaml", "s.yaml", "token"];
    let mounts = alone.map(|file| format!("mount --bind {file} {file}")).join(" && ");
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_spillgate")]).current_dir(folder.path("."));
        command.output().ok()
    };
    if !run(&mounts).is_some_and(|output| output.status.success()) {
        eprintln!("skipped: this machine has no user namespaces in which a file can be mounted");
        return;
    }
    let output = run(&format!("{mounts} && \"$0\" doctor --config s.yaml --json")).expect("the command runs");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!((output.status.code(), &report["ok"]), (Some(1), &json!(false)), "{report}");
    let findings = report["findings"].as_array().expect("there is a list");
    let of = |what: &str| {
        let findings = findings.iter().filter(|finding| finding["what"] == what);
        findings.filter_map(|finding| finding["found"].as_str()).collect::<Vec<_>>()
    };
    let mut found = of("files");
    found.sort_unstable();
    assert_eq!((found.len(), of("tls")), (alone.len(), vec!["c.pem is empty"]), "{report}");
    assert_eq!(findings.len(), alone.len() + 1, "{report}");
    for (found, file) in found.iter().zip(alone) {
        assert!(found.contains(&format!("/{file} is mounted alone")), "{report}");
    }
    assert!(findings[0]["help"].as_str().is_some_and(|help| help.contains("subPath")), "{report}");
}

#[test]
fn the_doctor_of_a_server_without_a_store_examines_its_files() {
    let folder = Folder::new(&[("rules.yaml", &rules(5)), ("s.yaml", "rules: [rules.yaml]\n")]);
    let good = folder.run("doctor --config s.yaml");
    let expected =
        "store memory\n  ok  files  no file is mounted alone, so the server sees every change\n\nall is well\n";
    assert_eq!((good.code, &*good.stdout), (0, expected), "{good:?}");
    folder.write("server.pem", "no certificate");
    folder.write("tls.yaml", "rules: [rules.yaml]\ntls: {cert: server.pem, key: server.pem}\n");
    let broken = folder.run("doctor --config tls.yaml");
    assert!(broken.code == 1 && broken.stdout.contains("fix  tls  "), "{broken:?}");
    let nothing = folder.run("doctor");
    assert!(nothing.code == 2 && nothing.stderr.contains("the store is memory"), "{nothing:?}");
}
