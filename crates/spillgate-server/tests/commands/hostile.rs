//! Commands for operators whose server refuses them, breaks off or answers nonsense.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use crate::cli_support::{Folder, Output};
use crate::commands::RULES;
use crate::support::spillgate::Spillgate;

const BLOCK: [&str; 4] = ["block", "user_id=7", "--for", "10m"];

/// Every command, each with valid arguments.
const ALL: [&[&str]; 9] = [
    &BLOCK,
    &["unblock", "user_id=7"],
    &["blocks"],
    &["shadow", "on", "user_id", "--for=1m"],
    &["shadows"],
    &["reset", "--domain=api", "--descriptor=user_id=7"],
    &["explain", "--domain=api", "--descriptor=user_id=7"],
    &["top"],
    &["reload"],
];

#[test]
fn a_token_comes_from_a_file_that_a_flag_or_a_variable_names() {
    let folder = Folder::new(&[("rules.yaml", RULES), ("write", "w"), ("read", "r"), ("wrong", "x"), ("empty", "")]);
    let path = |name: &str| folder.path(name).display().to_string();
    let (write, read) = (path("write"), path("read"));
    let tokens = ["--admin-token-file", &write, "--admin-read-token-file", &read];
    let server = Spillgate::serve(&folder.path("rules.yaml"), &tokens);
    let admin = format!("--admin=http://{}", server.admin());
    let run = |command: &[&str], more: &[&str], variables: &[(&str, &str)]| -> Output {
        folder.run_with(&[command, &[&admin], more].concat(), variables)
    };
    for command in ALL {
        let none = run(command, &[], &[]);
        assert!(none.code == 3 && none.stderr.contains("needs its admin token"), "{command:?}: {none:?}");
        assert!(none.stderr.contains("--admin-token-file"), "{none:?}");
        let wrong = run(command, &["--admin-token-file=wrong"], &[]);
        assert!(wrong.code == 3 && wrong.stderr.contains("refuses this admin token"), "{command:?}: {wrong:?}");
    }
    let reads = run(&BLOCK, &["--admin-token-file=read"], &[]);
    assert!(reads.code == 3 && reads.stderr.contains("this admin token may only read"), "{reads:?}");
    assert!(reads.stderr.contains("setting admin_token_file"), "{reads:?}");
    assert_eq!(run(&["blocks"], &["--admin-token-file=read"], &[]).code, 0);
    assert_eq!(run(&BLOCK, &["--admin-token-file=write"], &[]).code, 0);
    let variable = [("SPILLGATE_ADMIN_TOKEN_FILE", &*write)];
    assert_eq!(run(&["unblock", "user_id=7"], &[], &variable).code, 0);
    assert_eq!(run(&["insight"], &[], &variable).code, 0);
    assert_eq!(run(&["blocks"], &["--admin-token-file=wrong"], &variable).code, 3, "the flag wins");
    for (file, says) in [("empty", "holds no token"), ("missing", "cannot be read")] {
        let output = run(&["blocks"], &["--admin-token-file", file], &[]);
        assert!(output.code == 2 && output.stderr.contains(says), "{output:?}");
    }
    let output = run(&["blocks"], &[], &[("SPILLGATE_ADMIN_TOKEN_FILE", "missing")]);
    assert!(output.code == 2 && output.stderr.contains("SPILLGATE_ADMIN_TOKEN_FILE"), "{output:?}");
}

#[test]
fn a_server_that_was_killed_is_not_available() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let mut server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let admin = format!("--admin=http://{}", server.admin());
    server.process.kill();
    for command in ALL {
        let output = folder.run_with(&[command, &[&admin]].concat(), &[]);
        assert_eq!((output.code, &*output.stdout), (3, ""), "{command:?}");
        assert!(
            output.stderr.contains("cannot be reached") && output.stderr.contains("the setting `admin`"),
            "{output:?}"
        );
    }
}

/// Starts a server that reads each request, and answers it with `answer`. Returns the flag with its address.
fn answering(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("a listener has an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client connects");
            let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
            // A body is sent with its head, or right after it.
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut chunk) {
                    Ok(length) if length > 0 => request.extend_from_slice(&chunk[..length]),
                    _ => break,
                }
            }
            drop(stream.write_all(answer));
        }
    });
    format!("--admin=http://{address}")
}

#[test]
fn a_lost_answer_to_a_change_says_that_it_may_have_been_made() {
    let (folder, admin) = (Folder::new(&[]), answering(b""));
    let block = [&BLOCK[..], &["--allow-unmatched"]].concat();
    for command in [&block[..], &["reload"], &["reset", "-d=api", "-e=user_id=7"]] {
        let output = folder.run_with(&[command, &[&admin]].concat(), &[]);
        assert!(output.code == 3 && output.stderr.contains("the change may have been made"), "{output:?}");
    }
    // Without the flag, the first request only asks for the names that rules have.
    for command in [&BLOCK[..], &["explain", "--caller=a=1"], &["blocks"], &["explain", "-d=api", "-e=user_id=7"]] {
        let output = folder.run_with(&[command, &[&admin]].concat(), &[]);
        assert!(output.code == 3 && !output.stderr.contains("may have been made"), "{output:?}");
    }
}

#[test]
fn nonsense_from_a_server_is_an_error_and_reaches_no_terminal() {
    let folder = Folder::new(&[]);
    let nonsense: [(&'static [u8], &str); 4] = [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "is not as spillgate writes it"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi\x1b", "is not as spillgate writes it"),
        (b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", "follows no redirection"),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 31\r\n\r\n{\"detail\":\"a\\u001b[31m\",\"help\":1}", "answered 500"),
    ];
    for (answer, says) in nonsense {
        let admin = answering(answer);
        for command in [&BLOCK[..], &["blocks"], &["explain", "-d=api", "-e=user_id=7"], &["top"], &["reload"]] {
            let output = folder.run_with(&[command, &[&admin]].concat(), &[]);
            assert_eq!((output.code, &*output.stdout), (3, ""), "{command:?}: {}", output.stderr);
            assert!(
                output.stderr.contains(says) && !output.stderr.contains('\u{1b}'),
                "{command:?}: {}",
                output.stderr
            );
        }
    }
    let blocks = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"scope\":\"x\",\"unreadable\":0,\"max\":1,\"blocks\":[{\"key\":\"k\",\"value\":\"\\u001b]0;x\",\"ends_in_ms\":18446744073709551615,\"refused\":1}]}";
    let output = folder.run_with(&["blocks", &answering(blocks)], &[]);
    assert!(output.code == 0 && output.stdout.contains(r"k=\u{1b}]0;x"), "{output:?}");
    let deep = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"costs\":[1],\"unknown\":[],\"known\":{\"paths\":[],\"left_out\":0},\"asked\":[],\"descriptors\":[{\"entries\":[[\"k\",\"v\"]],\"steps_left_out\":0,\"matched\":null,\"block\":null,\"steps\":[{\"level\":18446744073709551615,\"key\":\"k\",\"value\":\"v\",\"how\":\"key\",\"outcome\":\"matched\"}]}]}";
    let output = folder.run_with(&["explain", "-d=api", "-e=k=v", &answering(deep)], &[]);
    assert!(output.code == 0 && output.stdout.contains("k=v  the key, any value"), "{output:?}");
}

#[test]
fn a_list_that_was_not_read_from_the_store_says_so() {
    let folder = Folder::new(&[]);
    let never = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"scope\":\"fleet\",\"scope_default\":\"fleet\",\"read_ms_ago\":null,\"unreadable\":0,\"max\":1,\"blocks\":[],\"all\":null,\"rules\":[],\"by_file\":[],\"by_file_left_out\":0,\"by_server\":false}";
    let admin = answering(never);
    for (command, none) in [("blocks", "no caller is blocked"), ("shadows", "no shadow switch is on")] {
        let output = folder.run_with(&[command, &admin], &[]);
        let says = format!("{none}\nthe shared store was not read yet, so its blocks and switches are not known\n");
        assert_eq!((output.code, &*output.stdout), (0, &*says), "{output:?}");
    }
    let old = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"scope\":\"fleet\",\"read_ms_ago\":61000,\"unreadable\":2,\"max\":1,\"blocks\":[]}";
    let output = folder.run_with(&["blocks", &answering(old)], &[]);
    let says = "no caller is blocked\nthe shared store was last read 1m1s ago\n\
                entries of the lists in the shared store that cannot be read: 2\n";
    assert_eq!((output.code, &*output.stdout), (0, says), "{output:?}");
}

#[test]
fn the_http_listener_is_not_the_admin_listener() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    let server = Spillgate::serve(&folder.path("rules.yaml"), &[]);
    let admin = format!("--admin=http://{}", server.http());
    for command in ALL {
        let output = folder.run_with(&[command, &[&admin]].concat(), &[]);
        assert!(output.code == 3 && output.stderr.contains("the setting `admin`"), "{command:?}: {output:?}");
    }
    for wrong in ["https://127.0.0.1", "127.0.0.1", ""] {
        let output = folder.run_with(&["blocks", &format!("--admin={wrong}")], &[]);
        assert!(output.code == 2 && output.stderr.contains("unix:/path"), "{output:?}");
    }
}
