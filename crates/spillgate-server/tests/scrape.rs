//! Tests of the pages `/metrics` and `/rules` of a server that has many rules. Serving a page takes little memory, and
//! no CPU time of the worker threads (the threads that decide requests).
//!
//! If worker threads served pages, a large page could delay requests. Many slow readers could fill the memory with
//! pages.

#![allow(clippy::unwrap_used, reason = "a panic makes the test fail")]

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

const RULES: usize = 20_000;
/// How many pages a caller can read at the same time. The server refuses the next one.
const PAGES: usize = 8;
const MIB: u64 = 1 << 20;

fn serve() -> Spillgate {
    let rules = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let mut text = "domain: api\ndescriptors:\n".to_owned();
    for number in 0..RULES {
        writeln!(text, "  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 9}}}}").unwrap();
    }
    fs::write(rules.path(), text).unwrap();
    Spillgate::serve(rules.path(), &["--workers", "1"])
}

/// The CPU time, in clock ticks, that is enough to compare the shares of threads. A tick is usually 10 ms.
const MEASURED_TICKS: u64 = 50;

/// Returns the CPU time in a `stat` file of Linux, in clock ticks.
fn ticks(stat: &str) -> u64 {
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Returns the CPU time of the server, and that of its only worker thread.
fn cpu_ticks(spillgate: &Spillgate) -> (u64, u64) {
    let process = format!("/proc/{}", spillgate.process.id());
    // A thread gives itself its name after it has begun, which can be later than the line that the server is ready. A
    // thread can also end while the list is read.
    let worker = eventually("the worker has its name", || {
        let tasks = fs::read_dir(format!("{process}/task")).unwrap().filter_map(Result::ok);
        let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        stats.find(|stat| stat.contains("(worker-0)"))
    });
    (ticks(&fs::read_to_string(format!("{process}/stat")).unwrap()), ticks(&worker))
}

#[test]
fn a_scrape_takes_no_time_of_a_worker() {
    let spillgate = serve();
    let (all_before, worker_before) = cpu_ticks(&spillgate);
    // The CPU time of a page depends on the machine. The share of the worker does not: it must be nearly nothing.
    let (mut all, mut worker) = (0, 0);
    while all < MEASURED_TICKS {
        let page = http::get(spillgate.admin(), "/metrics", &[]).body;
        for name in ["decisions", "limit_hits", "limit_units"] {
            let is_refused = |line: &&str| {
                line.starts_with(&format!("spillgate_{name}_total{{")) && line.ends_with("outcome=\"refused\"} 0")
            };
            assert_eq!(page.lines().filter(is_refused).count(), RULES, "{name}");
        }
        assert_eq!(http::get(spillgate.admin(), "/rules", &[]).body.matches("\"unlimited\":").count(), RULES);
        let now = cpu_ticks(&spillgate);
        (all, worker) = (now.0 - all_before, now.1 - worker_before);
    }
    assert!(worker * 10 <= all, "the worker used {worker} of the {all} ticks of CPU time that the pages took");
}

#[test]
fn pages_that_are_read_slowly_take_little_memory_and_their_number_is_bounded() {
    let spillgate = serve();
    for path in ["/metrics", "/rules"] {
        http::get(spillgate.admin(), path, &[]);
        let before = spillgate.process.resident_bytes();
        let slow: Vec<_> = (0..PAGES)
            .map(|_| {
                let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                socket.set_recv_buffer_size(4096).unwrap();
                socket.connect(&spillgate.admin().into()).unwrap();
                let mut stream = TcpStream::from(socket);
                write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
                // When these bytes have arrived, the server has begun to send the page.
                stream.read_exact(&mut [0; 12]).unwrap();
                stream
            })
            .collect();
        let refused = http::get(spillgate.admin(), path, &[]);
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.body);
        let grown = spillgate.process.resident_bytes().saturating_sub(before);
        assert!(grown < PAGES as u64 * MIB, "{path}: the memory grew by {grown} bytes for {PAGES} slow readers");
        drop(slow);
        eventually("the page is served again", || {
            (http::get(spillgate.admin(), path, &[]).status == 200).then_some(())
        });
    }
}

#[test]
fn readers_without_progress_take_pages_only_from_themselves_and_lose_them() {
    let rules = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let mut text = "domain: api\ndescriptors:\n".to_owned();
    for number in 0..RULES {
        writeln!(text, "  - {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 9}}}}").unwrap();
    }
    fs::write(rules.path(), text).unwrap();
    // One server is so patient that its clients stay stuck on any machine, and the other one is not.
    let [patient, spillgate] =
        ["1h", "1s"].map(|receive| Spillgate::serve(rules.path(), &["--limits-receive", receive]));
    let from = |spillgate: &Spillgate, address: &str| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let own: std::net::SocketAddr = format!("{address}:0").parse().unwrap();
        socket.bind(&own.into()).unwrap();
        socket.connect(&spillgate.admin().into()).unwrap();
        let mut stream = TcpStream::from(socket);
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8_lossy(&status[9..]).into_owned())
    };
    let _stuck: Vec<_> = (0..PAGES).map(|_| from(&patient, "127.0.0.1").0).collect();
    assert_eq!(from(&patient, "127.0.0.1").1, "503", "the caller has taken all of its pages");
    assert_eq!(from(&patient, "127.0.0.2").1, "200", "another caller is served");
    let mut stuck: Vec<_> = (0..PAGES).map(|_| from(&spillgate, "127.0.0.1").0).collect();
    // The stuck clients still read nothing, and lose their connections.
    eventually("the caller can read pages again", || (from(&spillgate, "127.0.0.1").1 == "200").then_some(()));
    stuck.clear();
}
