//! Many reloads under load: no request fails, each valid change is taken, and each invalid one is reported once.
//!
//! `make show-watch` makes 50 changes in each way. It also shows how long a change takes until it is in force, which no
//! test asserts.

#![allow(clippy::print_stdout, reason = "`make show-watch` shows the times")]

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use super::{ON, domain, in_place, limit_of, link_anew, reloads, rename_over, serve_with_limit};
use crate::cli_support::Folder;
use crate::hostile::http2;
use crate::support::eventually;
use crate::support::http;
use crate::support::load::{Client, Load};
use crate::support::spillgate::Spillgate;
use crate::tls::support::metric;

/// Of five changes, this one is invalid. The next one makes the files valid again.
const INVALID: usize = 2;
const FIRST_LIMIT: u64 = 100;

/// How a program changes the file `changing.yaml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    InPlace,
    Renamed,
    AddedAndRemoved,
    /// It leads to a folder of `..data`, a link that is made anew.
    ConfigMap,
}

impl Way {
    fn folder(self) -> Folder {
        let folder = Folder::new(&[("rules/steady.yaml", &domain("steady", 1_000_000_000))]);
        if self == Way::ConfigMap {
            folder.write("rules/..0/changing.yaml", &domain("changing", FIRST_LIMIT));
            symlink("..0", folder.path("rules/..data")).expect("the link can be made");
            symlink("..data/changing.yaml", folder.path("rules/changing.yaml")).expect("the link can be made");
        } else {
            folder.write("rules/changing.yaml", &domain("changing", FIRST_LIMIT));
        }
        folder
    }

    /// Makes the change with this number. Returns the limit that is in force after it.
    fn change(self, folder: &Folder, number: usize, before: Option<u64>) -> Option<u64> {
        let limit = FIRST_LIMIT + number as u64;
        let is_valid = number % 5 != INVALID;
        let text = if is_valid { domain("changing", limit) } else { invalid(number) };
        let after = if is_valid { Some(limit) } else { before };
        match self {
            Way::InPlace => in_place(folder, "rules/changing.yaml", &text),
            Way::Renamed => rename_over(folder, "rules/changing.yaml", &text),
            Way::ConfigMap => {
                folder.write(&format!("rules/..{number}/changing.yaml"), &text);
                let old = fs::read_link(folder.path("rules/..data")).expect("the link exists");
                link_anew(folder, &format!("..{number}"), "rules/..data");
                fs::remove_dir_all(folder.path("rules").join(old)).expect("the folder exists");
            }
            Way::AddedAndRemoved => {
                let (changing, wrong) = (folder.path("rules/changing.yaml"), folder.path("rules/wrong.yaml"));
                if !is_valid {
                    folder.write("rules/wrong.yaml", &text);
                } else if wrong.exists() {
                    fs::remove_file(wrong).expect("the file exists");
                    return before;
                } else if changing.exists() {
                    fs::remove_file(changing).expect("the file exists");
                    return None;
                } else {
                    folder.write("rules/changing.yaml", &text);
                }
            }
        }
        after
    }
}

/// Returns rules with an error in line 2, which the log shows with this number.
fn invalid(number: usize) -> String {
    format!("domain: wrong\ndescriptors: [{{key_{number}_: user}}]\n")
}

/// Starts a client that makes a connection for each request, and one of gRPC that keeps its connection.
fn load(server: &Spillgate) -> Load {
    let (http, grpc) = (server.http(), server.grpc());
    let check = r#"{"domain": "steady", "descriptors": [{"user_id": "7"}]}"#;
    let by_http = move |_| {
        let answer = http::request(http, "POST", "/v1/check", &[], check).map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    };
    let mut connection = http2::Connection::open(grpc).expect("the server listens");
    let message = http2::message(&http2::rate_limit_request("steady", "user_id", "7", 1));
    let by_grpc = move |_| {
        let answer = connection.call(http2::SHOULD_RATE_LIMIT, &message).map_err(|error| error.to_string())?;
        // After the prefix of five bytes, the answer begins with field 1, the overall code. Its value is OK.
        let code = answer.as_deref().and_then(|data| data.get(5..7));
        if code == Some(&[8, 1][..]) { Ok(()) } else { Err(format!("{answer:?}")) }
    };
    let clients: [(&str, Client); 2] = [("HTTP", Box::new(by_http)), ("gRPC", Box::new(by_grpc))];
    Load::start(Duration::from_millis(10), clients)
}

/// Waits until the server has counted this many reloads with this many that failed. It may never count more.
fn until_counted(server: &Spillgate, count: usize, failed: usize) {
    let counted = || {
        let reloads = metric(server, "reloads_total{cause=\"watch\"}");
        let failures = metric(server, "reload_failures_total{unit=\"rules\"}");
        assert!(reloads <= count as u64 && failures <= failed as u64, "{:?}", reloads_with_errors(server));
        (reloads, failures) == (count as u64, failed as u64)
    };
    eventually(&format!("{count} reloads are counted, with {failed} that failed"), || counted().then_some(()));
}

fn reloads_with_errors(server: &Spillgate) -> Vec<String> {
    reloads(server).iter().map(|reload| format!("{}: {}", reload["outcome"], reload["errors"])).collect()
}

/// Changes the rules again and again in this way while the server has load.
fn many_changes(way: Way, folder: &Folder, server: &Spillgate) {
    let changes = std::env::var("WATCH_CHANGES").map_or(5, |text| text.parse().expect("it is a number"));
    let load = load(server);
    let (mut in_force, mut failed, mut took) = (Some(FIRST_LIMIT), 0, Vec::new());
    for number in 1..=changes {
        load.wait_for(1);
        let (before, begun) = (in_force, Instant::now());
        in_force = way.change(folder, number, before);
        eventually(&format!("change {number} is in force"), || {
            let limit = limit_of(server, "changing");
            assert!([before, in_force].contains(&limit), "{limit:?} was never written");
            (limit == in_force).then_some(())
        });
        if in_force != before {
            took.push(begun.elapsed().as_secs_f64());
        }
        let is_valid = number % 5 != INVALID;
        failed += usize::from(!is_valid);
        until_counted(server, number, failed);
        let newest = &reloads(server)[0];
        let outcome = if is_valid { "reloaded" } else { "failed" };
        assert_eq!((&newest["outcome"], &newest["cause"]), (&outcome.into(), &"watch".into()), "{newest}");
        // The server has looked at an invalid file again since it has reported it, and before the next reload.
        let reported = |number: usize| {
            let lines = server.process.stderr();
            lines.iter().filter(|line| line.contains(&format!("key_{number}_"))).cloned().collect::<Vec<_>>()
        };
        if number % 5 == INVALID + 1 {
            let lines = reported(number - 1);
            assert!(lines.len() == 1 && lines[0].contains(".yaml:2:"), "{lines:?}");
        }
    }
    load.wait_for(1);
    let passed = load.passed();
    assert_eq!(load.stop(), [""; 0]);
    took.sort_by(f64::total_cmp);
    let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{way:?}: {changes} changes, {failed} of them invalid, and {passed} requests, of which none failed");
    println!("from writing to in force, each right after the one before: median {median:.2} s, worst {worst:.2} s");
}

fn watched(way: Way) {
    let folder = way.folder();
    let server = Spillgate::serve(&folder.path("rules"), &ON);
    many_changes(way, &folder, &server);
    assert_eq!(metric(&server, "watch_polls"), 0);
}

#[test]
fn files_that_are_written_in_place_are_taken_under_load() {
    watched(Way::InPlace);
}

#[test]
fn files_that_are_renamed_are_taken_under_load() {
    watched(Way::Renamed);
}

#[test]
fn files_that_are_added_and_removed_are_taken_under_load() {
    watched(Way::AddedAndRemoved);
}

#[test]
fn a_configmap_is_taken_under_load() {
    watched(Way::ConfigMap);
}

#[test]
fn a_server_that_gets_no_inotify_takes_files_under_load() {
    let folder = Way::Renamed.folder();
    let Some(server) = serve_with_limit(&folder.path("rules"), "max_inotify_watches") else {
        eprintln!("skipped: this machine has no user namespaces, so the number of watches cannot be set");
        return;
    };
    many_changes(Way::Renamed, &folder, &server);
    assert_eq!(metric(&server, "watch_polls"), 1);
}
