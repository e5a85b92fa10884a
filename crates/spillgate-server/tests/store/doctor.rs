//! Tests of `spillgate doctor`, the command that examines a store, with real stores. The tests check what the doctor
//! finds. They also check which rights (permissions of a Redis user) it needs, and which missing rights it reports.
//!
//! Operators copy the commands from the doctor's help. So one test runs the ACL command from this help.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;
use spillgate_redis::doctor::CLUSTER_COMMANDS;
use spillgate_redis::{LIST_COMMANDS, SCRIPT_COMMANDS, TRANSACTION_COMMANDS};
use spillgate_testkit::free_port;

use crate::cli_support::Folder;
use crate::store::commands::{LIMITS, json};
use crate::store::fleet::{LONG_DEADLINE, check, rules, serve};
use crate::support::eventually;
use crate::support::process::Process;
use crate::support::redis::{Cluster, Redis};

/// Returns the name and the grade of each finding. The name says what the doctor examined, for example `rights`.
fn grades(report: &Value) -> Vec<(String, String)> {
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("the report has findings").iter();
    findings.map(|finding| (text(finding, "what"), text(finding, "grade"))).collect()
}

fn to_fix(report: &Value) -> Vec<String> {
    grades(report).into_iter().filter(|(_, grade)| grade == "fix").map(|(what, _)| what).collect()
}

/// Returns the help of the first finding with the name `what`.
fn help(report: &Value, what: &str) -> String {
    let mut findings = report["findings"].as_array().expect("the report has findings").iter();
    let found = findings
        .find(|finding| finding["what"] == what)
        .unwrap_or_else(|| panic!("the report has no finding {what}: {report}"));
    found["help"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn doctor_finds_nothing_to_fix_in_a_good_store() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let output = folder.run(&format!("doctor --json --store {} --store-deadline 1s", redis.url()));
    assert!(output.code == 0 && output.stdout.contains("store.deadline is 1s"), "{output:?}");
    folder.write("s.yaml", &format!("store: {{url: '{}', deadline: 5s}}", redis.url()));
    let output = folder.run("doctor --json -c s.yaml");
    let report = json(&output);
    assert_eq!((output.code, to_fix(&report)), (0, vec![]), "{report}");
    let examined: Vec<_> = grades(&report).into_iter().map(|(what, _)| what).collect();
    assert_eq!(examined, ["version", "role", "eviction", "rights", "blocks", "scripts", "clock", "latency"]);
    assert_eq!(redis.run(&["dbsize"]), "0", "the doctor leaves no key in the store");
    let output = folder.run("doctor -c s.yaml");
    assert!(output.code == 0 && output.stdout.contains("all is well"), "{output:?}");
}

#[test]
fn doctor_says_what_to_fix() {
    let folder = rules(LIMITS);
    let redis = Redis::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let run = |url: &str| folder.run(&format!("doctor --json --store {url}"));
    let output = run(&redis.url());
    let (code, report) = (output.code, json(&output));
    assert!(code == 1 && to_fix(&report).contains(&"eviction".to_owned()), "{report}");
    assert!(
        help(&report, "eviction").contains("limits are answered by on_store_failure"),
        "the help must say that on_store_failure answers while Redis is full under the policy noeviction: {report}"
    );
    // Also this policy evicts counts of other callers: first those whose windows end soonest.
    redis.run(&["config", "set", "maxmemory-policy", "volatile-ttl"]);
    assert!(to_fix(&json(&run(&redis.url()))).contains(&"eviction".to_owned()));
    redis.run(&["config", "set", "maxmemory-policy", "noeviction"]);
    assert!(!to_fix(&json(&run(&redis.url()))).contains(&"eviction".to_owned()));
    // In the next loop, Redis is nearly full. After the loop, Redis is full and runs no script.
    let used = redis.run(&["info", "memory"]);
    let used: u64 = used
        .split("used_memory:")
        .nth(1)
        .and_then(|it| it.lines().next()?.trim().parse().ok())
        .expect("INFO shows `used_memory`");
    redis.run(&["config", "set", "maxmemory", &(used + used / 20).to_string()]);
    for (policy, grade) in [("volatile-ttl", "fix"), ("noeviction", "fix")] {
        redis.run(&["config", "set", "maxmemory-policy", policy]);
        let report = json(&run(&redis.url()));
        assert!(grades(&report).contains(&("eviction".to_owned(), grade.to_owned())), "{report}");
    }
    redis.run(&["config", "set", "maxmemory", "1"]);
    let report = json(&run(&redis.url()));
    let helps = ["eviction", "scripts"].map(|what| help(&report, what));
    assert!(helps.iter().all(|help| help.contains("CONFIG SET maxmemory")), "{report}");
    assert!(report.to_string().contains(" of 0.0 MiB used"), "{report}");
    let replica =
        Redis::start_with(&["--replicaof", "127.0.0.1", redis.url().rsplit(':').next().expect("the URL has a port")]);
    let report = json(&run(&replica.url()));
    assert!(to_fix(&report).contains(&"role".to_owned()) && help(&report, "scripts").contains("a replica"), "{report}");
    let gone = run(&format!("redis://127.0.0.1:{}", free_port()));
    assert_eq!(gone.code, 3, "{gone:?}");
    assert_eq!(run("memory").code, 2);
    assert_eq!(run("redis://127.0.0.1:x").code, 2);
}

#[test]
fn doctor_guesses_why_a_store_cannot_be_used() {
    let (redis, folder) = (Redis::start(), rules(LIMITS));
    let of_redis = redis.url().replace("redis://", "");
    let web = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let of_web = web.local_addr().expect("the listener has an address");
    std::thread::spawn(move || {
        for mut client in web.incoming().map_while(Result::ok) {
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let of_deaf = deaf.local_addr().expect("the listener has an address");
    let (_sentinel, of_sentinel) = sentinel(&folder, "");
    let rows = [
        (format!("redis://{of_web}"), "check the port: another program"),
        (format!("rediss://{of_deaf}"), "does that port use TLS?"),
        (format!("rediss://{of_redis}"), "does that port use TLS?"),
        (format!("redis-cluster://{of_redis}"), "that server is not a cluster: write redis://"),
        (format!("redis-sentinel://{of_sentinel}/nobody"), "SENTINEL MASTERS"),
    ];
    for (url, helps) in rows {
        let output = folder.run(&format!("doctor --store {url}"));
        assert!(output.code == 3 && output.stderr.contains(helps), "{url}: {output:?}");
    }
    let report = json(&folder.run(&format!("doctor --json --store redis://{of_sentinel}")));
    assert_eq!(grades(&report), [("role".to_owned(), "fix".to_owned())], "{report}");
    assert!(help(&report, "role").contains("redis-sentinel://127.0.0.1:"), "{report}");
}

#[test]
fn doctor_examines_every_sentinel_and_what_a_primary_that_is_cut_off_does() {
    let (primary, folder) = (Redis::start(), rules(LIMITS));
    let port = primary.url().rsplit(':').next().expect("the URL has a port").to_owned();
    let (_sentinel, live) = sentinel(&folder, &format!("sentinel monitor main 127.0.0.1 {port} 1\n"));
    let gone = format!("127.0.0.1:{}", free_port());
    let doctor = |sentinels: &str| {
        let output =
            folder.run(&format!("doctor --json --store redis-sentinel://{sentinels}/main --store-deadline 5s"));
        (output.code, json(&output))
    };
    let grade = |report: &Value, what: &str| {
        grades(report).into_iter().find(|(it, _)| it == what).expect("the report has this finding").1
    };
    let (_, report) = doctor(&live);
    assert_eq!(
        ["sentinels", "failover"].map(|what| grade(&report, what)),
        ["ok", "note"],
        "the primary has no replica, so `failover` must be a note: {report}"
    );

    let _replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]);
    eventually("the replica follows", || primary.run(&["info", "replication"]).contains("state=online").then_some(()));
    let (code, report) = doctor(&format!("{gone},{live}"));
    assert_eq!(
        (code, ["sentinels", "failover"].map(|what| grade(&report, what))),
        (1, ["fix", "fix"].map(str::to_owned))
    );
    assert!(report.to_string().contains(&format!("1 of 2 say where the primary is; {gone}")), "{report}");
    assert!(help(&report, "failover").contains("CONFIG SET min-replicas-to-write 1"), "{report}");

    assert_eq!(primary.run(&["config", "set", "min-replicas-to-write", "1"]), "OK");
    let (code, report) = doctor(&live);
    assert_eq!((code, to_fix(&report)), (0, vec![]), "{report}");
}

/// Starts a sentinel. Returns its process and its address.
fn sentinel(folder: &Folder, settings: &str) -> (Process, String) {
    let port = free_port().to_string();
    folder.write("sentinel.conf", settings);
    let mut command = Command::new("redis-server");
    command.arg(folder.path("sentinel.conf")).args(["--sentinel", "--bind", "127.0.0.1", "--port", &port]);
    let process = Process::start("sentinel", &mut command);
    while !process.line().expect("the sentinel prints its id when it is ready").contains("Sentinel ID is") {}
    (process, format!("127.0.0.1:{port}"))
}

#[test]
fn doctor_says_how_to_create_a_cluster_of_nodes_without_one() {
    let (node, _) = Redis::start_node();
    let folder = rules(LIMITS);
    let url = node.url().replace("redis://", "redis-cluster://");
    let report = json(&folder.run(&format!("doctor --json --store {url}")));
    assert!(help(&report, "slots").contains("--cluster create"), "{report}");
    assert!(grades(&report).iter().all(|(what, _)| what != "replicas"), "{report}");
}

/// In a new cluster, a primary can know its replica before the other nodes know this replica. The test creates such a
/// state.
#[test]
fn a_replica_that_the_cluster_does_not_list_yet_is_not_missing() {
    let (cluster, folder) = (Cluster::start(), rules(LIMITS));
    let addresses = [0, 1, 2].map(|node: usize| cluster.nodes[node].url().replace("redis://", ""));
    let port = addresses[0].rsplit(':').next().expect("the URL has a port");
    let _replica = Redis::start_with(&["--replicaof", "127.0.0.1", port]);
    let follows = || cluster.nodes[0].run(&["info", "replication"]).contains("state=online");
    eventually("the replica follows", || follows().then_some(()));
    let report = json(&folder.run(&format!("doctor --json --store {}", cluster.url())));
    let findings = report["findings"]
        .as_array()
        .expect("the report has findings")
        .iter()
        .filter(|finding| finding["what"] == "replicas");
    let found: Vec<_> = findings.map(|finding| finding["found"].as_str().unwrap_or_default()).collect();
    let [without, unlisted] = found[..] else { panic!("{report}") };
    assert!(without.starts_with("no replica of ") && !without.contains(&addresses[0]), "{report}");
    assert!(addresses[1..].iter().all(|address| without.contains(address)), "{report}");
    assert_eq!(unlisted, format!("the cluster does not list the replica of {} yet", addresses[0]), "{report}");
}

#[test]
fn doctor_shows_ipv6_nodes_as_they_can_be_pasted() {
    let (node, _) = Redis::start_node();
    let folder = rules(LIMITS);
    assert_eq!(node.run(&["cluster", "addslotsrange", "0", "16383"]), "OK");
    assert_eq!(node.run(&["config", "set", "cluster-announce-ip", "::1"]), "OK");
    eventually("the node announces this address", || node.run(&["cluster", "slots"]).contains("::1").then_some(()));
    // Nothing has to answer at the address that the node announces.
    let url = node.url().replace("redis://", "redis-cluster://");
    let address = url.replace("redis-cluster://127.0.0.1", "[::1]");
    let report = json(&folder.run(&format!("doctor --json --store {url}"))).to_string();
    assert!(report.contains(&format!("\"server\":\"{address}\"")), "{report}");
    assert!(report.contains(&format!("no replica of {address}")) && !report.contains("\"::1"), "{report}");
}

#[test]
fn doctor_without_a_password_says_that_it_needs_one() {
    let (redis, folder) = (Redis::start_with(&["--requirepass", "hush"]), rules(LIMITS));
    folder.write("wrong", "hash");
    for login in ["", "--store-password-file wrong"] {
        let output = folder.run(&format!("doctor --store {} {login}", redis.url()));
        assert_eq!((output.code, output.stdout.as_str()), (3, ""), "{output:?}");
        let expected = ["refuses access", "check the login"];
        assert!(expected.iter().all(|text| output.stderr.contains(text)), "{output:?}");
    }
}

/// Returns the words with which a Redis ACL allows `commands`, for example `+get +script|load`.
fn rights(commands: &[&str]) -> String {
    let rights = commands.iter().map(|command| format!("+{}", command.to_ascii_lowercase().replace(' ', "|")));
    rights.collect::<Vec<_>>().join(" ")
}

/// Returns the least rights that a server needs, as the page least-rights.md of the book lists them.
fn least() -> String {
    format!("+evalsha +script|load {}", rights(&SCRIPT_COMMANDS))
}

fn assert_the_book_has(text: &str) {
    let page = crate::support::root().join("docs/src/operating/least-rights.md");
    let page = std::fs::read_to_string(page).expect("the page can be read");
    // Line breaks and quotes are removed, as a shell does it. The escapes of Markdown tables are removed too.
    let one_line = page.replace("\\\n", " ").replace("\\|", "|").replace('\'', "");
    let one_line = one_line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(one_line.contains(text), "least-rights.md does not have: {text}");
}

const LOGIN: &str = "--store-user limiter --store-password-file password";

/// Creates the Redis user `limiter` of `LOGIN` with exactly these rights.
fn user(redis: &Redis, rights: &str) {
    let words = format!("acl setuser limiter reset on >hush ~sg:* resetchannels {rights}");
    assert_eq!(redis.run(&words.split(' ').collect::<Vec<_>>()), "OK");
}

/// Returns a folder that has a file with the password of `limiter`, and arguments for a server that logs in as `limiter`.
fn login() -> (Folder, Vec<String>) {
    let folder = rules(LIMITS);
    folder.write("password", "hush");
    let password = folder.path("password").display().to_string();
    let arguments = [&LONG_DEADLINE[..], &["--store-user", "limiter", "--store-password-file", &password]].concat();
    let arguments = arguments.into_iter().map(str::to_owned).collect();
    (folder, arguments)
}

/// Returns the grade and the help of each finding about rights. The report has one such finding for each Redis server.
fn rights_findings(report: &Value) -> Vec<(&str, &str)> {
    let findings = report["findings"]
        .as_array()
        .expect("the report has findings")
        .iter()
        .filter(|finding| finding["what"] == "rights");
    findings.map(|it| (it["grade"].as_str().unwrap_or_default(), it["help"].as_str().unwrap_or_default())).collect()
}

fn assert_all_is_served(folder: &Folder, url: &str, arguments: &[String]) {
    let server = serve(folder, url, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    for key in ["user", "charged", "queue"] {
        let (status, answer) = check(server.http(), key, "7");
        assert_eq!((status, &answer["source"]), (200, &Value::from("store")), "{key}: {answer}");
    }
}

#[test]
fn the_least_rights_are_enough_and_a_missing_one_is_reported() {
    assert_the_book_has(&format!("~sg:* resetchannels {}", least()));
    let (redis, (folder, arguments)) = (Redis::start(), login());
    let doctor = || json(&folder.run(&format!("doctor --json --store {} {LOGIN}", redis.url())));
    user(&redis, &least());
    let report = doctor();
    assert!(to_fix(&report).iter().all(|what| what == "latency"), "{report}");
    assert!(
        grades(&report).contains(&("version".to_owned(), "note".to_owned())),
        "the doctor cannot read the version, because the user has no right to run INFO: {report}"
    );
    for command in SCRIPT_COMMANDS {
        user(&redis, &format!("{} -{}", least(), command.to_ascii_lowercase()));
        let report = doctor();
        let [(grade, help)] = rights_findings(&report)[..] else { panic!("{report}") };
        assert_eq!(grade, "fix", "{command}: {report}");
        assert!(help.ends_with(&format!(" ~sg:* +{}", command.to_ascii_lowercase())), "{command}: {help}");
    }
    for missing in ["evalsha", "script|load"] {
        user(&redis, &least().replace(&format!("+{missing}"), ""));
        assert_eq!(help(&doctor(), "rights"), format!("ACL SETUSER limiter ~sg:* +{missing}"));
        assert_eq!(redis.run(&["keys", "*"]), "", "the doctor leaves no key in the store");
    }
    // The doctor finds all missing rights in one run, so one ACL command from the help is enough.
    user(&redis, "+ping");
    let report = doctor();
    assert!(help(&report, "clock").contains("+time"), "{report}");
    let words = help(&report, "rights");
    redis.run(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(help(&doctor(), "rights"), "", "{words}");
    // If the doctor has no right to delete keys, it can leave keys in the store. All these keys must expire.
    user(&redis, &format!("{} -set -del -pexpire -pexpireat", least()));
    redis.run(&["flushall"]);
    doctor();
    let left = redis.run(&["eval", LASTING, "0"]);
    assert_eq!(left, "", "the doctor left keys that never expire");
    user(&redis, &least());
    let output = folder.run(&format!("doctor --store {}/1 {LOGIN}", redis.url()));
    assert!(output.code == 1 && output.stdout.contains("+select"), "a missing right has one exit code: {output:?}");
    assert_all_is_served(&folder, &redis.url(), &arguments);
}

/// A script that returns the keys that never expire.
const LASTING: &str = "local lasting = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
                       if redis.call('PTTL', key) < 0 then lasting[#lasting + 1] = key end end return lasting";

#[test]
fn the_least_rights_without_scripts_are_enough_and_a_missing_one_is_reported() {
    assert_the_book_has(&format!("`{}`", rights(&TRANSACTION_COMMANDS)));
    let (redis, (folder, arguments)) = (Redis::start(), login());
    folder.write(
        "rules.yaml",
        "domain: api\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]\n",
    );
    folder.write("s.yaml", &format!("store: {{url: '{}', scripts: off}}", redis.url()));
    let doctor = || json(&folder.run(&format!("doctor --json -c s.yaml {LOGIN}")));
    let least = rights(&TRANSACTION_COMMANDS);
    user(&redis, &least);
    let report = doctor();
    assert!(to_fix(&report).iter().all(|what| what == "latency"), "{report}");
    assert!(grades(&report).iter().any(|(what, _)| what == "latency"), "{report}");
    for command in TRANSACTION_COMMANDS {
        user(&redis, &format!("{least} -{}", command.to_ascii_lowercase()));
        let report = doctor();
        let [(grade, help)] = rights_findings(&report)[..] else { panic!("{report}") };
        assert_eq!(grade, "fix", "{command}: {report}");
        assert!(help.ends_with(&format!(" ~sg:* +{}", command.to_ascii_lowercase())), "{command}: {help}");
    }
    assert_eq!(redis.run(&["dbsize"]), "0", "the doctor leaves no key in the store");
    user(&redis, &least);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).chain(["--store-scripts", "off"]).collect();
    let server = serve(&folder, &redis.url(), &arguments);
    let (status, answer) = check(server.http(), "user", "7");
    assert_eq!((status, &answer["source"]), (200, &Value::from("store")), "{answer}");
}

/// Requests need none of these rights, so a missing one is only a note.
#[test]
fn a_missing_right_of_blocks_is_a_note() {
    let (redis, (folder, _)) = (Redis::start(), login());
    for (scripts, of_requests) in [("on", least()), ("off", rights(&TRANSACTION_COMMANDS))] {
        let new: Vec<_> = LIST_COMMANDS.into_iter().filter(|it| !of_requests.contains(&rights(&[it]))).collect();
        assert_the_book_has(&format!("`{}`", rights(&new)));
        folder.write("s.yaml", &format!("store: {{url: '{}', scripts: {scripts}}}", redis.url()));
        let doctor = || json(&folder.run(&format!("doctor --json -c s.yaml {LOGIN}")));
        let grade =
            |report: &Value| grades(report).into_iter().find(|(what, _)| what == "blocks").map(|(_, grade)| grade);
        user(&redis, &of_requests);
        let report = doctor();
        assert_eq!(grade(&report).as_deref(), Some("note"), "{report}");
        let words = help(&report, "blocks");
        assert!(words.ends_with(&format!("ACL SETUSER limiter ~sg:* {}", rights(&new))), "{words}");
        for missing in LIST_COMMANDS {
            user(&redis, &format!("{of_requests} {} -{}", rights(&LIST_COMMANDS), missing.to_ascii_lowercase()));
            let report = doctor();
            assert!(
                help(&report, "blocks").ends_with(&format!(" ~sg:* {}", rights(&[missing]))),
                "{missing}: {report}"
            );
        }
        user(&redis, &format!("{of_requests} {}", rights(&LIST_COMMANDS)));
        let report = doctor();
        assert_eq!((grade(&report).as_deref(), help(&report, "blocks").as_str()), (Some("ok"), ""), "{report}");
        assert_eq!(redis.run(&["keys", "*"]), "", "the doctor leaves no key in the store");
    }
}

#[test]
fn the_least_rights_on_a_cluster_are_enough_and_a_missing_one_is_reported() {
    let more = rights(&CLUSTER_COMMANDS);
    assert_the_book_has(&format!("| The store is a cluster. | In addition `{more}`, on every node. |"));
    let (cluster, (folder, arguments)) = (Cluster::start(), login());
    let doctor = || folder.run(&format!("doctor --json --store {} {LOGIN}", cluster.url()));
    let all = |rights: &str| cluster.nodes.iter().for_each(|node| user(node, rights));
    all(&format!("{} {more}", least()));
    let report = json(&doctor());
    assert!(to_fix(&report).iter().all(|what| what == "latency"), "{report}");
    assert_eq!(rights_findings(&report), [("ok", ""); 3], "{report}");
    // On one node, the user has no right to run ASKING, so a redirection to this node would fail.
    user(&cluster.nodes[1], &format!("{} {more} -asking", least()));
    let report = json(&doctor());
    let wrong: Vec<_> = rights_findings(&report).into_iter().filter(|(grade, _)| *grade == "fix").collect();
    assert!(matches!(wrong[..], [(_, help)] if help.ends_with(" +asking")), "{report}");
    all(&format!("{} {more} -cluster|slots", least()));
    let output = doctor();
    assert!(output.code == 1 && output.stdout.contains("ACL SETUSER limiter +cluster|slots"), "{output:?}");
    all(&format!("{} {more}", least()));
    assert_all_is_served(&folder, &cluster.url(), &arguments);
}

#[test]
fn doctor_reports_a_dead_node_once_as_not_answering() {
    let (mut cluster, folder) = (Cluster::start(), rules(LIMITS));
    cluster.nodes[2].kill();
    let dead = cluster.nodes[2].url().replace("redis://", "");
    let report = json(&folder.run(&format!("doctor --json --store {}", cluster.url())));
    let findings = report["findings"]
        .as_array()
        .expect("the report has findings")
        .iter()
        .filter(|finding| finding["server"] == *dead);
    let output: Vec<_> = findings.map(|finding| (finding["what"].clone(), finding["grade"].clone())).collect();
    assert_eq!(output, [(Value::from("answers"), Value::from("fix"))], "{report}");
    assert!(!report.to_string().contains("lacks the right"), "{report}");
}

#[test]
fn doctor_knows_nodes_without_host_names_and_says_that_replicas_are_not_asked() {
    let (primary, _) = Redis::start_node();
    let (replica, bus) = Redis::start_node();
    let folder = rules(LIMITS);
    folder.write("password", "hush");
    let run = |words: &str| primary.run(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(run("cluster addslotsrange 0 16383"), "OK");
    let port = replica.url().rsplit(':').next().expect("the URL has a port").to_owned();
    assert_eq!(run(&format!("cluster meet 127.0.0.1 {port} {bus}")), "OK");
    let id = run("cluster myid");
    eventually("the second node becomes a replica", || {
        (replica.run(&["cluster", "replicate", &id]) == "OK").then_some(())
    });
    eventually("the primary lists its replica", || {
        (run("cluster slots").contains(&port) && is_ok(&primary)).then_some(())
    });
    let url = primary.url().replace("redis://", "redis-cluster://");
    let doctor = |login: &str| json(&folder.run(&format!("doctor --json --store {url} {login}")));
    let grade =
        |report: &Value, what: &str| grades(report).into_iter().find(|(it, _)| it == what).map(|(_, grade)| grade);
    for hosts in ["ip", "hostname"] {
        assert_eq!(run(&format!("config set cluster-preferred-endpoint-type {hosts}")), "OK");
        let report = doctor("");
        for what in ["slots", "replicas", "scripts"] {
            assert_eq!(grade(&report, what).as_deref(), Some("ok"), "{hosts}, {what}: {report}");
        }
    }
    user(&primary, &format!("{} {}", least(), rights(&CLUSTER_COMMANDS)));
    let report = doctor(LOGIN);
    assert_eq!(
        rights_findings(&report),
        [("ok", "")],
        "only the primary is examined, because the replica has no user limiter: {report}"
    );
    assert_eq!(grade(&report, "replicas").as_deref(), Some("note"), "{report}");
    assert!(help(&report, "replicas").contains("the user limiter too"), "{report}");
}

fn is_ok(node: &Redis) -> bool {
    node.run(&["cluster", "info"]).contains("cluster_state:ok")
}
