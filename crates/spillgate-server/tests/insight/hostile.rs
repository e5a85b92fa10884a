//! Tests of `spillgate insight` with servers that are wrong, slow or hostile. The command must end, say what is wrong
//! and where, and print nothing that a terminal obeys.

use std::io::{BufRead as _, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use serde_json::Value;

use super::{RULES, ask};
use crate::cli_support::{Folder, Output};
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

const ESCAPES: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}evil\u{2028}\nfake: effective";

/// Answers one request by `answer`, and then closes the connection. Returns the argument for the command.
fn serve(answer: impl FnOnce(&mut TcpStream) -> std::io::Result<()> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the listener has an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the command connects");
        let mut lines = BufReader::new(stream.try_clone().expect("the stream can be cloned")).lines();
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        // The command may close the connection first.
        drop(answer(&mut stream));
    });
    format!("--admin=http://{address}")
}

fn serve_body(body: Vec<u8>) -> String {
    serve(move |stream| {
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len())?;
        stream.write_all(&body)
    })
}

fn assert_clean(output: &Output, what: &str) {
    let obeyed =
        |c: char| c != '\n' && c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!output.stdout.contains(obeyed) && !output.stderr.contains(obeyed), "{what}: {output:?}");
}

fn real_page(folder: &Folder) -> Value {
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--insight-keys=plain"]);
    ask(&server, "ann", 4, 1);
    let page = http::request(server.admin(), "GET", "/insight?readings=true", &[], "").expect("the server answers");
    serde_json::from_str(&page.body).expect("it is JSON")
}

#[test]
fn no_text_of_a_server_is_obeyed_by_the_terminal() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let page = real_page(&folder);
    let texts = [
        "/limits/0/domain",
        "/limits/0/rule",
        "/limits/0/name",
        "/limits/0/file",
        "/limits/0/algorithm",
        "/limits/0/suggested_rules",
        "/limits/0/options/anchor",
        "/limits/0/reading/top_refused/callers/0/name",
        "/limits/0/reading/top_refused/callers/0/id",
        "/limits/0/reading/limit",
        "/limits/0/reading/now_ns",
        "/server/id",
    ];
    for pointer in texts {
        let mut page = page.clone();
        *page.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is missing")) = ESCAPES.into();
        for json in [false, true] {
            let admin = serve_body(page.to_string().into_bytes());
            let arguments = ["insight", &admin, "--json"];
            let output = folder.run_with(&arguments[..if json { 3 } else { 2 }], &[]);
            assert_clean(&output, pointer);
            assert!(matches!(output.code, 0 | 3), "{pointer}: {output:?}");
            assert!(!output.stdout.lines().any(|line| line.starts_with("fake")), "{pointer}: {output:?}");
        }
    }
}

#[test]
fn a_caller_cannot_look_like_several() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &["--insight-keys=plain"]);
    // Two units are refused. A single unit could become zero, because the counts in the list of callers are halved
    // every ten minutes.
    ask(&server, r#"a" 99.0 %, "user=victim"#, 4, 1);
    let output = folder.run_with(&["insight", &format!("--admin=http://{}", server.admin())], &[]);
    assert!(output.stdout.contains("s: 4 requests, 2 refused (50.0 %); 1 caller, 1 refused"), "{output:?}");
    assert!(output.stdout.contains(r#"most refused units: "user=a\" 99.0 %, \"user=victim" 100.0 %"#), "{output:?}");
}

#[test]
fn wrong_answers_are_errors_that_say_what_and_where() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let page = real_page(&folder).to_string();
    let changed = |from: &str, to: &str| {
        assert!(page.contains(from), "{from}: {page}");
        page.replace(from, to)
    };
    let answers = [
        String::new(),
        "null".into(),
        "<html>\u{1b}[31mhi</html>".into(),
        "[".repeat(200_000),
        format!("\"{}\"", "a".repeat(1 << 20)),
        changed("\"now_ns\":", "\"now_ns\":NaN,\"x\":"),
        changed("\"rate\":", "\"rate\":1e999,\"x\":"),
        changed("\"capacity\":", "\"capacity\":-1,\"x\":"),
        changed("\"spans\":[", "\"spans\":[[],"),
        page[..page.len() / 2].to_owned(),
    ];
    for answer in answers {
        let start: String = answer.chars().take(40).collect();
        let admin = serve_body(answer.into_bytes());
        let output = folder.run_with(&["insight", &admin], &[]);
        assert_clean(&output, &start);
        let address = admin.trim_start_matches("--admin=");
        assert!(output.code == 3 && output.stdout.is_empty(), "{start}: {output:?}");
        assert!(output.stderr.contains(&format!("the answer of {address} is no insight")), "{start}: {output:?}");
        assert!(output.stderr.contains("--admin") && output.stderr.len() < 2_000, "{start}: {output:?}");
    }
}

#[test]
fn extreme_numbers_are_shown_without_a_panic() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let page = real_page(&folder);
    let numbers = ["now_ns", "since_ns", "first_since_ns"].map(|name| format!("/limits/0/reading/{name}"));
    let counts =
        ["requests", "refused_requests", "units"].map(|name| format!("/limits/0/reading/spans/2/counts/{name}"));
    let others = [
        "/limits/0/limit",
        "/limits/0/window_ns",
        "/limits/0/reading/spans/2/sampled/threshold",
        "/server/unwatched_limits",
    ];
    for pointer in numbers.iter().chain(&counts).map(String::as_str).chain(others) {
        for number in [0, 1, u64::MAX] {
            let mut page = page.clone();
            *page.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is missing")) = number.into();
            let extreme = serve_body(page.to_string().into_bytes());
            page["server"]["id"] = "another".into();
            let other = serve_body(page.to_string().into_bytes());
            let output = folder.run_with(&["insight", &extreme, &other], &[]);
            assert!(output.code == 0 && !output.stderr.contains("panic"), "{pointer} {number}: {output:?}");
        }
    }
}

#[test]
fn broken_servers_are_errors_that_say_what_to_do() {
    let folder = Folder::new(&[]);
    let fails = |admin: &str, message: &str, help: &str| {
        let output = folder.run_with(&["insight", admin], &[]);
        assert_clean(&output, message);
        assert!(output.code == 3 && output.stderr.contains(message) && output.stderr.contains(help), "{output:?}");
    };
    let redirect = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    let says = |answer: &'static str| serve(move |stream| stream.write_all(answer.as_bytes()));
    fails(&says(redirect), "follows no redirection", "of the admin listener itself");
    fails(&says("HTTP/1.1 500 \u{1b}[31mx\r\ncontent-length: 0\r\n\r\n"), "http://127.0.0.1:", "the setting `admin`");
    fails(&says("HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"), "answered 503", "the setting `admin`");
    fails(&says("SSH-2.0-OpenSSH_9.6\r\n"), "broke off", "the setting `admin`");
    fails(&says(""), "broke off", "the setting `admin`");
    fails(&says("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"), "broke off", "the setting `admin`");
}

#[test]
fn an_answer_that_is_too_long_is_not_read_to_its_end() {
    let folder = Folder::new(&[]);
    // The command waits for ten seconds. On a busy machine, 256 MiB can need more, so the test tries again.
    let output = eventually("256 MiB are read in ten seconds", || {
        let admin = serve(|stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"limits\":[")?;
            let spaces = vec![b' '; 1 << 20];
            // The command closes the connection before the end.
            (0..100_000).try_for_each(|_| stream.write_all(&spaces))
        });
        let output = folder.run_with(&["insight", &admin], &[]);
        (!output.stderr.contains("did not answer within 10 s")).then_some(output)
    });
    assert!(output.code == 3 && output.stderr.contains("has more than 256 MiB"), "{output:?}");
    assert!(output.stderr.contains("insight.max_callers"), "{output:?}");
}

#[test]
fn a_server_that_never_answers_does_not_hold_the_command() {
    let folder = Folder::new(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let admin = format!("--admin=http://{}", listener.local_addr().expect("the listener has an address"));
    // Each server has its own time limit, and all are asked at the same time.
    let output = folder.run_with(&["insight", &admin, &admin, &admin], &[]);
    assert_eq!((output.code, output.stderr.matches("did not answer within 10 s").count()), (3, 3), "{output:?}");
}
