//! Lines that real servers write for real requests. Lines of Apache are copied from its documentation.

#![allow(clippy::disallowed_methods, reason = "the times of the lines are compared with the clock")]

use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use tempfile::TempDir;

use super::{Copied, file, reader, values};
use crate::support::http::get;
use crate::support::process::Process;
use crate::support::{eventually, from_environment};

/// A user agent with the characters that servers write as escapes.
const AGENT: &str = "say \"hi\" \\ é\t.";
/// The credentials of the user `a [b] c`.
const AUTHORIZATION: &str = "Basic YSBbYl0gYzpw";
/// An address that the client claims to have. Only Envoy logs this address.
const FORWARDED: &str = "203.0.113.7";
const WANTED: [&str; 7] = ["remote_addr", "method", "path", "args", "status", "user_agent", "protocol"];

struct Server {
    _process: Process,
    address: SocketAddr,
    folder: TempDir,
    started: SystemTime,
}

impl Server {
    /// Starts a server with the configuration `text`, in which PORT and FOLDER are replaced.
    fn start(name: &'static str, text: &str, command: impl Fn(&Path, &Path) -> Command) -> Server {
        let started = SystemTime::now();
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("a temporary folder can be made");
            let address = SocketAddr::new([127, 0, 0, 1].into(), spillgate_testkit::free_port());
            let text = text.replace("PORT", &address.port().to_string());
            let text = text.replace("FOLDER", folder.path().to_str().expect("the path is UTF-8"));
            let file = folder.path().join("configuration.yaml");
            fs::write(&file, text).expect("the file can be written");
            let mut process = Process::start(name, &mut command(&file, folder.path()));
            let serving = eventually(name, || match process.is_running() {
                true => TcpStream::connect(address).is_ok().then_some(true),
                false => Some(false),
            });
            if serving {
                return Server { _process: process, address, folder, started };
            }
        }
        panic!("{name} does not start on any of five ports");
    }

    /// Sends a request with a value for every field of a log line, and then a request without a user agent.
    fn send(&self) {
        let forwarded = ("x-forwarded-for", FORWARDED);
        get(self.address, "/a/b?c=d", &[("user-agent", AGENT), ("authorization", AUTHORIZATION), forwarded]);
        get(self.address, "/%C3%A9", &[forwarded]);
    }

    /// Waits until a log has this many lines, and reads it.
    fn requests(&self, log: &str, lines: usize, format: &str, wanted: &[&str]) -> Vec<Copied> {
        let path = self.folder.path().join(log);
        let text = eventually("the log", || {
            fs::read(&path).ok().filter(|text| text.iter().filter(|byte| **byte == b'\n').count() >= lines)
        });
        let mut log = super::Ordered::new(vec![file(text.clone())], &reader(format, wanted), std::time::Duration::ZERO);
        let mut requests = Vec::new();
        while let Some(request) = log.next() {
            let values = values(request.fields, wanted.len());
            let text = String::from_utf8_lossy(request.text).into_owned();
            let time_ns = request.time.as_nanos();
            requests.push(Copied { time_ns, file: request.file, line: request.line, text, values });
        }
        let counts = log.counts();
        assert_eq!(counts.unreadable.count, 0, "{:?}", counts.unreadable.first);
        assert_eq!(requests.len(), lines, "{}", String::from_utf8_lossy(&text));
        requests
    }
}

/// Asserts that the log has the two requests of [`Server::send`].
fn assert_are_of_send(requests: &[Copied], server: &Server, client: &str) {
    let first = [client, "GET", "/a/b", "c=d", "200", AGENT, "HTTP/1.1"];
    let first: Vec<_> = first.into_iter().map(|value| Some(value.to_owned())).collect();
    assert_eq!(requests[0].values, first, "{}", requests[0].text);
    let second = [Some(client), Some("GET"), Some("/%C3%A9"), None, Some("200"), None, Some("HTTP/1.1")];
    assert_eq!(requests[1].values, second.map(|value| value.map(str::to_owned)), "{}", requests[1].text);
    // The time of a line can be cut to whole seconds, so the range has a second more at each end.
    let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970").as_secs();
    let while_it_ran = seconds(server.started) - 1..=seconds(SystemTime::now()) + 1;
    assert!(while_it_ran.contains(&(requests[1].time_ns / 1_000_000_000)), "{}", requests[1].text);
}

fn nginx() -> Server {
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let folders: String = kinds.iter().map(|kind| format!("{kind}_temp_path {kind};\n")).collect();
    let text = format!(
        r#"daemon off; master_process off; pid nginx.pid; error_log stderr; worker_processes 1; events {{}}
        http {{
            {folders}
            log_format main '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
                '"$http_referer" "$http_user_agent" "$http_x_forwarded_for"';
            log_format own '$msec|$host:$server_port|$remote_addr|$request_method|$uri|$args|$status|$http_user_agent|$server_protocol';
            log_format lines escape=json '{{"time_iso8601":"$time_iso8601","remote_addr":"$remote_addr",'
                '"request":"$request","status":$status,"http_user_agent":"$http_user_agent"}}';
            access_log combined.log; access_log main.log main; access_log own.log own; access_log json.log lines;
            server {{ listen 127.0.0.1:PORT; location / {{ return 200 "ok"; }} }}
        }}"#
    );
    Server::start("nginx", &text, |file, folder| {
        let mut command = Command::new("/usr/sbin/nginx");
        command.arg("-p").arg(folder).args(["-e", "stderr", "-c"]).arg(file);
        command
    })
}

#[test]
fn lines_of_nginx_are_read() {
    let server = nginx();
    server.send();
    // A client that speaks TLS to the HTTP port.
    let mut stream = TcpStream::connect(server.address).expect("nginx listens");
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\"\x00\r\n\r\n").expect("nginx reads");
    for (log, format) in [("combined.log", "combined"), ("main.log", "nginx"), ("json.log", "json")] {
        let requests = server.requests(log, 3, format, &WANTED);
        assert_are_of_send(&requests, &server, "127.0.0.1");
        let not_http = [Some("127.0.0.1"), None, None, None, Some("400"), None, None];
        assert_eq!(requests[2].values, not_http.map(|value| value.map(str::to_owned)), "{}", requests[2].text);
    }
    let user = server.requests("combined.log", 3, "combined", &["remote_user"]);
    assert_eq!(user[0].values, [Some("a [b] c".to_owned())]);
    let own =
        "$msec|$host:$server_port|$remote_addr|$request_method|$uri|$args|$status|$http_user_agent|$server_protocol";
    let requests = server.requests("own.log", 3, own, &WANTED);
    assert_eq!(requests[0].values[2..6], ["/a/b", "c=d", "200", AGENT].map(|value| Some(value.to_owned())));
    assert_eq!(requests[1].values[2], Some("/é".to_owned()), "$uri is decoded");
}

#[test]
fn lines_of_caddy_are_read() {
    let text = "{\nadmin off\nauto_https off\n}\nhttp://:PORT {\nbind 127.0.0.1\nlog {\noutput file FOLDER/caddy.log\n}\nrespond ok\n}\n";
    let server = Server::start("caddy", text, |file, folder| {
        let mut command = Command::new("/usr/bin/caddy");
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
        command.env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
        command
    });
    server.send();
    assert_are_of_send(&server.requests("caddy.log", 2, "caddy", &WANTED), &server, "127.0.0.1");
    let wanted = ["request.uri", "request.headers.User-Agent.0", "http_host", "host"];
    let host = server.address.to_string();
    let expected = ["/a/b?c=d", AGENT, "", &host].map(|value| Some(value.to_owned()).filter(|value| !value.is_empty()));
    let requests = server.requests("caddy.log", 2, "caddy", &wanted);
    assert_eq!(requests[0].values, expected);
}

const ENVOY: &str = r#"
static_resources:
  listeners:
    - address: { socket_address: { address: 127.0.0.1, port_value: PORT } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: ingress
                use_remote_address: true
                access_log:
                  - name: envoy.access_loggers.file
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
                      path: FOLDER/envoy.log
                route_config:
                  virtual_hosts:
                    - name: application
                      domains: ["*"]
                      routes:
                        - match: { prefix: "/" }
                          direct_response: { status: 200, body: { inline_string: ok } }
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
"#;

fn envoy_binary() -> PathBuf {
    let libraries = from_environment("envoy", "lib");
    let pythons = fs::read_dir(&libraries).expect("the folder can be read").flatten().map(|entry| entry.path());
    let mut binaries = pythons.map(|python| python.join("site-packages/envoy/_bin/envoy")).filter(|path| path.exists());
    binaries.next().unwrap_or_else(|| panic!("no Envoy in {}: run scripts/setup.sh", libraries.display()))
}

#[test]
fn lines_of_envoy_are_read() {
    let server = Server::start("envoy", ENVOY, |file, _| {
        let mut command = Command::new(envoy_binary());
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
        command.args(["--file-flush-interval-msec", "100", "--config-path"]).arg(file);
        command
    });
    server.send();
    let wanted = ["host", "http_x_forwarded_for"];
    let more = server.requests("envoy.log", 2, "envoy", &wanted).swap_remove(0).values;
    assert_eq!(more[0], Some(server.address.to_string()));
    // For a client on the same machine, Envoy adds its own address instead of the client's.
    let forwarded = more[1].as_deref().expect("the line has the addresses");
    let peer = forwarded.strip_prefix("203.0.113.7,").expect("Envoy adds the address of the connection");
    assert!(peer.parse::<IpAddr>().is_ok() && peer != FORWARDED, "{forwarded}");
    assert_are_of_send(&server.requests("envoy.log", 2, "envoy", &WANTED), &server, peer);
}

#[test]
fn lines_of_apache_are_read() {
    let common = r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326"#;
    let combined = format!(r#"{common} "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)""#);
    let ident = combined.replace("127.0.0.1 - frank", "127.0.0.1 identity frank");
    let wanted = ["remote_addr", "remote_user", "path", "status", "bytes"];
    let expected = ["127.0.0.1", "frank", "/apache_pb.gif", "200", "2326"].map(String::from).to_vec();
    for (format, line) in [("common", common), ("common", &combined), ("combined", &combined), ("combined", &ident)] {
        assert_eq!(super::read(format, &wanted, line), Ok((971_211_336_000_000_000, expected.clone())), "{line}");
    }
    let agent = super::read("combined", &["user_agent"], &combined).map(|(_, values)| values);
    assert_eq!(agent, Ok(vec![String::from("Mozilla/4.08 [en] (Win98; I ;Nav)")]));
}
