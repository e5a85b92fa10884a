//! Tests of blocks and shadow switches that the servers of a fleet share in a real store.
//!
//! An operator sends a block to one server. All servers must refuse the caller, also while the store fails.

use std::net::SocketAddr;
use std::thread;

use serde_json::{Value, json};
use spillgate_redis::{LIST_COMMANDS, SCRIPT_COMMANDS};

use crate::cli_support::{Folder, signal};
use crate::store::fleet::{LONG_DEADLINE, check, decided, logged, metric, rules, serve, until_store};
use crate::support::redis::{Cluster, Redis};
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, http};

const RULES: &str = "  - {key: user, rate_limit: {algorithm: fixed_window, unit: year, requests_per_unit: 3}}\n  \
                     - {key: tight, rate_limit: {algorithm: fixed_window, unit: year, requests_per_unit: 0}}\n";
const BLOCKS: &str = "sg:{lists}:blocks";
const SHADOWS: &str = "sg:{lists}:shadows";
const VERSION: &str = "sg:{lists}:version";

fn folder() -> Folder {
    rules(RULES)
}

fn admin(server: &Spillgate, method: &str, path: &str, body: &Value) -> (u16, Value) {
    ask(server.admin(), method, path, body)
}

fn ask(at: SocketAddr, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = http::request(at, method, path, &[("x-spillgate-admin", "1")], &body).expect("the server answers");
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body)))
}

fn block(server: &Spillgate, value: &str, lasts: &str) -> Value {
    let body = json!({"key": "user", "value": value, "for": lasts});
    // A write waits for the store only for a limited time, and a busy machine can pause for longer.
    let (status, answer) = eventually("the store answers", || {
        let answer = admin(server, "POST", "/block", &body);
        (answer.0 != 503).then_some(answer)
    });
    assert_eq!(status, 200, "{answer}");
    answer
}

fn unblock(server: &Spillgate, value: &str) -> u16 {
    admin(server, "POST", "/unblock", &json!({"key": "user", "value": value})).0
}

fn blocks(server: &Spillgate) -> Value {
    admin(server, "GET", "/blocks", &Value::Null).1
}

fn number_of_blocks(server: &Spillgate) -> usize {
    blocks(server)["blocks"].as_array().expect("it is a list").len()
}

/// Returns whether a block refuses this value. The request takes nothing.
fn is_blocked(server: SocketAddr, value: &str) -> bool {
    let body = json!({"domain": "api", "descriptors": [{"user": value}], "cost": 0});
    ask(server, "POST", "/v1/check", &body).1["violated-policies"] == json!(["blocked"])
}

fn until_blocked(server: &Spillgate, value: &str, expected: bool) {
    eventually("the server knows the change", || (is_blocked(server.http(), value) == expected).then_some(()));
}

/// Adds blocks to the list, as a server writes them. `until_ms` is when they end.
fn fill(redis: &Redis, values: std::ops::Range<usize>, until_ms: u64) {
    let script = "for i = ARGV[1], ARGV[2] do redis.call('HSET', KEYS[1], '[null,\"user\",\"n' .. i .. '\"]', ARGV[3]) end \
                  redis.call('SET', KEYS[2], 'by the test ' .. ARGV[1])";
    let text = json!({"since_ms": 1, "until_ms": until_ms}).to_string();
    let (first, last) = (values.start.to_string(), (values.end - 1).to_string());
    redis.run(&["eval", script, "2", BLOCKS, VERSION, &first, &last, &text]);
}

/// Returns the time on the server's clock, in milliseconds since 1970.
fn now_ms(server: &Spillgate) -> u64 {
    block(server, "clock", "1s")["block"]["since_ms"].as_u64().expect("it is a number")
}

fn one_server_blocks_for_all(url: &str, arguments: &[&str]) {
    let (folder, arguments) = (folder(), [&LONG_DEADLINE[..], arguments].concat());
    let servers = [(); 2].map(|()| serve(&folder, url, &arguments));
    let [one, other] = &servers;
    let answer = block(one, "7", "1h");
    assert_eq!((&answer["scope"], &answer["blocks"]), (&json!("fleet"), &json!(1)));
    assert!(is_blocked(one.http(), "7"), "the server that was asked knows it at once");
    until_blocked(other, "7", true);
    let listed = blocks(other);
    assert_eq!((&listed["scope"], &listed["blocks"][0]["until_ms"]), (&json!("fleet"), &answer["block"]["until_ms"]));
    assert!(listed["read_ms_ago"].is_u64(), "{listed}");
    let refused = |server| blocks(server)["blocks"][0]["refused"].as_u64().expect("it is a number");
    let counted = refused(one);
    assert!(counted > 0 && refused(other) > 0, "each server counts what it has refused itself");
    let late = serve(&folder, url, &arguments);
    assert!(is_blocked(late.http(), "7"), "a server that starts has read the list before its first request");
    assert_eq!(refused(&late), 1, "its own count begins with its first request");
    until_store(other.http(), "user", "8");
    assert_eq!(unblock(other, "7"), 200);
    assert_eq!(check(other.http(), "user", "7").1["remaining"], 2, "blocked requests took nothing");
    until_blocked(one, "7", false);
    until_blocked(&late, "7", false);
    assert_eq!((unblock(one, "7"), number_of_blocks(one)), (404, 0));
    // `late` may not have read this block of another server yet, and can remove it nevertheless.
    block(one, "9", "1h");
    assert!(is_blocked(one.http(), "9"));
    // With the block of another server, the list is read again. The count of this block stays.
    block(&late, "10", "1h");
    until_blocked(one, "10", true);
    let listed = blocks(one);
    let nine = listed["blocks"].as_array().and_then(|list| list.iter().find(|block| block["value"] == "9"));
    assert_eq!(nine.expect("it is listed")["refused"], 1, "{listed}");
    assert_eq!((unblock(&late, "10"), unblock(&late, "9")), (200, 200));
    let shadow = |server: &Spillgate, body: Value| admin(server, "POST", "/shadow", &body).0;
    assert_eq!(decided(other.http(), "tight", "7").0, 429);
    let rule = json!({"domain": "api", "path": "tight"});
    assert_eq!(shadow(one, json!({"rule": rule, "on": true, "for": "1h"})), 200);
    assert_eq!(decided(one.http(), "tight", "7").0, 200);
    eventually("the other server knows the switch", || (decided(other.http(), "tight", "7").0 == 200).then_some(()));
    let listed = admin(other, "GET", "/shadows", &Value::Null).1;
    assert_eq!((&listed["scope_default"], &listed["rules"][0]["scope"]), (&json!("fleet"), &json!("fleet")));
    assert_eq!(shadow(other, json!({"rule": rule, "on": false})), 200);
    eventually("the switch is off", || (decided(one.http(), "tight", "7").0 == 429).then_some(()));
    assert_eq!(shadow(one, json!({"rule": "all", "on": true, "for": "1h", "scope": "server"})), 200);
    block(one, "10", "1h");
    until_blocked(other, "10", true);
    assert_eq!(
        [one, other].map(|server| decided(server.http(), "tight", "7").0),
        [200, 429],
        "one server is in shadow"
    );
    assert_eq!(shadow(one, json!({"rule": "all", "on": false})), 200);
    assert_eq!(decided(one.http(), "tight", "7").0, 429);
}

#[test]
fn a_block_on_one_server_is_on_all_servers() {
    one_server_blocks_for_all(&Redis::start().url(), &[]);
}

#[test]
fn a_block_on_one_server_is_on_all_servers_of_a_cluster() {
    one_server_blocks_for_all(&Cluster::start().url(), &[]);
}

#[test]
fn without_scripts_a_block_is_on_all_servers_too() {
    one_server_blocks_for_all(&Redis::start().url(), &["--store-scripts", "off"]);
}

#[test]
fn while_the_store_fails_the_copy_stays_in_use() {
    let (mut redis, folder) = (Redis::start(), folder());
    let server = serve(&folder, &redis.url(), &[]);
    eventually("the list was read", || blocks(&server)["read_ms_ago"].is_u64().then_some(()));
    for (value, lasts) in [("7", "1h"), ("8", "2s")] {
        eventually("the store answers", || {
            let body = json!({"key": "user", "value": value, "for": lasts});
            (admin(&server, "POST", "/block", &body).0 == 200).then_some(())
        });
    }
    redis.kill();
    let (status, problem) = eventually("the store is down", || {
        let answer = admin(&server, "POST", "/block", &json!({"key": "user", "value": "9", "for": "1h"}));
        (answer.0 != 200).then_some(answer)
    });
    assert_eq!(status, 503, "{problem}");
    assert_eq!(unblock(&server, "7"), 503);
    assert!(is_blocked(server.http(), "7"), "a block needs no store");
    until_blocked(&server, "8", false);
    assert!(is_blocked(server.http(), "7"));
    logged(&server.process, "the lists of blocks and shadow switches cannot be read from the store");
    eventually("the copy gets older", || (metric(&server, "spillgate_operator_copy_age_seconds") > 0).then_some(()));
    // The new redis-server has no data. The server writes its copy back.
    redis.start_again();
    logged(&server.process, "the lists of blocks and shadow switches are read again");
    logged(&server.process, "the store has lost blocks or shadow switches");
    eventually("the block is written back", || (redis.run(&["hlen", BLOCKS]) == "1").then_some(()));
    assert!(is_blocked(server.http(), "7"));
    assert_eq!(metric(&server, "spillgate_operator_lists_lost_total"), 1);
    let late = serve(&folder, &redis.url(), &[]);
    until_blocked(&late, "7", true);
    assert_eq!(unblock(&late, "7"), 200);
    until_blocked(&server, "7", false);
}

/// Two servers, of which the later one alone knows that an operator has ended a block and begun another one. Then the
/// store loses its data, and `first` says which of the two writes its copy back first.
fn servers_with_different_copies(first: &str) {
    let (mut redis, folder) = (Redis::start(), folder());
    let [earlier, later] = [(); 2].map(|()| serve(&folder, &redis.url(), &LONG_DEADLINE));
    block(&later, "ended", "1h");
    block(&later, "both", "1h");
    let shadow = json!({"rule": {"domain": "api", "path": "tight"}, "on": true, "for": "1h"});
    assert_eq!(admin(&later, "POST", "/shadow", &shadow).0, 200);
    for value in ["ended", "both"] {
        until_blocked(&earlier, value, true);
    }
    eventually("the switch is known", || (decided(earlier.http(), "tight", "1").0 == 200).then_some(()));
    signal(earlier.process.id(), "STOP");
    assert_eq!(unblock(&later, "ended"), 200);
    block(&later, "begun", "1h");
    signal(later.process.id(), "STOP");
    redis.kill();
    redis.start_again();
    let is_restored = || (redis.run(&["get", VERSION]).split('-').next()? > "0.0").then_some(());
    let mut newest = None;
    match first {
        "earlier" => {
            signal(earlier.process.id(), "CONT");
            eventually("the earlier copy is written back", is_restored);
            assert_eq!(redis.run(&["hexists", BLOCKS, "[null,\"user\",\"ended\"]"]), "1");
            signal(later.process.id(), "CONT");
        }
        "later" => {
            signal(later.process.id(), "CONT");
            eventually("the later copy is written back", is_restored);
            signal(earlier.process.id(), "CONT");
        }
        _ => {
            let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
            block(&server, "since", "1h");
            signal(earlier.process.id(), "CONT");
            signal(later.process.id(), "CONT");
            newest = Some(server);
        }
    }
    let servers: Vec<_> = [Some(&earlier), Some(&later), newest.as_ref()].into_iter().flatten().collect();
    let expected = if newest.is_some() { ["begun", "both", "since"].as_slice() } else { &["begun", "both"] };
    let listed = |server: &Spillgate| {
        let blocks = blocks(server);
        let values = blocks["blocks"].as_array().expect("it is a list").iter();
        let mut values: Vec<_> = values.map(|block| block["value"].as_str().unwrap_or_default().to_owned()).collect();
        values.sort();
        values
    };
    for server in &servers {
        eventually("all servers have the later copy", || (listed(server) == expected).then_some(()));
        eventually("the switch is on", || (decided(server.http(), "tight", "1").0 == 200).then_some(()));
    }
    assert_eq!(redis.run(&["hlen", BLOCKS]), expected.len().to_string());
    let lost = servers.iter().map(|server| metric(server, "spillgate_operator_lists_lost_total"));
    assert!(lost.sum::<u64>() > 0, "the loss is counted");
    // The lists can be changed as before.
    assert_eq!(unblock(&earlier, "both"), 200);
    for server in &servers {
        until_blocked(server, "both", false);
    }
}

#[test]
fn a_store_that_lost_the_lists_gets_the_latest_copy_even_if_an_earlier_one_was_first() {
    servers_with_different_copies("earlier");
}

#[test]
fn a_store_that_lost_the_lists_gets_the_latest_copy_and_an_earlier_one_changes_nothing() {
    servers_with_different_copies("later");
}

#[test]
fn a_block_on_a_new_server_after_a_loss_does_not_hide_the_loss() {
    servers_with_different_copies("new");
}

#[test]
fn a_list_that_was_evicted_alone_is_written_back() {
    let (redis, folder) = (Redis::start(), folder());
    let servers = [(); 2].map(|()| serve(&folder, &redis.url(), &LONG_DEADLINE));
    block(&servers[0], "7", "1h");
    until_blocked(&servers[1], "7", true);
    assert_eq!(redis.run(&["del", BLOCKS]), "1");
    eventually("the block is written back", || (redis.run(&["hlen", BLOCKS]) == "1").then_some(()));
    let late = serve(&folder, &redis.url(), &LONG_DEADLINE);
    assert!(is_blocked(late.http(), "7") && servers.iter().all(|server| is_blocked(server.http(), "7")));
    // The last block of a list ends: this is no loss.
    let lost = || -> u64 { servers.iter().map(|it| metric(it, "spillgate_operator_lists_lost_total")).sum() };
    let before = lost();
    assert!((1..=2).contains(&before), "{before}");
    assert_eq!(unblock(&servers[0], "7"), 200);
    for server in &servers {
        until_blocked(server, "7", false);
    }
    assert_eq!((redis.run(&["exists", BLOCKS]).as_str(), lost()), ("0", before));
}

/// A failover can lose the last writes. The version then goes back.
#[test]
fn writes_that_a_failover_has_lost_are_written_back() {
    let (redis, folder) = (Redis::start(), folder());
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    block(&server, "first", "1h");
    let (version, first) = (redis.run(&["get", VERSION]), "[null,\"user\",\"first\"]");
    let text = redis.run(&["hget", BLOCKS, first]);
    block(&server, "second", "1h");
    assert_eq!(unblock(&server, "first"), 200);
    eventually("the server has seen its version", || (blocks(&server)["read_ms_ago"].as_u64()? < 1_000).then_some(()));
    let script =
        "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) redis.call('SET', KEYS[2], ARGV[3])";
    redis.run(&["eval", script, "2", BLOCKS, VERSION, first, &text, &version]);
    eventually("the lost writes are back", || {
        let names = redis.run(&["hkeys", BLOCKS]);
        (names == "[null,\"user\",\"second\"]").then_some(())
    });
    assert!(is_blocked(server.http(), "second") && !is_blocked(server.http(), "first"));
}

#[test]
fn the_list_holds_ten_thousand_blocks_and_ended_ones_do_not_count() {
    let (redis, folder) = (Redis::start(), folder());
    let servers = [(); 2].map(|()| serve(&folder, &redis.url(), &LONG_DEADLINE));
    let [one, other] = &servers;
    let now = now_ms(one);
    assert_eq!(unblock(one, "clock"), 200);
    fill(&redis, 0..9_990, now + 3_600_000);
    for server in &servers {
        eventually("all blocks are read", || (number_of_blocks(server) == 9_990).then_some(()));
        assert!(
            is_blocked(server.http(), "n0")
                && is_blocked(server.http(), "n9989")
                && !is_blocked(server.http(), "n9990")
        );
    }
    // Two servers add more blocks than fit into the list, at the same time.
    let added: usize = thread::scope(|scope| {
        let add = |server: &'static str, at: SocketAddr| {
            let answers = (0..10).map(|number| {
                let body = json!({"key": "user", "value": format!("{server}{number}"), "for": "1h"});
                ask(at, "POST", "/block", &body).0
            });
            answers.filter(|status| *status == 200).count()
        };
        let (one, other) = (one.admin(), other.admin());
        let tasks = [scope.spawn(move || add("a", one)), scope.spawn(move || add("b", other))];
        tasks.into_iter().map(|task| task.join().expect("the task ends")).sum()
    });
    // Both servers can add the last block at the same moment, and so exceed the bound by one.
    assert!((10..=11).contains(&added), "{added} blocks were added");
    let number: usize = redis.run(&["hlen", BLOCKS]).parse().expect("it is a number");
    assert_eq!(number, 9_990 + added);
    let more = json!({"key": "user", "value": "more", "for": "1h"});
    let (status, problem) = admin(one, "POST", "/block", &more);
    assert_eq!((status, problem["detail"].as_str()), (409, Some("the list of blocks is full: it can have 10000")));
    assert!(!is_blocked(one.http(), "more"));
    let again = json!({"key": "user", "value": "n7", "for": "2h", "reason": "again"});
    assert_eq!(admin(other, "POST", "/block", &again).0, 200, "a block can be replaced");
    // 50 blocks of the list get an end that has passed, so they make room for new blocks.
    fill(&redis, 0..50, now);
    assert_eq!(admin(one, "POST", "/block", &more).0, 200);
    let number = number - 49;
    assert_eq!(redis.run(&["hlen", BLOCKS]), number.to_string());
    eventually("the other server knows it", || (number_of_blocks(other) == number).then_some(()));
    assert!(!is_blocked(other.http(), "n49") && is_blocked(other.http(), "n50"));
}

#[test]
fn entries_of_other_programs_fill_a_list_and_are_counted() {
    let (redis, folder) = (Redis::start(), folder());
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    block(&server, "7", "1h");
    // Another program does not change the version of the list, so no server notices the new entries.
    let script = "for i = 1, tonumber(ARGV[1]) do redis.call('HSET', KEYS[1], 'other ' .. i, '') end";
    for (list, entries) in [(BLOCKS, "10000"), (SHADOWS, "1000")] {
        redis.run(&["eval", script, "1", list, entries]);
    }
    let (status, problem) = admin(&server, "POST", "/block", &json!({"key": "user", "value": "8", "for": "1h"}));
    assert_eq!((status, problem["detail"].as_str()), (409, Some("the list of blocks is full: it can have 10000")));
    eventually("they are counted", || (blocks(&server)["unreadable"] == 11_000).then_some(()));
    let shadow = |rule: Value| {
        admin(&server, "POST", "/shadow", &json!({"rule": rule, "on": true, "for": "1h", "scope": "fleet"})).0
    };
    assert_eq!(shadow(json!({"domain": "api", "path": "user"})), 409);
    assert_eq!(shadow(json!("all")), 200, "the switch of all rules always fits");
    assert!(is_blocked(server.http(), "7"));
}

#[test]
fn ended_blocks_are_removed_from_the_list() {
    let (redis, folder) = (Redis::start(), folder());
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    let now = now_ms(&server);
    fill(&redis, 0..500, now - 3_600_000);
    eventually("they are removed", || (redis.run(&["hlen", BLOCKS]).parse::<u32>().ok()? <= 1).then_some(()));
    assert!(redis.run(&["pttl", BLOCKS]).parse::<u64>().expect("the list has a life") > 30 * 86_400_000);
    assert!(redis.run(&["pttl", VERSION]).parse::<i64>().is_ok());
}

#[test]
fn writers_on_two_servers_lose_nothing() {
    let (redis, folder) = (Redis::start(), folder());
    let servers = [(); 2].map(|()| serve(&folder, &redis.url(), &LONG_DEADLINE));
    thread::scope(|scope| {
        for writer in 0..4 {
            let at = servers[writer % 2].admin();
            scope.spawn(move || {
                // If the store does not answer in time, the write may have been applied. The test sends it again.
                let write = |path: &str, body: &Value, done: &[u16]| {
                    let status = eventually("the store answers", || {
                        let status = ask(at, "POST", path, body).0;
                        (status != 503).then_some(status)
                    });
                    assert!(done.contains(&status), "{path}: {status}");
                };
                let block =
                    |value: String| write("/block", &json!({"key": "user", "value": value, "for": "1h"}), &[200]);
                for number in 0..25 {
                    block(format!("{writer}-{number}"));
                    block("shared".to_owned());
                    if number % 2 == 0 {
                        let own = json!({"key": "user", "value": format!("{writer}-{number}")});
                        write("/unblock", &own, &[200, 404]);
                    }
                }
            });
        }
    });
    let expected = 4 * 12 + 1;
    assert_eq!(redis.run(&["hlen", BLOCKS]), expected.to_string());
    for server in &servers {
        eventually("the copy is that of the store", || (number_of_blocks(server) == expected).then_some(()));
        assert!(
            is_blocked(server.http(), "3-1")
                && !is_blocked(server.http(), "3-2")
                && is_blocked(server.http(), "shared")
        );
    }
}

#[test]
fn what_other_programs_write_into_the_list_is_left_out() {
    let (redis, folder) = (Redis::start(), folder());
    let server = serve(&folder, &redis.url(), &LONG_DEADLINE);
    block(&server, "7", "1h");
    let hostile = "a".repeat(100_000);
    for (field, text) in [
        ("", ""),
        ("x", "y"),
        ("[null,\"user\",\"8\"]", "{\"since_ms\":1,\"until_ms\":99999999999999999}"),
        ("[[[[", &hostile),
    ] {
        redis.run(&["hset", BLOCKS, field, text]);
    }
    redis.run(&["hset", SHADOWS, "<script>", "{}"]);
    redis.run(&["set", VERSION, "other"]);
    eventually("they are counted", || (blocks(&server)["unreadable"] == 5).then_some(()));
    logged(&server.process, "have entries that cannot be read; they are left out entries=5");
    assert!(is_blocked(server.http(), "7") && !is_blocked(server.http(), "8"));
    block(&server, "9", "1h");
    // A list with too many entries is not read. Its last copy stays in use.
    fill(&redis, 0..11_500, 1);
    logged(&server.process, "entries, and 11000 can be read");
    assert!(is_blocked(server.http(), "7") && is_blocked(server.http(), "9"));
    // If a key has another type, the server changes nothing, and its error names this key.
    for (key, other) in [(BLOCKS, VERSION), (VERSION, BLOCKS)] {
        redis.run(&["del", BLOCKS, VERSION]);
        redis.run(&["rpush", key, "no list of blocks"]);
        let body = json!({"key": "user", "value": "10", "for": "1h"});
        let (status, problem) = admin(&server, "POST", "/block", &body);
        let detail = problem.to_string();
        assert!(
            status == 503 && detail.contains(&format!("DEL {key}")) && detail.contains("nothing was changed"),
            "{problem}"
        );
        assert_eq!(redis.run(&["exists", other]).trim(), "0", "{other} is not written");
        assert!(is_blocked(server.http(), "7") && !is_blocked(server.http(), "10"));
    }
    // A version of another program ends all blocks. Without it, the server would write its copy back.
    let clear = "redis.call('del', KEYS[1], KEYS[2]) return redis.call('set', KEYS[2], 'cleared')";
    redis.run(&["eval", clear, "2", BLOCKS, VERSION]);
    until_blocked(&server, "7", false);
    block(&server, "7", "1h");
}

#[test]
fn without_the_rights_for_lists_requests_are_decided_and_changes_are_refused() {
    let (redis, folder) = (Redis::start(), folder());
    let user = |rights: &[&str]| {
        let rights: Vec<_> = rights.iter().map(|name| format!("+{}", name.to_lowercase())).collect();
        let mut words =
            vec!["acl", "setuser", "limiter", "reset", "on", ">secret", "~sg:*", "+evalsha", "+script|load"];
        words.extend(rights.iter().map(String::as_str));
        assert_eq!(redis.run(&words), "OK");
    };
    user(&SCRIPT_COMMANDS);
    let url = format!("redis://limiter:secret@127.0.0.1:{}", redis.port());
    let server = serve(&folder, &url, &LONG_DEADLINE);
    until_store(server.http(), "user", "7");
    let body = json!({"key": "user", "value": "7", "for": "1h"});
    let (status, problem) = admin(&server, "POST", "/block", &body);
    assert_eq!(status, 502, "{problem}");
    let help = problem["help"].as_str().expect("there is help");
    assert!(help.contains("MULTI on keys sg:*") && help.contains("least-rights.md"), "{help}");
    assert_eq!((redis.run(&["exists", BLOCKS, VERSION]).as_str(), is_blocked(server.http(), "7")), ("0", false));
    let shadow = json!({"rule": "all", "on": true, "for": "1h", "scope": "server"});
    assert_eq!(admin(&server, "POST", "/shadow", &shadow).0, 200, "this server needs no store for it");
    for missing in LIST_COMMANDS {
        let rights: Vec<_> =
            SCRIPT_COMMANDS.iter().chain(&LIST_COMMANDS).copied().filter(|name| *name != missing).collect();
        user(&rights);
        redis.run(&["del", BLOCKS]);
        // With this version, the lists are empty and not lost.
        redis.run(&["set", VERSION, "cleared"]);
        let (status, problem) = admin(&server, "POST", "/block", &body);
        let needed = missing != "HDEL";
        assert_eq!(status, if needed { 502 } else { 200 }, "{missing}: {problem}");
        if needed {
            assert!(problem["help"].as_str().is_some_and(|help| help.contains(missing)), "{missing}: {problem}");
            assert_eq!(redis.run(&["exists", BLOCKS]), "0", "{missing}: nothing was written");
        }
    }
    user(&[&SCRIPT_COMMANDS[..], &LIST_COMMANDS].concat());
    assert_eq!(admin(&server, "POST", "/block", &body).0, 200);
    assert!(is_blocked(server.http(), "7"));
}

#[test]
fn ended_blocks_that_cannot_be_removed_hide_no_later_block() {
    let (redis, folder) = (Redis::start(), folder());
    redis.run(&["acl", "setuser", "limiter", "reset", "on", ">secret", "~sg:*", "+@all", "-hdel"]);
    let url = format!("redis://limiter:secret@127.0.0.1:{}", redis.port());
    let server = serve(&folder, &url, &LONG_DEADLINE);
    let now = now_ms(&server);
    fill(&redis, 0..500, now - 3_600_000);
    fill(&redis, 500..501, now + 3_600_000);
    until_blocked(&server, "n500", true);
    assert!(redis.run(&["hlen", BLOCKS]).parse::<u32>().is_ok_and(|length| length > 500), "they are still there");
}
