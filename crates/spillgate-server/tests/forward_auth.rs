//! Tests with a real nginx and a real Caddy in front of a real upstream, with the documented configurations.
//!
//! Users copy these configurations. The proxies must refuse each request that spillgate refuses, with status 429 and the header
//! fields of spillgate. When spillgate is down, the proxies must allow requests.

use crate::support;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::support::http::{Response, Upstream, get, get_from, request};
use crate::support::process::Process;
use crate::support::spillgate::Spillgate;
use tempfile::TempDir;

/// The limit of each client address in deploy/nginx/rules.yaml and deploy/caddy/rules.yaml, in requests an hour.
const LIMIT: u64 = 5;
/// The limit of each client address for the log-in page, in requests an hour.
const LOGIN_LIMIT: u64 = 2;

struct Proxy {
    _process: Process,
    address: SocketAddr,
    _folder: TempDir,
}

fn installed(path: &'static str, package: &str) -> &'static str {
    assert!(Path::new(path).exists(), "{path} is missing: install the package {package} (apt-get install {package})");
    path
}

fn deployed(file: &str) -> std::path::PathBuf {
    support::root().join("deploy").join(file)
}

/// Replaces `from` by `to`. `from` must occur exactly once in the text.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "`{from}` occurs once in the configuration");
    text.replace(from, to)
}

impl Proxy {
    fn start(name: &'static str, mut command: impl FnMut(u16, &Path) -> Command) -> Proxy {
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("a temporary folder can be made");
            let address = SocketAddr::new([127, 0, 0, 1].into(), spillgate_testkit::free_port());
            let mut process = Process::start(name, &mut command(address.port(), folder.path()));
            let serving = support::eventually(name, || match process.is_running() {
                true => TcpStream::connect(address).is_ok().then_some(true),
                false => Some(false),
            });
            if serving && process.is_running() {
                return Proxy { _process: process, address, _folder: folder };
            }
        }
        panic!("{name} does not start on any of five ports");
    }

    /// Starts nginx with deploy/nginx/nginx.conf and the ports of the test. The timeouts are longer than in the file, because a
    /// busy machine is slow.
    fn nginx(upstream: u16, spillgate: u16) -> Proxy {
        let binary = installed("/usr/sbin/nginx", "nginx");
        let documented = fs::read_to_string(deployed("nginx/nginx.conf")).expect("the configuration can be read");
        Proxy::start("nginx", |port, folder| {
            let mut text = documented.clone();
            for (from, to) in [
                ("127.0.0.1:8000", format!("127.0.0.1:{port}")),
                ("127.0.0.1:8080", format!("127.0.0.1:{spillgate}")),
                ("127.0.0.1:9000", format!("127.0.0.1:{upstream}")),
                ("proxy_connect_timeout 50ms", "proxy_connect_timeout 30s".to_owned()),
                ("proxy_read_timeout 100ms", "proxy_read_timeout 30s".to_owned()),
                ("access_log off;", temporary_folders()),
            ] {
                text = replaced(&text, from, &to);
            }
            let file = folder.join("nginx.conf");
            fs::write(&file, text).expect("the file can be written");
            let mut command = Command::new(binary);
            // If a test kills the master process, its workers run on. So nginx runs without a master here.
            command.arg("-p").arg(folder).args(["-e", "stderr", "-g", "master_process off;", "-c"]).arg(file);
            command
        })
    }

    /// Starts Caddy with deploy/caddy/Caddyfile. The Caddyfile reads the ports of the test from the environment. The
    /// timeouts are longer than in the file, because a busy machine is slow.
    fn caddy(upstream: u16, spillgate: u16) -> Proxy {
        let binary = installed("/usr/bin/caddy", "caddy");
        let documented = fs::read_to_string(deployed("caddy/Caddyfile")).expect("the configuration can be read");
        let text = replaced(&documented, "dial_timeout 50ms", "dial_timeout 30s");
        let text = replaced(&text, "response_header_timeout 100ms", "response_header_timeout 30s");
        Proxy::start("caddy", |port, folder| {
            let file = folder.join("Caddyfile");
            fs::write(&file, &text).expect("the file can be written");
            let mut command = Command::new(binary);
            command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
            command.env("PORT", port.to_string()).env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
            command.env("SPILLGATE", format!("127.0.0.1:{spillgate}"));
            command.env("APPLICATION", format!("127.0.0.1:{upstream}"));
            command
        })
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        get(self.address, path, headers)
    }

    /// Sends a request like [`get`](Proxy::get), but from another address of this machine.
    fn get_from(&self, client: IpAddr, path: &str) -> Response {
        get_from(client, self.address, path)
    }
}

/// Returns lines for nginx.conf that move nginx's temporary folders. The nginx of Debian would use folders below /var/lib, where
/// only root may write.
fn temporary_folders() -> String {
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let folders: String = kinds.iter().map(|kind| format!("{kind}_temp_path {kind};\n")).collect();
    format!("access_log off;\n{folders}")
}

fn spillgate(kind: &str) -> Spillgate {
    let settings = deployed(kind).join("spillgate.yaml");
    let settings = settings.to_str().expect("the path is UTF-8");
    Spillgate::serve(&deployed(kind).join("rules.yaml"), &["--config", settings, "--grpc", "off"])
}

/// Checks answers that must be the same with both proxies.
fn refuses_what_spillgate_refuses(proxy: &Proxy, upstream: &Upstream) {
    for left in (0..LIMIT).rev() {
        // A forged address must not give the client another counter.
        let forged = format!("203.0.113.{left}");
        let passed = proxy.get("/", &[("X-Forwarded-For", &forged)]);
        assert_eq!((passed.status, passed.body.as_str()), (200, Upstream::BODY), "{passed:?}");
        assert_eq!(passed.header("ratelimit-policy"), Some(r#""per_address";q=5;w=3600"#), "{passed:?}");
        let ratelimit = passed.header("ratelimit").expect("the answer has the field RateLimit");
        assert!(ratelimit.starts_with(&format!(r#""per_address";r={left};t="#)), "{ratelimit}");
        assert_eq!(passed.header("retry-after"), None, "{passed:?}");
    }
    let before = upstream.seen();
    let refused = proxy.get("/", &[]);
    assert_eq!((refused.status, refused.header("cache-control")), (429, Some("no-store")), "{refused:?}");
    assert!((1..=720).contains(&refused.number("retry-after")), "{refused:?}");
    assert!(refused.header("ratelimit").is_some_and(|field| field.contains("r=0")), "{refused:?}");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(&refused.body).expect("the body is JSON");
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Too Many Requests", "status": 429,
    });
    assert_eq!(problem, expected, "the answer to a client names neither rules nor stores");
    assert_eq!(upstream.seen(), before, "a refused request never reaches the upstream");
}

fn refuses_by_path(proxy: &Proxy) {
    for visit in 0..LOGIN_LIMIT {
        assert_eq!(proxy.get(&format!("/login?visit={visit}"), &[]).status, 200);
    }
    let refused = proxy.get("/login", &[]);
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(
        proxy.get("/elsewhere", &[]).status,
        200,
        "the limit of the log-in page is used up, but the limit of the address is not"
    );
    // One client does not use up the limit of another client.
    assert_eq!(proxy.get_from([127, 0, 0, 2].into(), "/login").status, 200);
    let posted = request(proxy.address, "POST", "/elsewhere", &[], "a body").expect("the proxy answers");
    assert_eq!(
        (posted.status, posted.body.as_str()),
        (200, Upstream::BODY),
        "a request with a body is allowed: {posted:?}"
    );
}

/// A client can write the path `/login` in different ways. The limit of `/login` must apply to all of them.
fn spellings_share_one_limit(start: impl Fn() -> (Proxy, Upstream, Spillgate)) {
    let spellings = ["/login", "/login?a", "//login", "/%6cogin", "/./login", "/x/../login", "/%2Flogin", "/login/"];
    for spelling in spellings {
        let (proxy, upstream, _spillgate) = start();
        for _ in 0..LOGIN_LIMIT {
            assert_eq!(proxy.get(spelling, &[]).status, 200, "{spelling}");
        }
        for other in ["/login", spelling] {
            assert_eq!(proxy.get(other, &[]).status, 429, "{other} after {spelling}");
        }
        assert_eq!(upstream.seen() as u64, LOGIN_LIMIT, "{spelling}");
    }
}

/// A long URL must cause no error, and it must not avoid the limits.
fn long_urls_are_judged(proxy: &Proxy) {
    for visit in 0..LOGIN_LIMIT {
        assert_eq!(proxy.get(&format!("/login?visit={visit}{}", "x".repeat(6000)), &[]).status, 200);
    }
    assert_eq!(proxy.get(&format!("/login?{}", "x".repeat(6000)), &[]).status, 429);
    assert_eq!(proxy.get(&format!("/login/{}", "x".repeat(6000)), &[]).status, 429);
    for bytes in [1_100, 6_000] {
        let long = proxy.get(&format!("/{}", "x".repeat(bytes)), &[]);
        assert_eq!((long.status, long.body.as_str()), (200, Upstream::BODY), "{bytes}: {long:?}");
        assert!(long.header("ratelimit").is_some(), "spillgate decided the request: {long:?}");
    }
}

/// The proxy copies the URI into a header field of its request to spillgate. A line end in the path must not add another
/// header field, and a path with other control characters must not make the request to spillgate fail: the proxy would
/// then allow the request without counting it.
fn control_characters_change_nothing(proxy: &Proxy, upstream: &Upstream) {
    let paths = ["/x%0d%0aX-Forwarded-For:%20203.0.113.9", "/%01", "/%7f", "/login%0a", "/login%00"];
    for (path, left) in paths.iter().zip((0..LIMIT).rev()) {
        let passed = proxy.get(path, &[]);
        assert!(matches!(passed.status, 200 | 400), "{path}: {passed:?}");
        if passed.status == 200 {
            let ratelimit = passed.header("ratelimit").expect("spillgate decided the request");
            assert!(ratelimit.contains(&format!(r#""per_address";r={left};t="#)), "{path}: {ratelimit}");
        }
    }
    let seen = upstream.seen();
    let long = "x".repeat(7_000);
    let names = ["x-a", "x-b", "x-c", "x-d", "x-e"];
    let many = names.map(|name| (name, long.as_str()));
    let status = proxy.get("/", &many).status;
    assert!(
        matches!(status, 400 | 431),
        "the proxy must refuse header fields that are too long for spillgate: {status}"
    );
    assert_eq!(upstream.seen(), seen);
}

fn allows_requests_when_spillgate_is_killed(proxy: &Proxy, upstream: &Upstream, spillgate: &mut Spillgate) {
    spillgate.process.kill();
    let before = upstream.seen();
    for _ in 0..LIMIT * 2 {
        let open = proxy.get("/", &[]);
        assert_eq!((open.status, open.body.as_str()), (200, Upstream::BODY), "{open:?}");
        assert_eq!(open.header("ratelimit"), None, "{open:?}");
    }
    assert_eq!(upstream.seen() - before, 10);
}

/// In the first case, the store is down and the limit has `on_store_failure: error`. The proxy allows requests, as if
/// spillgate were down. In the second case, spillgate has no settings for forward-auth. The proxy answers with status
/// 500, and the answer does not say what is wrong.
fn allows_requests_without_the_store_and_none_with_wrong_settings(kind: &str, start: fn(u16, u16) -> Proxy) {
    let upstream = Upstream::start();
    let rules = tempfile::NamedTempFile::with_suffix(".yaml").expect("a temporary file can be made");
    let limit = "{unit: hour, requests_per_unit: 5, on_store_failure: error}";
    fs::write(rules.path(), format!("{{domain: web, descriptors: [{{key: remote_address, rate_limit: {limit}}}]}}\n"))
        .expect("the file can be written");
    let settings = deployed(kind).join("spillgate.yaml");
    let settings = settings.to_str().expect("the path is UTF-8");
    let nowhere = format!("redis://127.0.0.1:{}", spillgate_testkit::free_port());
    let store = ["--store", &nowhere, "--store-expected-nodes", "1"];
    // In the settings file, forward-auth has two descriptors: the address alone, and the address with the path.
    // spillgate would not start, because no rule of this test matches the second descriptor. So this flag sets only the
    // first one.
    let asks = ["--forward-auth-descriptors", "[[{key: remote_address, from: client_ip}]]"];
    let spillgate =
        Spillgate::serve(rules.path(), &[&["--config", settings, "--grpc", "off"], &store[..], &asks].concat());
    let open = start(upstream.port(), spillgate.http().port()).get("/", &[]);
    assert_eq!((open.status, open.body.as_str()), (200, Upstream::BODY), "{open:?}");

    let unconfigured = Spillgate::serve(rules.path(), &["--grpc", "off"]);
    let before = upstream.seen();
    let stopped = start(upstream.port(), unconfigured.http().port()).get("/", &[]);
    assert_eq!((stopped.status, upstream.seen()), (500, before), "{stopped:?}");
    assert!(!stopped.body.contains("forward_auth"), "{stopped:?}");
}

#[test]
fn nginx_allows_requests_without_the_store_and_none_with_wrong_settings() {
    allows_requests_without_the_store_and_none_with_wrong_settings("nginx", Proxy::nginx);
}

#[test]
fn caddy_allows_requests_without_the_store_and_none_with_wrong_settings() {
    allows_requests_without_the_store_and_none_with_wrong_settings("caddy", Proxy::caddy);
}

#[test]
fn nginx_refuses_what_spillgate_refuses_and_allows_requests_without_it() {
    let (upstream, mut spillgate) = (Upstream::start(), spillgate("nginx"));
    let proxy = Proxy::nginx(upstream.port(), spillgate.http().port());
    refuses_what_spillgate_refuses(&proxy, &upstream);
    allows_requests_when_spillgate_is_killed(&proxy, &upstream, &mut spillgate);
}

#[test]
fn nginx_sends_spillgate_the_path() {
    let (upstream, spillgate) = (Upstream::start(), spillgate("nginx"));
    refuses_by_path(&Proxy::nginx(upstream.port(), spillgate.http().port()));
}

#[test]
fn caddy_refuses_what_spillgate_refuses_and_allows_requests_without_it() {
    let (upstream, mut spillgate) = (Upstream::start(), spillgate("caddy"));
    let proxy = Proxy::caddy(upstream.port(), spillgate.http().port());
    refuses_what_spillgate_refuses(&proxy, &upstream);
    allows_requests_when_spillgate_is_killed(&proxy, &upstream, &mut spillgate);
}

#[test]
fn caddy_sends_spillgate_the_path() {
    let (upstream, spillgate) = (Upstream::start(), spillgate("caddy"));
    refuses_by_path(&Proxy::caddy(upstream.port(), spillgate.http().port()));
}

#[test]
fn nginx_judges_every_spelling_of_a_path_alike() {
    spellings_share_one_limit(|| {
        let (upstream, spillgate) = (Upstream::start(), spillgate("nginx"));
        (Proxy::nginx(upstream.port(), spillgate.http().port()), upstream, spillgate)
    });
}

#[test]
fn nginx_is_not_confused_by_control_characters() {
    let (upstream, spillgate) = (Upstream::start(), spillgate("nginx"));
    control_characters_change_nothing(&Proxy::nginx(upstream.port(), spillgate.http().port()), &upstream);
}

#[test]
fn nginx_accepts_long_urls() {
    let (upstream, spillgate) = (Upstream::start(), spillgate("nginx"));
    let proxy = Proxy::nginx(upstream.port(), spillgate.http().port());
    long_urls_are_judged(&proxy);
}

#[test]
fn caddy_judges_every_spelling_of_a_path_alike() {
    spellings_share_one_limit(|| {
        let (upstream, spillgate) = (Upstream::start(), spillgate("caddy"));
        (Proxy::caddy(upstream.port(), spillgate.http().port()), upstream, spillgate)
    });
}

#[test]
fn caddy_is_not_confused_by_control_characters() {
    let (upstream, spillgate) = (Upstream::start(), spillgate("caddy"));
    control_characters_change_nothing(&Proxy::caddy(upstream.port(), spillgate.http().port()), &upstream);
}

#[test]
fn caddy_accepts_long_urls() {
    let (upstream, spillgate) = (Upstream::start(), spillgate("caddy"));
    let proxy = Proxy::caddy(upstream.port(), spillgate.http().port());
    long_urls_are_judged(&proxy);
}

/// The header fields that the browser of a visitor sends for a form or a `fetch` of another site.
const OF_OTHER_SITE: [(&str, &str); 3] =
    [("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")];

/// A proxy sends spillgate the fields of the browser. Whether pages of other sites may use the application is for the
/// application to decide, so forward-auth only counts their requests.
fn requests_of_other_sites_are_counted(proxy: &Proxy) {
    for left in (0..LIMIT).rev() {
        let posted = request(proxy.address, "POST", "/", &OF_OTHER_SITE, "a=b").expect("the proxy answers");
        assert_eq!((posted.status, posted.body.as_str()), (200, Upstream::BODY), "{posted:?}");
        let ratelimit = posted.header("ratelimit").expect("the answer has the field RateLimit");
        assert!(ratelimit.starts_with(&format!(r#""per_address";r={left};t="#)), "{ratelimit}");
    }
    assert_eq!(proxy.get("/", &OF_OTHER_SITE).status, 429);
}

#[test]
fn nginx_passes_the_fields_of_a_browser_to_forward_auth() {
    let (upstream, spillgate) = (Upstream::start(), spillgate("nginx"));
    requests_of_other_sites_are_counted(&Proxy::nginx(upstream.port(), spillgate.http().port()));
}

#[test]
fn caddy_passes_the_fields_of_a_browser_to_forward_auth() {
    let (upstream, spillgate) = (Upstream::start(), spillgate("caddy"));
    requests_of_other_sites_are_counted(&Proxy::caddy(upstream.port(), spillgate.http().port()));
}

/// Starts a proxy that only forwards each request to spillgate, with all header fields.
fn forwarding(kind: &str, spillgate: u16) -> Proxy {
    let (folders, target) = (temporary_folders(), format!("127.0.0.1:{spillgate}"));
    match kind {
        "nginx" => Proxy::start("nginx", |port, folder| {
            let server = format!("listen 127.0.0.1:{port}; location / {{ proxy_pass http://{target}; }}");
            let text = format!("daemon off; pid nginx.pid; events {{}} http {{ {folders} server {{ {server} }} }}");
            let file = folder.join("nginx.conf");
            fs::write(&file, text).expect("the file can be written");
            let mut command = Command::new(installed("/usr/sbin/nginx", "nginx"));
            command.arg("-p").arg(folder).args(["-e", "stderr", "-g", "master_process off;", "-c"]).arg(file);
            command
        }),
        _ => Proxy::start("caddy", |port, folder| {
            let options = "admin off\nauto_https off";
            let site = format!("http://:{port} {{\nbind 127.0.0.1\nreverse_proxy {target}\n}}");
            let file = folder.join("Caddyfile");
            fs::write(&file, format!("{{\n{options}\n}}\n{site}\n")).expect("the file can be written");
            let mut command = Command::new(installed("/usr/bin/caddy", "caddy"));
            command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
            command.env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
            command
        }),
    }
}

/// Behind a proxy, a page of another site charges nothing. A page that the proxy itself serves may ask if the proxy
/// passes the name in the URL on, as Caddy does. nginx sends its own name instead, so the settings must name the site.
#[test]
fn a_page_of_another_site_charges_nothing_behind_nginx_and_caddy() {
    const ASK: &str = r#"{"domain":"web","descriptors":[{"remote_address":"192.0.2.1"}]}"#;
    let rules = deployed("caddy").join("rules.yaml");
    for (kind, site, flags, expected) in [
        ("nginx", None, &[][..], [403, 403, 200]),
        ("caddy", None, &[], [403, 200, 200]),
        ("nginx", Some("http://gate.example"), &["--http-origins", "http://gate.example"], [403, 200, 200]),
    ] {
        let spillgate = Spillgate::serve(&rules, &[&["--grpc", "off"], flags].concat());
        let proxy = forwarding(kind, spillgate.http().port());
        let ask = |fields: &[(&str, &str)]| {
            request(proxy.address, "POST", "/v1/check", fields, ASK).expect("the proxy answers")
        };
        let foreign = ask(&OF_OTHER_SITE);
        assert!(foreign.body.contains("http_origins"), "{kind}: {foreign:?}");
        let site = site.map_or_else(|| format!("http://{}", proxy.address), str::to_owned);
        let own = ask(&[("Origin", &site), ("Sec-Fetch-Site", "same-origin")]);
        assert_eq!([foreign.status, own.status, ask(&[]).status], expected, "{kind} {flags:?}: {own:?}");
    }
}
