//! Certificates that a server watches.

#![allow(clippy::disallowed_methods, reason = "a certificate becomes valid at a time of the clock")]

use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::cli_support::Folder;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};
use crate::tls::support::{
    Authority, ended, folder, metric, reload, replace, serve, serve_with_client_ca, status, subject,
};
use crate::watch::{link_anew, reload as listed, reloads};

const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

fn unit(name: &str, outcome: &str) -> Value {
    json!([{"unit": name, "outcome": outcome}])
}

/// Waits until the server shows the certificate with this name.
fn until_subject(folder: &Folder, server: &Spillgate, name: &str) {
    eventually(name, || subject(folder, server.http()).contains(name).then_some(()));
}

#[test]
fn a_secret_is_taken_at_each_swap_of_its_link() {
    let (folder, authority) = folder();
    let version = |number: usize| {
        let name = format!("number{number}");
        authority.issue(&folder, &name, &NAMES, |_| {});
        for end in ["pem", "key"] {
            let text = std::fs::read_to_string(folder.path(&format!("{name}.{end}"))).expect("the file exists");
            folder.write(&format!("secret/..{number}/tls.{end}"), &text);
        }
        link_anew(&folder, &format!("..{number}"), "secret/..data");
        name
    };
    version(1);
    for end in ["pem", "key"] {
        std::fs::remove_file(folder.path(&format!("server.{end}"))).expect("the file exists");
        symlink(format!("..data/tls.{end}"), folder.path(&format!("secret/tls.{end}"))).expect("the link can be made");
        symlink(format!("secret/tls.{end}"), folder.path(&format!("server.{end}"))).expect("the link can be made");
    }
    let server = serve(&folder, &["--watch", "on"]);
    assert!(subject(&folder, server.http()).contains("number1"));
    for number in 2..4 {
        let name = version(number);
        std::fs::remove_dir_all(folder.path(&format!("secret/..{}", number - 1))).expect("the folder exists");
        until_subject(&folder, &server, &name);
    }
    assert!(server.process.logged("the listeners have a new certificate").contains("cause=\"watch\""));
    let all = reloads(&server);
    assert!(all.iter().all(|reload| reload["units"] == unit("certificate", "reloaded")), "{all:?}");
}

#[test]
fn a_pair_that_is_replaced_file_by_file_is_taken_when_it_fits() {
    let (folder, authority) = folder();
    authority.issue(&folder, "second", &NAMES, |_| {});
    let server = serve(&folder, &["--watch", "on"]);
    replace(&folder, "server.pem", "first.pem");
    replace(&folder, "second.pem", "server.pem");
    assert_eq!(listed(&server, 1)["units"], unit("certificate", "failed"));
    server.process.logged("does not belong to the first certificate");
    assert_eq!(metric(&server, "reload_failed_units"), 1);
    let answer = http::request(server.admin(), "POST", "/reload", &[("x-spillgate-admin", "1")], "");
    let problem: Value = serde_json::from_str(&answer.expect("the server answers").body).expect("it is JSON");
    let key = folder.path("server.key").display().to_string();
    assert_eq!(problem["errors"][0]["file"], json!(key), "{problem}");
    // The file is put back, which changes nothing and ends the failure.
    replace(&folder, "first.pem", "server.pem");
    let recovered = listed(&server, 3);
    assert_eq!(recovered["units"], unit("certificate", "reloaded"));
    let note = recovered["notes"]["lines"][0].as_str().unwrap_or_default();
    assert!(note.contains("certificate say what is in use again"), "{recovered}");
    assert_eq!(metric(&server, "reload_failed_units"), 0);
    replace(&folder, "second.pem", "server.pem");
    assert_eq!(listed(&server, 4)["units"], unit("certificate", "failed"));
    replace(&folder, "second.key", "server.key");
    until_subject(&folder, &server, "second");
    assert_eq!(listed(&server, 5)["changes"]["lines"], json!(["new: the certificate of the listeners"]));
}

#[test]
fn a_certificate_that_is_not_yet_valid_is_taken_when_it_is() {
    let (folder, authority) = folder();
    // Polling looks each second.
    let server = serve(&folder, &["--watch", "poll"]);
    let begin = SystemTime::now() + Duration::from_secs(20);
    authority.issue(&folder, "second", &NAMES, |params| params.not_before = begin.into());
    replace(&folder, "second.key", "server.key");
    replace(&folder, "second.pem", "server.pem");
    until_subject(&folder, &server, "second");
    // A busy machine may not have looked before the certificate was valid.
    let refused = server.process.stderr().iter().filter(|line| line.contains("is not valid before")).count();
    assert!(refused <= 1, "{:?}", server.process.stderr());
    // It is in use a moment before its reload is in the list.
    eventually("the reload is listed", || {
        (reloads(&server).first()?["units"] == unit("certificate", "reloaded")).then_some(())
    });
}

#[test]
fn a_server_that_starts_with_certificates_that_have_ended_reports_no_reload() {
    let (folder, authority) = folder();
    let in_2020 = Authority::new_with("of 2020", ended);
    folder.write("ca.pem", &in_2020.pem());
    authority.issue(&folder, "server", &NAMES, ended);
    let server = serve_with_client_ca(&folder, &["--watch", "poll"]);
    server.process.logged("the certificate in");
    // The rules are taken at their second look, and so the other units had two looks too.
    let rules = std::fs::read_to_string(folder.path("rules.yaml")).expect("the file exists");
    folder.write("rules.yaml", &rules.replace("1000000", "2000000"));
    let only = listed(&server, 1);
    assert_eq!((&only["units"], &only["outcome"]), (&unit("rules", "reloaded"), &json!("reloaded")));
    assert_eq!((reload(&server).as_str(), metric(&server, "reload_failed_units")), ("[]", 0));
    let lines = server.process.stderr();
    assert!(!lines.iter().any(|line| line.contains("ERROR") || line.contains("cannot be replaced")), "{lines:?}");
}

/// Many clients have the certificates of the authorities themselves.
#[test]
fn only_the_first_certificate_of_a_file_has_to_be_valid() {
    let (folder, authority) = folder();
    let server = serve(&folder, &[]);
    authority.issue(&folder, "second", &NAMES, |_| {});
    let first = std::fs::read_to_string(folder.path("second.pem")).expect("the file exists");
    folder.write("server.pem", &(first + &Authority::new_with("of 2020", ended).pem()));
    replace(&folder, "second.key", "server.key");
    assert!(reload(&server).contains("new: the certificate of the listeners"));
    assert!(server.process.logged("so its use fails").contains("certificate 2 in"), "{:?}", server.process.stderr());
    assert_eq!(metric(&server, "tls_certificate_end_timestamp_seconds"), 1_609_459_200);
    assert_eq!(status(&folder, server.http(), &[]), Ok(404));
    authority.issue(&folder, "server", &NAMES, ended);
    assert!(reload(&server).contains("the first certificate in"));
}
