//! Samples of the logs of many servers: each is read, and its requests are counted as a server counts them.
//!
//! `log_formats/README.md` says where each sample is from. All samples have the same requests: those of [`REQUESTS`].

#![allow(clippy::disallowed_methods, reason = "`make show-log-formats` shows the lines that are read in a second")]
#![allow(clippy::print_stdout, reason = "`make show-log-formats` shows the figures")]

use std::fs::{self, File};
use std::io::{Cursor, Read, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use spillgate_replay::access_log::{LogInput, OUT_OF_ORDER, Ordered, Reader, newest_first};
use spillgate_replay::{ClientSettings, Filled, LoggedRequest, Replay, Run, Templates};

use crate::cli_support::{Folder, command};
use crate::replay::scenario::{options, rules};
use crate::replay::server::Server;

const RULES: &str = "domain: web
descriptors:
  - {key: remote_address, rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 3}}
  - {key: path, rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 5}}
";

/// The requests of each sample: the client, the URI, the network and the path by which a server counts, and whether the
/// rules allow the request.
const REQUESTS: [(&str, &str, &str, &str, bool); 12] = [
    ("203.0.113.7", "/search?q=1", "203.0.113.7", "/search", true),
    ("203.0.113.7", "/search?q=2", "203.0.113.7", "/search", true),
    ("2001:db8:1:2::1", "/search?q=3", "2001:db8:1:2::/64", "/search", true),
    ("2001:db8:1:2::2", "/%73earch", "2001:db8:1:2::/64", "/search", true),
    ("203.0.113.8", "/login", "203.0.113.8", "/login", true),
    ("203.0.113.7", "//search", "203.0.113.7", "/search", true),
    ("2001:db8:1:2:aaaa::3", "/a/../search?x=1", "2001:db8:1:2::/64", "/search", false),
    ("203.0.113.7", "/", "203.0.113.7", "/", false),
    ("203.0.113.7", "/search", "203.0.113.7", "/search", false),
    ("2001:db8:1:2::1", "/", "2001:db8:1:2::/64", "/", true),
    ("2001:db8:1:3::1", "/", "2001:db8:1:3::/64", "/", true),
    ("203.0.113.8", "/img/logo.png", "203.0.113.8", "/img/logo.png", true),
];

/// How a sample is read.
struct Sample {
    file: &'static str,
    format: &'static str,
    time_field: Option<&'static str>,
    address: &'static str,
    path: &'static str,
}

const fn sample(file: &'static str, format: &'static str, address: &'static str, path: &'static str) -> Sample {
    Sample { file, format, time_field: None, address, path }
}

/// A sample whose fields have the names of nginx.
const fn usual(file: &'static str, format: &'static str) -> Sample {
    sample(file, format, "{remote_addr|network}", "{path|normal}")
}

const COMBINED_AFTER: &str = "$remote_addr $ident $remote_user [$time_local] \"$request\" $status";

fn samples() -> Vec<Sample> {
    let after = |begin: &str| -> &'static str { Box::leak(format!("{begin}{COMBINED_AFTER}").into_boxed_str()) };
    let with_time = |field, sample| Sample { time_field: Some(field), ..sample };
    let forwarded = after("");
    let forwarded: &'static str =
        Box::leak(format!("{forwarded} $bytes \"$referer\" \"$agent\" \"$http_x_forwarded_for\"").into_boxed_str());
    vec![
        usual("alb.log", "alb"),
        usual("apache-combined.log", "combined"),
        usual("apache-common.log", "common"),
        usual("apache-milliseconds.log", "combined"),
        usual("apache-vhost.log", after("$vhost ")),
        with_time("requestTime", sample("aws-api-gateway.json", "json", "{ip|network}", "{path|normal}")),
        sample("aws-waf.json", "json", "{httpRequest.clientIp|network}", "{httpRequest.uri|normal}"),
        with_time(
            "timeStamp",
            sample(
                "azure-application-gateway.json",
                "json",
                "{properties.clientIP|network}",
                "{properties.requestUri|normal}",
            ),
        ),
        sample("azure-front-door.json", "json", "{properties.clientIp|network}", "{properties.requestUri|normal}"),
        usual("caddy.json", "caddy"),
        with_time(
            "EdgeStartTimestamp",
            sample("cloudflare.json", "json", "{ClientIP|network}", "{ClientRequestURI|normal}"),
        ),
        usual("cloudfront.log", "cloudfront"),
        sample("columns.csv", "csv", "{client|network}", "{uri|normal}"),
        usual("docker-caddy.log", "docker:caddy"),
        usual("docker.log", "docker"),
        sample("envoy-gateway.json", "json", "{downstream_remote_address|network}", "{x-envoy-origin-path|normal}"),
        usual("envoy.log", "envoy"),
        sample("gcp-array.json", "json", "{httpRequest.remoteIp|network}", "{httpRequest.requestUrl|normal}"),
        sample("gcp.json", "json", "{httpRequest.remoteIp|network}", "{httpRequest.requestUrl|normal}"),
        usual("gunicorn.log", "combined"),
        usual("haproxy-raw.log", "haproxy"),
        usual("haproxy-syslog.log", "haproxy"),
        usual(
            "heroku.log",
            "$time heroku[router]: at=$at method=$request_method path=\"$request_uri\" host=$host request_id=$id \
             fwd=\"$remote_addr\"",
        ),
        usual("iis.log", "iis"),
        usual("ingress-nginx.log", "combined"),
        usual(
            "istio.log",
            "[$time] \"$request\" $status $flags $details $end \"$failure\" $received $sent $duration $upstream_time \
             \"$forwarded\" \"$agent\" \"$id\" \"$host\" \"$upstream\" $cluster $local $server $client_with_port ",
        ),
        usual("kong.log", "combined"),
        usual("kubernetes-cri.log", after("$time $stream $flag ")),
        usual("lighttpd.log", "combined"),
        sample("logstash.json", "json", "{source.ip|network}", "{url.original|normal}"),
        sample("newest-first.csv", "csv", "{ip|network}", "{url|normal}"),
        usual("newest-first.log", "combined"),
        usual("nginx-combined.log", "nginx"),
        sample("nginx-forwarded.log", forwarded, "{http_x_forwarded_for|client}", "{path|normal}"),
        usual("nginx-json.log", "json"),
        usual("nginx-msec.log", "$msec $remote_addr $status $request_time \"$request\""),
        sample("nginx-two-proxies.log", forwarded, "{http_x_forwarded_for|last|network}", "{path|normal}"),
        usual("s3.log", "s3"),
        usual("squid.log", "squid"),
        usual("syslog-rfc3164.log", after("$prefix: ")),
        usual("syslog-rfc5424.log", after("<$priority>1 $time $machine $program $pid $id $data ")),
        usual("tomcat.log", "common"),
        usual("traefik-common.log", "combined"),
        usual("traefik.json", "traefik"),
        sample("utc.csv", "csv", "{ip|network}", "{path|normal}"),
        usual("varnishncsa.log", "combined"),
    ]
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/log_formats/samples")
}

impl Sample {
    fn descriptors(&self) -> [String; 2] {
        [format!("remote_address={}", self.address), format!("path={}", self.path)]
    }

    fn templates(&self) -> Templates {
        let trusted_proxies = vec!["10.0.0.0/8".parse().expect("it is a network")];
        let settings = ClientSettings { trusted_proxies, ..ClientSettings::default() };
        Templates::parse(&self.descriptors(), settings).unwrap_or_else(|error| panic!("{}: {error}", self.file))
    }

    fn reader(&self, templates: &Templates) -> Reader {
        let mut wanted = templates.fields().to_vec();
        wanted.extend(templates.peer_field().map(str::to_owned));
        Reader::new(self.format, &wanted, self.time_field).unwrap_or_else(|error| panic!("{}: {error}", self.file))
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(folder().join(self.file)).unwrap_or_else(|error| panic!("{}: {error}", self.file))
    }

    fn open(&self, reader: &Reader) -> LogInput {
        match newest_first(&self.bytes(), reader) {
            Some(reader) => {
                let file = File::open(folder().join(self.file)).expect("the sample can be opened");
                LogInput::newest_first(file, reader).expect("the sample can be read")
            }
            None => (Box::new(Cursor::new(self.bytes())) as Box<dyn Read + Send>).into(),
        }
    }
}

#[test]
fn every_sample_is_used_and_described() {
    let mut files: Vec<_> =
        fs::read_dir(folder()).expect("there are samples").map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    let used: Vec<_> = samples().iter().map(|sample| sample.file).collect();
    assert_eq!(files, used);
    assert!(files.len() >= 40, "{}", files.len());
    let readme = include_str!("log_formats/README.md");
    let undescribed: Vec<_> = used.iter().filter(|file| !readme.contains(&format!("`{file}`"))).collect();
    assert!(undescribed.is_empty(), "{undescribed:?}");
}

#[test]
fn every_sample_is_counted_as_a_server_counts_it() {
    for sample in samples() {
        let templates = sample.templates();
        let reader = sample.reader(&templates);
        let mut log = Ordered::new(vec![sample.open(&reader)], &reader, OUT_OF_ORDER);
        let (mut filled, mut both, mut requests) = (Filled::default(), None, REQUESTS.iter());
        while let Some(logged) = log.next() {
            let Some((client, uri, network, path, allowed)) = requests.next() else { panic!("{}", sample.file) };
            let context = format!("{}:{}: {}", sample.file, logged.line, String::from_utf8_lossy(logged.text));
            templates.fill(&mut filled, |index| logged.fields.value(index));
            let request = templates.request("web", &filled).unwrap_or_else(|| panic!("{context}"));
            let values: Vec<_> = request.descriptors().map(|it| it.entries[0].1).collect();
            assert_eq!(values, [*network, *path], "{context}");
            let (replay, server) = both.get_or_insert_with(|| {
                let run =
                    Run::new("rules.yaml".into(), rules(RULES), &options(), logged.time).expect("there is memory");
                (Replay::new(vec![run], false), Server::start(rules(RULES), &options(), logged.time))
            });
            let line = LoggedRequest { time: logged.time, file: sample.file, line: logged.line, text: logged.text };
            let decided = replay.decide(&line, &request).expect("the request is decided").allowed;
            assert_eq!((decided, server.allows(logged.time, client, uri)), (*allowed, *allowed), "{context}");
        }
        let counts = log.counts();
        assert_eq!(
            (requests.len(), counts.unreadable.count, counts.late.count),
            (0, 0, 0),
            "{}: {counts:?}",
            sample.file
        );
        assert_eq!(log.newest_first(), None, "{}", sample.file);
        assert!(templates.warnings(&filled, false).is_empty(), "{}", sample.file);
    }
}

#[test]
fn the_command_reads_every_sample() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    for sample in samples() {
        let [address, path] = sample.descriptors();
        let log = self::folder().join(sample.file).display().to_string();
        let mut arguments = vec!["replay", "rules.yaml", "--log", &log, "--format", sample.format, "--json"];
        arguments.extend(["-e", &address, "-e", &path, "--trusted-proxies", "10.0.0.0/8"]);
        arguments.extend(sample.time_field.into_iter().flat_map(|field| ["--time-field", field]));
        let output = folder.run_with(&arguments, &[]);
        assert_eq!((output.code, &*output.stderr), (0, ""), "{}: {}", sample.file, output.stdout);
        let report: serde_json::Value = serde_json::from_str(&output.stdout).expect("it is JSON");
        let run = &report["runs"][0];
        assert_eq!((&run["allowed_requests"], &run["refused_requests"]), (&9.into(), &3.into()), "{}", sample.file);
        assert_eq!(report["warnings"], serde_json::json!([]), "{}", sample.file);
    }
}

/// How often a sample is read again. A debug build is slow.
const TIMES: usize = if cfg!(debug_assertions) { 200 } else { 5_000 };

/// Repeats a text.
struct Repeated {
    text: Vec<u8>,
    at: usize,
    times: usize,
}

impl Read for Repeated {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.text.len() {
            (self.at, self.times) = (0, self.times - 1);
        }
        let bytes = if self.times == 0 { 0 } else { buffer.len().min(self.text.len() - self.at) };
        buffer[..bytes].copy_from_slice(&self.text[self.at..self.at + bytes]);
        self.at += bytes;
        Ok(bytes)
    }
}

/// Reads a sample again and again. Returns the lines in a second.
fn read_again(sample: &Sample, times: usize) -> f64 {
    let templates = sample.templates();
    let reader = sample.reader(&templates);
    let file: Box<dyn Read + Send> = Box::new(Repeated { text: sample.bytes(), at: 0, times });
    let mut log = Ordered::new(vec![file], &reader, Duration::ZERO);
    let (mut filled, begun) = (Filled::default(), Instant::now());
    while let Some(logged) = log.next() {
        templates.fill(&mut filled, |index| logged.fields.value(index));
        assert!(templates.request("web", &filled).is_some(), "{}", sample.file);
    }
    log.counts().lines as f64 / begun.elapsed().as_secs_f64()
}

/// Replays a sample again and again from standard input, until this many bytes are written. They have to be more than fit
/// into the pipe, so that the program has begun to decide. Returns the highest memory of the program in KiB.
fn highest_memory_kib(folder: &Folder, sample: &Sample, bytes: usize) -> u64 {
    let [address, path] = sample.descriptors();
    let mut child = command(&folder.path("."))
        .args(["replay", "rules.yaml", "--log", "-", "--format", sample.format, "--out-of-order", "0s", "--json"])
        .args(["-e", &address, "-e", &path, "--trusted-proxies", "10.0.0.0/8"])
        .args(sample.time_field.into_iter().flat_map(|field| ["--time-field", field]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("spillgate runs");
    let mut input = child.stdin.take().expect("stdin is piped");
    let text = sample.bytes();
    (0..bytes.div_ceil(text.len())).for_each(|_| input.write_all(&text).expect("the command reads"));
    // The command has read all lines but a few, and waits for the end of its input.
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("the process runs");
    drop(input);
    let output = child.wait_with_output().expect("the command ends");
    assert!(output.status.success(), "{}", sample.file);
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse().expect("the size is a whole number")
}

/// Returns the samples whose lines can be repeated.
fn forward() -> impl Iterator<Item = Sample> {
    samples().into_iter().filter(|sample| !sample.file.starts_with("newest-first"))
}

#[test]
fn the_lines_of_each_format_are_read_again_and_again() {
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    for sample in forward() {
        println!("{}: {:.0} lines in a second ({build} build)", sample.file, read_again(&sample, TIMES));
    }
}

#[test]
fn a_long_log_of_each_format_needs_no_more_memory_than_a_short_one() {
    let folder = Folder::new(&[("rules.yaml", RULES)]);
    for sample in forward() {
        let [short, long] = [512, 4_096].map(|kib| highest_memory_kib(&folder, &sample, kib * 1024));
        // The long log has 3.5 MiB more text.
        assert!(long < short + 3 * 1024, "{}: {short} and {long} KiB", sample.file);
    }
}
