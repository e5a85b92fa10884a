use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;

use spillgate::rules::{Rules, RulesFile};
use spillgate::text::Diagnostic;
use spillgate_http::{EntrySource, ValueSource};
use spillgate_redis::LogForm;
use spillgate_service::CallerKeys;

use super::*;

fn from_file(text: &str) -> Result<Settings, Vec<Diagnostic>> {
    let file = SettingsFile { name: "conf/spillgate.yaml".to_owned(), text: text.to_owned() };
    resolve(&Sources { file: Some(file), ..Sources::default() }).map(|resolved| resolved.settings)
}

fn key(path: &str) -> &'static Key {
    KEYS.iter().find(|key| key.path == path).expect(path)
}

/// Returns each error as `line:column message; help`.
fn errors(text: &str) -> Vec<String> {
    let errors = from_file(text).expect_err(text);
    let shown = |error: &Diagnostic| match error.line() {
        0 => format!(" {}; {}", error.message(), error.help()),
        line => format!("{line}:{} {}; {}", error.column(), error.message(), error.help()),
    };
    errors.iter().map(shown).collect()
}

fn tcp(port: u16) -> Option<Listen> {
    Some(Listen::Tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))
}

#[test]
fn defaults_are_the_documented_ones() {
    let settings = resolve(&Sources::default()).expect("the defaults are valid").settings;
    assert_eq!(settings.http, tcp(8080));
    assert_eq!(settings.grpc, tcp(8081));
    assert_eq!(settings.admin, Some(Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 6070)))));
    assert_eq!((settings.health, settings.limits.clients.age), (None, None));
    assert_eq!(
        (settings.limits.clients.age_grace, settings.limits.drain_delay),
        (Duration::from_secs(60), Duration::ZERO)
    );
    assert_eq!((settings.workers, settings.shadow, settings.log_level.as_str()), (None, false, "info"));
    assert_eq!((settings.memory.max_keys, settings.memory.on_full), (10_000_000, OnFull::Deny));
    assert_eq!(settings.memory.snapshot, Snapshot { path: None, interval: Duration::from_secs(30) });
    assert_eq!(settings.headers, HeaderStyle::Draft11);
    assert_eq!(settings.insight, Insight { max_callers: 65_536, keys: CallerKeys::Hashed });
    let grants = Grants { overriding: true, refund: false };
    assert_eq!((settings.allow.grpc, settings.allow.http), (grants, Grants::default()));
    let Limits { clients: listener::Limits { connections, unread, in_flight, .. }, bounds, body, .. } = settings.limits;
    assert_eq!((unread, in_flight), (128 << 20, 256 << 20));
    assert_eq!(bounds, Bounds::default(), "a service without settings has the same bounds");
    let Bounds { descriptors, entries, key_bytes: key, value_bytes: value } = bounds;
    assert_eq!((connections, body, descriptors, entries, key, value), (2000, 64 << 10, 32, 16, 256, 1024));
}

#[test]
fn every_default_of_the_table_is_applied() {
    let origins = resolve(&Sources::default()).expect("the defaults are valid").origins;
    for key in KEYS {
        assert_eq!(origins.contains_key(key.path), !key.default.is_empty(), "{}", key.path);
    }
}

#[test]
fn a_file_with_any_setting_is_recognized_among_the_rules() {
    for key in KEYS.iter().filter(|key| key.path != "compat") {
        let top = key.path.split('.').next().expect("split gives at least one part");
        let file = RulesFile { name: "spillgate.yaml".into(), text: format!("{top}: x") };
        let errors = Rules::parse(&[file]).expect_err(top).to_string();
        assert!(errors.contains("this looks like a settings file"), "{top}: {errors}");
    }
}

#[test]
fn flags_and_variables_have_names_of_their_own() {
    let mut names: Vec<_> = KEYS.iter().flat_map(|key| [key.flag(), key.variable()]).collect();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(key("memory.max_keys").flag(), "memory-max-keys");
    assert_eq!((key("store.url").flag().as_str(), key("store.url").variable().as_str()), ("store", "SPILLGATE_STORE"));
    assert_eq!(key("limits.body").variable(), "SPILLGATE_LIMITS_BODY");
    assert_eq!(key("log_level").variable(), "SPILLGATE_LOG_LEVEL");
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let file = || Some(SettingsFile { name: "f".into(), text: "http: 0.0.0.0:1\nlimits: {body: 1MiB}".into() });
    let environment = || vec![("SPILLGATE_HTTP".to_owned(), "0.0.0.0:2".to_owned()), ("HOME".into(), "/".into())];
    let flags = || vec![(key("http"), vec!["0.0.0.0:3".to_owned()])];
    let http = |sources: Sources| {
        let resolved = resolve(&sources).expect("the settings are valid");
        (resolved.settings.http, resolved.origins["http"].0)
    };
    assert_eq!(http(Sources::default()), (tcp(8080), Origin::Default));
    assert_eq!(http(Sources { file: file(), ..Sources::default() }), (tcp(1), Origin::File));
    let both = Sources { file: file(), environment: environment(), ..Sources::default() };
    assert_eq!(http(both), (tcp(2), Origin::Environment));
    let all = Sources { file: file(), environment: environment(), flags: flags(), ..Sources::default() };
    assert_eq!(
        resolve(&all).expect("the settings are valid").settings.limits.body,
        1 << 20,
        "other keys keep their source"
    );
    assert_eq!(http(all), (tcp(3), Origin::Flag));
}

#[test]
fn a_whole_file_is_read() {
    let text = "
http: unix:run/http.sock      # relative to the folder of the file
grpc: '[::1]:8081'
admin: off
health: 0.0.0.0:8090
admin_token_file: /etc/token
rules: [rules/, more.yaml]
watch: poll
shadow: on
workers: 2
store: {url: memory}
memory: {max_keys: 500k, max_heap: 64MiB, on_full: allow, snapshot: {path: state, interval: 5s}}
headers: x-ratelimit
trusted_proxies: [10.1.2.3/8, fd00::/8, 192.0.2.1]
forward_auth:
  domain: web
  deny_status: 403
  descriptors:
    - [{key: remote_address, from: client_ip}, {key: path, from: 'header:X-Forwarded-Uri'}]
    - [{key: generic_key, from: 'value:login'}]
allow: {grpc: [override, refund], http: []}
limits:
  drain: 500ms
  drain_delay: 15s
  connection_age: 30m
  connection_age_grace: 90s
";
    let settings = from_file(text).expect("the settings are valid");
    assert_eq!(settings.http, Some(Listen::Unix("conf/run/http.sock".into())));
    assert_eq!((settings.admin, settings.health), (None, tcp(8090)));
    assert_eq!(settings.rules, ["conf/rules/", "conf/more.yaml"].map(PathBuf::from));
    assert_eq!(settings.admin_token_file, Some("/etc/token".into()));
    assert_eq!((settings.watch, settings.shadow), (Watch::Poll, true));
    let snapshot = Snapshot { path: Some("conf/state".into()), interval: Duration::from_secs(5) };
    assert_eq!(
        settings.memory,
        Memory { max_keys: 500_000, max_heap: 64 << 20, on_full: OnFull::Allow, sketch: 64 << 20, snapshot }
    );
    let networks: Vec<_> = settings.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"]);
    let entry = |key: &str, from| EntrySource { key: key.to_owned(), from };
    let path = ValueSource::Header("x-forwarded-uri".to_owned());
    assert_eq!(
        settings.forward_auth.descriptors,
        [
            vec![entry("remote_address", ValueSource::ClientIp), entry("path", path)],
            vec![entry("generic_key", ValueSource::Value("login".to_owned()))]
        ]
    );
    assert!(settings.allow.grpc.refund && settings.allow.grpc.overriding);
    assert_eq!(settings.limits.clients.drain, Duration::from_millis(500));
    assert_eq!(settings.limits.drain_delay, Duration::from_secs(15));
    let (age, grace) = (settings.limits.clients.age, settings.limits.clients.age_grace);
    assert_eq!((age, grace), (Some(Duration::from_secs(1800)), Duration::from_secs(90)));
}

#[test]
fn the_times_of_a_server_that_leaves_have_bounds() {
    for (good, wrong, help) in [
        ("drain_delay: 10m", "drain_delay: 11m", "choose 0s to 10m"),
        ("drain_delay: 0s", "drain_delay: soon", "write a number and a unit"),
        ("connection_age: 1s", "connection_age: 999ms", "choose 1s to 365d, or `off`"),
        ("connection_age: off", "connection_age: never", "or `off`"),
    ] {
        assert!(from_file(&format!("limits: {{{good}}}")).is_ok(), "{good}");
        let found = errors(&format!("limits: {{{wrong}}}")).join("; ");
        assert!(found.contains(help), "{wrong}: {found}");
    }
    let found = errors("limits: {connection_age_grace: 5s}").join("; ");
    assert!(found.contains("has no effect without `limits.connection_age`"), "{found}");
    assert!(from_file("limits: {connection_age_grace: 60s}").is_ok(), "this is the default");
}

#[test]
fn a_shared_store_is_read() {
    let text = "
store:
  url: rediss-cluster://a:7000,b:7000
  deadline: 5ms
  expected_nodes: 12
  key_secret_file: secret
  user: limiter
  password_file: /run/password
  tls: {ca: ca.pem, cert: c.pem, key: k.pem, server_name: redis.example}
  connections: 3
  max_in_flight: 10k
  scripts: off
  log: zset
  deny_cache: off
  deny_cache_max_age: 200ms
  new_keys: 2k/s
";
    let in_conf = |name: &str| Some(PathBuf::from("conf").join(name));
    let expected = Store {
        url: StoreUrl::Shared("rediss-cluster://a:7000,b:7000".to_owned()),
        deadline: Duration::from_millis(5),
        expected_nodes: Some(12),
        key_secret_file: in_conf("secret"),
        user: Some("limiter".to_owned()),
        password_file: Some("/run/password".into()),
        sentinel_user: None,
        sentinel_password_file: None,
        tls: StoreTls {
            ca: in_conf("ca.pem"),
            cert: in_conf("c.pem"),
            key: in_conf("k.pem"),
            server_name: Some("redis.example".to_owned()),
            skip_name_check: false,
        },
        connections: Some(3),
        max_in_flight: 10_000,
        scripts: false,
        log: LogForm::Zset,
        deny_cache: 0,
        deny_cache_max_age: Duration::from_millis(200),
        new_keys: NonZeroU32::new(2000),
    };
    assert_eq!(from_file(text).expect("the settings are valid").store, expected);
    let text = "store: {url: rediss-sentinel://h/main, sentinel_user: u, sentinel_password_file: p, tls: {skip_name_check: on}}";
    let store = from_file(text).expect("the settings are valid").store;
    assert_eq!((store.sentinel_user.as_deref(), store.sentinel_password_file), (Some("u"), in_conf("p")));
    assert!(store.tls.skip_name_check);
    for url in [
        "redis://h",
        "valkey://h:1/2",
        "valkeys://u:p@h",
        "redis-cluster://h,i:2",
        "redis-sentinel://h,i/main",
        "rediss-sentinel://h/main",
        "unix:///r.sock?db=1",
    ] {
        let read = from_file(&format!("store: {{url: '{url}'}}")).expect(url).store.url;
        assert_eq!(read, StoreUrl::Shared(url.to_owned()));
    }
}

#[test]
fn a_tag_without_a_meaning_is_ignored() {
    let settings = from_file("workers: !number 3\nstore: !group {url: !url memory}").expect("the settings are valid");
    assert_eq!(settings.workers, Some(3));
}

#[test]
fn a_default_that_is_written_in_another_way_is_a_default() {
    for text in [
        "memory: {snapshot: {interval: 60000ms}}",
        "memory: {snapshot: {path: s, interval: 60000ms}}",
        "store: {scripts: false}",
        "store: {deadline: 20ms}",
        "store: {user: u}",
    ] {
        // These values differ from the defaults. Only the second text is valid. Each other text has no path for the
        // snapshot, or sets a key of a shared store although the store is memory.
        assert_eq!(from_file(text).is_ok(), text.contains("path"), "{text}");
    }
    for text in [
        "memory: {snapshot: {interval: 30000ms}}",
        "store: {scripts: true, deadline: 10000us, deny_cache: 65_536, connections: auto, url: memory}",
        "store: {url: redis://h}\nmemory: {snapshot: {interval: 30000ms}}",
    ] {
        assert!(from_file(text).is_ok(), "{text}: {:?}", errors(text));
    }
}

#[test]
fn the_bounds_of_a_shared_store_are_those_of_the_errors() {
    let with = |line: &str| format!("store:\n  url: redis://h\n  {line}\n");
    for (good, wrong) in [
        ("deadline: 100us", "deadline: 99us"),
        ("deadline: 1m", "deadline: 60001ms"),
        ("expected_nodes: 1", "expected_nodes: 0"),
        ("expected_nodes: 100k", "expected_nodes: 100001"),
        ("connections: 1024", "connections: 1025"),
        ("max_in_flight: 1M", "max_in_flight: 1000001"),
        ("deny_cache: 10M", "deny_cache: 10000001"),
        ("deny_cache_max_age: 1ms", "deny_cache_max_age: 999us"),
        ("new_keys: 1M/s\n  expected_nodes: 1", "new_keys: 1000001/s\n  expected_nodes: 1"),
        ("new_keys: 1\n  expected_nodes: 1", "new_keys: 0/s\n  expected_nodes: 1"),
    ] {
        assert!(from_file(&with(good)).is_ok(), "{good}");
        let found = errors(&with(wrong));
        assert!(found.len() == 1 && found[0].starts_with("3:") && found[0].contains("out of range"), "{found:?}");
    }
}

#[test]
fn lists_and_yaml_can_be_given_in_variables_and_flags() {
    let environment = vec![
        ("SPILLGATE_TRUSTED_PROXIES".to_owned(), "10.0.0.0/8,fd00::/8".to_owned()),
        ("SPILLGATE_ALLOW_GRPC".to_owned(), "[]".to_owned()),
        ("SPILLGATE_FORWARD_AUTH_DESCRIPTORS".to_owned(), "[[{key: a, from: client_ip}]]".to_owned()),
        ("SPILLGATE_HTTP".to_owned(), String::new()),
    ];
    let flags = vec![
        (key("forward_auth.domain"), vec!["web".to_owned()]),
        (key("rules"), vec!["a.yaml".to_owned(), "b,c".to_owned()]),
    ];
    let sources = Sources { environment, flags, arguments: vec!["x,y.yaml".into()], ..Sources::default() };
    let settings = resolve(&sources).expect("the settings are valid").settings;
    assert_eq!(settings.trusted_proxies.len(), 2);
    assert_eq!(settings.allow.grpc, Grants::default());
    assert_eq!(settings.forward_auth.descriptors.len(), 1);
    assert_eq!(settings.http, tcp(8080), "an empty variable has no effect");
    assert_eq!(settings.rules, ["x,y.yaml", "a.yaml", "b", "c"].map(PathBuf::from));
}

#[test]
fn arguments_replace_the_rules_of_files_and_variables() {
    let file = Some(SettingsFile { name: "f".into(), text: "rules: [a]".into() });
    let sources = Sources { file, arguments: vec!["b".into()], ..Sources::default() };
    assert_eq!(resolve(&sources).expect("the settings are valid").settings.rules, [PathBuf::from("b")]);
}

#[test]
fn wrong_keys_are_reported_with_their_place_and_the_nearest_key() {
    let cases = [
        (
            "store: {url: redis://h, fixed_window: native}",
            "1:25 the key `store.fixed_window` was removed; delete this line; windows are counted in the way that \
             `script`, the old default, counted them",
        ),
        ("htpp: off", "1:1 unknown key `htpp`; did you mean `http`?"),
        ("limits:\n  boddy: 1", "2:3 unknown key `limits.boddy`; did you mean `body`?"),
        (
            "domain: api",
            "1:1 unknown key `domain`; this looks like a rules file: give it as an argument, without --config, or name it \
             under `rules:`",
        ),
        ("max_keys: 5", "1:1 unknown key `max_keys`; `max_keys` belongs under `memory:`"),
        (
            "limits: {shadow: true}",
            "1:10 unknown key `limits.shadow`; `shadow` belongs at the top of the file, not under `limits:`",
        ),
        (
            "store: {password: x}",
            "1:9 unknown key `store.password`; put the secret into a file and name the file: `store.password_file`",
        ),
        (
            "store: {key_secret: x}",
            "1:9 unknown key `store.key_secret`; put the secret into a file and name the file: `store.key_secret_file`",
        ),
        (
            "admin_token: x",
            "1:1 unknown key `admin_token`; put the secret into a file and name the file: `admin_token_file`",
        ),
        (
            "memory: {on_full: drop}",
            "1:19 `drop` is not a value of `memory.on_full`; write one of: deny, allow, sketch",
        ),
        ("allow: {everything: true}", "1:9 unknown key `allow.everything`; the keys here are: grpc, http"),
        ("http: off\nhttp: off", "2:1 `http` is here twice; keep one; the first is on line 1"),
        ("[http]: off", "1:1 a key must be a word; write `key: value`"),
        (
            "limits: 5",
            "1:9 `limits` is a group of keys, not a value; write `limits: {connections: ...}`; its keys: connections, streams, unread, in_flight, body, descriptors, entries, key, value, metric_values, idle, receive, connection_age, connection_age_grace, drain_delay, handshake, drain, reservation",
        ),
        ("- http", "1:1 a settings file is a list of `key: value` lines; begin with `http: 0.0.0.0:8080`"),
        (
            "http: &a off\ngrpc: *a",
            "2:7 an alias (`*name`) is not allowed here; write the value out in place of the alias",
        ),
        (
            "http: off\n---\ngrpc: off",
            "2:1 the file has more than one YAML document; keep only one document in the file: remove this `---`",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(errors(text), [expected], "{text}");
    }
}

#[test]
fn one_error_in_forward_auth_is_reported_once() {
    for text in [
        "forward_auth: {domain: d, descriptors: [[{key: a, from: headr:X}]]}",
        "forward_auth: {domain: d, descriptor: [[{key: a, from: client_ip}]]}",
    ] {
        assert_eq!(errors(text).len(), 1, "{text}: {:?}", errors(text));
    }
}

#[test]
fn durations_and_counts_are_read_as_in_rules() {
    let text = "limits: {drain: 1m30s, idle: 1.5h}\nmemory: {max_keys: 1_000k}";
    let settings = from_file(text).expect("the settings are valid");
    assert_eq!(settings.limits.clients.drain, Duration::from_secs(90));
    assert_eq!(settings.limits.clients.idle, Duration::from_secs(5_400));
    assert_eq!(settings.memory.max_keys, 1_000_000);
    let printed = format!("limits: {{drain: {}}}", spillgate::units::format_duration(settings.limits.clients.idle));
    assert_eq!(from_file(&printed).expect("the settings are valid").limits.clients.drain, settings.limits.clients.idle);
}

#[test]
fn wrong_values_are_reported_with_their_place_and_their_fix() {
    let cases = [
        (
            "http: 8080",
            "1:7 `8080` is not an address to listen on; write 127.0.0.1:8080 for this machine only, or 0.0.0.0:8080 for every interface",
        ),
        (
            "http: localhost:80",
            "1:7 `localhost:80` is not an address to listen on; host names are not resolved: write 127.0.0.1:80",
        ),
        ("http: 'unix:'", "1:7 `unix:` has no path; write the socket's path: unix:/run/spillgate.sock"),
        ("http:", "1:5 `http` has no value; write a value, or leave the key out to get the default"),
        ("http: [a]", "1:7 `http` is one value, not a list; take the brackets or dashes away"),
        (
            "limits: {drain: 30}",
            "1:17 `30` is not a duration; write a number and a unit (ns, us, ms, s, m, h, d, w): 10ms, 1.5s, 1m30s",
        ),
        ("limits: {drain: 0s}", "1:17 `0s` is out of range for `limits.drain`; choose 1ns to 365d"),
        (
            "memory: {snapshot: {interval: 99ms}}",
            "1:31 `99ms` is out of range for `memory.snapshot.interval`; choose 100ms to 365d",
        ),
        (
            "memory: {snapshot: {interval: 5s}}",
            "1:31 memory.snapshot has an interval but no path; set `memory.snapshot.path` to the file to write",
        ),
        ("watch: pol", "1:8 `pol` is not a value of `watch`; did you mean `poll`? write one of: on, poll, off"),
        ("limits: {body: 64KB2}", "1:16 `64KB2` is not a value of `limits.body`; write bytes: 1024, 64KiB, 1MiB"),
        ("limits: {descriptors: 0}", "1:23 `0` is out of range for `limits.descriptors`; choose 1 to 256"),
        ("limits: {descriptors: 257}", "1:23 `257` is out of range for `limits.descriptors`; choose 1 to 256"),
        ("limits: {entries: 257}", "1:19 `257` is out of range for `limits.entries`; choose 1 to 256"),
        ("limits: {key: 1MiB}", "1:15 `1MiB` is out of range for `limits.key`; choose 1 to 65536"),
        ("limits: {value: 1MiB}", "1:17 `1MiB` is out of range for `limits.value`; choose 1 to 65536"),
        ("limits: {body: 1GiB}", "1:16 `1GiB` is out of range for `limits.body`; choose 64 to 67108864"),
        ("memory: {max_keys: 99999999999G}", "1:20 `99999999999G` is too large; write a whole number: 500, 10k, 10M"),
        (
            "headers: draft-10",
            "1:10 `draft-10` is not a value of `headers`; did you mean `draft-11`? write one of: draft-11, draft-06, x-ratelimit, off",
        ),
        (
            "trusted_proxies: [10.0.0.0/33]",
            "1:19 `10.0.0.0/33` is not a network; write an address and the length of its prefix: 10.0.0.0/8, fd00::/8",
        ),
        ("shadow: maybe", "1:9 `maybe` is neither true nor false; write on, off, true or false"),
        (
            "allow: {http: [refunds]}",
            "1:16 `refunds` is not a value of `allow.http`; did you mean `refund`? write one of: refund, override",
        ),
        (
            "forward_auth: {domain: web}",
            "1:24 forward_auth has a domain but no descriptors; set `forward_auth.descriptors`: [[{key: remote_address, from: client_ip}]]",
        ),
        (
            "http: off\ngrpc: off",
            "1:7 all listeners for clients (http, grpc) are off, so the server would have nothing to serve; give one of them an address",
        ),
        (
            "grpc: 127.0.0.1:8080",
            "1:7 `grpc` and `http` have the same address, 127.0.0.1:8080; give each listener its own port, or switch one off",
        ),
        (
            "log_level: verbose",
            "1:12 `verbose` is not a log level; write error, warn, info, debug or trace, or a filter such as info,spillgate=debug",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(errors(text), [expected], "{text}");
    }
}

#[test]
fn wrong_values_of_a_store_are_reported_with_every_choice() {
    let cases = [
        (
            "store: {url: redis://h, log: zzet}",
            "1:30 `zzet` is not a value of `store.log`; did you mean `zset`? write one of: packed, zset",
        ),
        (
            "store: {url: redis://h, connections: Auto}",
            "1:38 `Auto` is not a value of `store.connections`; write a whole number: 500, 10k, 10M, or `auto`",
        ),
        (
            "store: {url: redis://h, deny_cache: 0}",
            "1:37 `0` is out of range for `store.deny_cache`; choose 1 to 10000000, or `off`",
        ),
        (
            "store: {url: redis://h, expected_nodes: 3, new_keys: 10/m}",
            "1:54 `10/m` is not a value of `store.new_keys`; write a number of keys a second: 1000/s, 10k/s, or `off`",
        ),
        (
            "store: {url: redis:/h, expected_nodes: 3}",
            "1:14 the value of `store.url` is not a store; write `memory`, redis://HOST:PORT, \
             rediss://HOST:PORT (with TLS), redis-cluster://HOST:PORT,HOST:PORT, redis-sentinel://HOST:PORT,HOST:PORT/NAME or unix:///path",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(errors(text), [expected], "{text}");
    }
}

#[test]
fn all_errors_of_a_file_are_reported_at_once() {
    assert_eq!(errors("htpp: off\nshadow: maybe\nlimits: {body: x}").len(), 3);
}

#[test]
fn a_mistyped_variable_is_an_error_and_one_of_other_software_is_not() {
    let with = |name: &str| resolve(&Sources { environment: vec![(name.into(), "x".into())], ..Sources::default() });
    let found = with("SPILLGATE_HTPP").expect_err("a mistyped variable is an error");
    assert_eq!(found[0].message(), "unknown variable `SPILLGATE_HTPP`");
    assert_eq!(found[0].help(), "did you mean `SPILLGATE_HTTP`?");
    for (name, help) in [
        ("SPILLGATE_STORE_URL", "did you mean `SPILLGATE_STORE`?"),
        ("SPILLGATE_STORE_USR", "did you mean `SPILLGATE_STORE_USER`?"),
        (
            "SPILLGATE_STORE_PASSWORD",
            "put the secret into a file and name the file: SPILLGATE_STORE_PASSWORD_FILE, `store.password_file` or --store-password-file",
        ),
        (
            "SPILLGATE_ADMIN_TOKEN",
            "put the secret into a file and name the file: SPILLGATE_ADMIN_TOKEN_FILE, `admin_token_file` or --admin-token-file",
        ),
    ] {
        let found = with(name).expect_err(name);
        assert_eq!(found[0].help(), help, "{name}");
    }
    for name in [
        "SPILLGATE_SERVICE_HOST",
        "SPILLGATE_PORT_8080_TCP_ADDR",
        "SPILLGATE_PORT",
        "SPILLGATE_RELEASE",
        "SPILLGATE_ADMIN_URL",
    ] {
        assert!(with(name).is_ok(), "{name}");
    }
}

#[test]
fn no_text_makes_the_reader_panic() {
    let mut texts: Vec<String> =
        ["{", "[", "a: [", "\t", "'", "\"\\", "? a", "&a", "*a", "!!x", "---\n---", "\u{feff}http: off"]
            .map(str::to_owned)
            .into();
    texts.push("[".repeat(100_000));
    texts.push("{a: ".repeat(10_000));
    texts.push(format!("{}: 1", "ü".repeat(10_000)));
    texts.push("forward_auth: {descriptors: [[{key: ü, from: 'header:ü'}]]}".to_owned());
    for text in &texts {
        let _ = from_file(text);
        let environment = vec![("SPILLGATE_FORWARD_AUTH_DESCRIPTORS".to_owned(), text.clone())];
        let _ = resolve(&Sources { environment, ..Sources::default() });
    }
    assert!(from_file(&texts[0]).is_err());
}

#[test]
fn origins_are_written_as_browsers_write_them() {
    let text = "http_origins: [https://App.example, 'http://[::1]:3000', https://a.example:443, app://b]\nhttp_hosts: [gate.internal.]";
    let browsers = from_file(text).expect("the settings are valid").browsers;
    assert_eq!(browsers.origins, ["https://App.example", "http://[::1]:3000", "https://a.example", "app://b"]);
    assert_eq!(browsers.hosts, ["gate.internal"]);
    for wrong in ["'null'", "'*'", "app.example", "https://app.example/", "https://*.example", "https://:1", "://a"] {
        let errors = errors(&format!("http_origins: [{wrong}]"));
        assert!(errors[0].contains("is not the origin of a web page; write a scheme"), "{wrong}: {errors:?}");
    }
    assert!(errors("http_hosts: [a.example:80]")[0].contains("is not the name of a host"));
}
