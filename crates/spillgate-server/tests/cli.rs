//! Tests of the commands that need no server: help, validate, check, schema.
//!
//! Scripts read the output and the exit codes of these commands, so the tests compare both.

use crate::support;
use std::process::Command;

use crate::cli_support::{Folder, Output, lines};
use serde_json::Value;

const RULES: &str = "\
domain: api
descriptors:
  - key: user_id
    rate_limit: {unit: minute, requests_per_unit: 2, name: per_user}
  - key: user_id
    value: \"vip*\"
    descriptors:
      - key: path
        rate_limits:
          - {unit: second, requests_per_unit: 3, name: burst}
          - {window: 1h, limit: 100, algorithm: token_bucket, burst: 4}
  - key: ban
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: queue
    rate_limit: {window: 1s, limit: 2, algorithm: leaky_bucket, queue: 2}
";

fn folder() -> Folder {
    Folder::new(&[("rules.yaml", RULES)])
}

fn json(output: &Output) -> Value {
    assert_eq!(output.stdout.lines().count(), 1, "the output is one line of JSON: {output:?}");
    assert!(!output.stdout.contains('\x1b'));
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn without_arguments_there_is_a_short_help() {
    let output = folder().run("");
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    for word in ["serve", "validate", "check", "schema", "block", "reload", "Start here:", "exit codes"] {
        assert!(output.stdout.contains(word), "{word}: {}", output.stdout);
    }
    assert!(output.stdout.lines().count() <= 50, "the help fits a screen: {}", output.stdout);
}

#[test]
fn every_command_has_help_with_examples_and_exit_codes() {
    for command in ["serve", "validate", "check"] {
        let output = folder().run(&format!("{command} --help"));
        assert_eq!(output.code, 0);
        for word in ["--json", "--config"] {
            assert!(output.stdout.contains(word), "{command}: {word}");
        }
    }
    for command in spillgate_server::cli::command().get_subcommands().map(clap::Command::get_name) {
        let help = folder().run(&format!("{command} --help")).stdout;
        assert!(help.contains("Examples:"), "{command}");
        let (_, codes) = help.split_once("Exit codes:\n").unwrap_or_else(|| panic!("{command} says its exit codes"));
        assert!(codes.lines().count() <= 5, "{command} says only its own exit codes: {codes}");
        assert!(codes.lines().all(|line| line.chars().count() <= 100), "{command}: {codes}");
    }
}

#[test]
fn the_help_of_serve_names_every_key_that_the_settings_have() {
    let help = folder().run("serve --help").stdout;
    let settings = json(&folder().run("serve --show-settings --json"));
    let keys = settings.as_object().expect("the settings are a JSON object");
    assert!(keys.len() > 25, "{keys:?}");
    for key in keys.keys().filter(|key| *key != "memory_of_clients") {
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("[key: {key}]")), "{key}");
    }
    for flag in ["--memory-max-keys <COUNT>", "--limits-body <SIZE>", "--store <URL>", "--store-tls-cert <FILE>"] {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn a_wrong_command_line_exits_with_2_and_suggests_the_right_one() {
    for (arguments, expected) in [
        ("sevre rules.yaml", "tip: a similar subcommand exists: 'serve'"),
        ("serve rules.yaml --htpp off", "tip: a similar argument exists: '--http'"),
        ("check rules.yaml --descriptor a=1", "--domain <NAME>"),
        ("check rules.yaml -d api -e a", "`a` has no value: write KEY=VALUE"),
        ("check rules.yaml -d api -e a=1 --at 1s,soon", "write a number and a unit"),
        ("check rules.yaml -d api -e a=1 --at 1s,0s", "the times of --at go back"),
        ("check rules.yaml -d api -e a=1 --at 0s,1s --times 9999", "make more than 10000 questions"),
        ("check rules.yaml -d api -e a=1 --times 0", "0 is not in 1..=10000"),
        ("check rules.yaml -d api -e a=1 --cost -1", "write a whole number from 0"),
        ("check rules.yaml -d api -e a=1 --at 999999d", "too long, at most 213503d"),
    ] {
        let output = folder().run(arguments);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments}");
        assert!(output.stderr.contains(expected), "{arguments}: {}", output.stderr);
    }
}

#[test]
fn schema_is_json_that_describes_rules_files() {
    let output = folder().run("schema");
    let schema: Value = serde_json::from_str(&output.stdout).expect("the schema is JSON");
    assert_eq!(output.code, 0);
    assert!(schema["$schema"].is_string());
    assert!(schema["properties"]["domain"].is_object(), "{schema}");
}

#[test]
fn validate_prints_what_it_has_read() {
    // Only callers over HTTP can wait in the queue of these rules.
    let http = ("s.yaml", "grpc: off");
    let output = Folder::new(&[("rules.yaml", RULES), http]).run("validate rules.yaml --config s.yaml");
    let expected = (0, "1 file: 1 domain, 6 rules, good\n", "");
    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), expected, "these rules have no note");
    let folder = Folder::new(&[("rules.yaml", &format!("{RULES}  - key: unlimited\n")), http]);
    let output = folder.run("validate rules.yaml --config s.yaml");
    assert_eq!((output.code, output.stdout.as_str()), (0, "1 file: 1 domain, 7 rules, good, 1 note\n"));
    assert!(output.stderr.starts_with("note: rules.yaml:18:5: "), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "a note is one line: {}", output.stderr);
    assert_eq!(folder.run("validate rules.yaml --deny-warnings").code, 0, "a note is not a warning");
}

#[test]
fn check_asks_a_list_of_costs_so_that_post_paid_limits_can_be_tried() {
    let example = support::root().join("examples/login.yaml").display().to_string();
    let login = format!("check {example} --domain login --descriptor account=bob");
    let output = folder().run(&format!("{login} --cost 0,1,1,1,1,1,0"));
    assert_eq!(output.code, 1, "{output:?}");
    let rows = lines(&output.stdout);
    assert!(rows.iter().any(|row| row.starts_with("0s, cost 1  allowed")), "{}", output.stdout);
    assert!(rows.iter().any(|row| row.starts_with("0s, cost 0  refused") && row.contains("15m")), "{}", output.stdout);
    let asked = json(&folder().run(&format!("{login} --at 0s,1s --cost 0,5 --json")))["asked"].clone();
    let answers: Vec<_> =
        asked.as_array().expect("`asked` is a list").iter().map(|one| (&one["cost"], &one["allowed"])).collect();
    let expected =
        [(0, true), (5, true), (0, false), (5, true)].map(|(cost, allowed)| (Value::from(cost), allowed.into()));
    assert_eq!(answers, expected.each_ref().map(|(cost, allowed)| (cost, allowed)));
}

#[test]
fn check_releases_permits_before_the_next_question() {
    let rules = "domain: d\ndescriptors: [{key: job, rate_limit: {algorithm: concurrency, limit: 1}}]";
    let folder = Folder::new(&[("rules.yaml", rules)]);
    let check = "check rules.yaml -d d -e job=x --times 3";
    assert!(folder.run(check).stdout.contains("1 of 3 allowed, 2 refused"));
    assert!(folder.run(&format!("{check} --release")).stdout.contains("all 3 allowed"));
}

#[test]
fn check_shows_where_a_rule_ends_and_which_limit_another_rule_replaces() {
    let rules = "domain: d
descriptors:
  - {key: user, rate_limits: [{name: small, unit: second, limit: 1}, {name: daily, unit: day, limit: 9}]}
  - {key: plan, rate_limit: {unit: second, limit: 5, replaces: [{name: small}]}}
";
    let folder = Folder::new(&[("rules.yaml", rules)]);
    let output = folder.run("check rules.yaml -d d -e user=7,path=/x --allow-unmatched").stdout;
    let row = lines(&output)
        .into_iter()
        .find(|row| row.contains("user=7  "))
        .expect("the output has a row for the step `user=7`");
    assert!(row.contains("the rule ends here, the descriptor goes on") && row.contains("rules.yaml:3"), "{output}");
    let both = "check rules.yaml -d d -e user=7 -e plan=gold";
    let output = folder.run(both).stdout;
    let left_out: Vec<_> = lines(&output).into_iter().filter(|row| row.contains("left out: another rule")).collect();
    assert!(left_out.len() == 1 && left_out[0].contains("limit small"), "{output}");
    assert!(!folder.run("check rules.yaml -d d -e user=7").stdout.contains("left out"));
    let limits = json(&folder.run(&format!("{both} --json")))["descriptors"][0]["matched"]["limits"].clone();
    assert_eq!([&limits[0]["replaced"], &limits[1]["replaced"]], [&Value::Bool(true), &Value::Bool(false)]);
}

#[test]
fn a_concurrency_limit_has_a_warning_only_if_its_permits_cannot_be_released() {
    let rules = "domain: d\ndescriptors: [{key: job, rate_limit: {algorithm: concurrency, limit: 5}}]";
    let auth = "forward_auth: {domain: d, descriptors: [[{key: job, from: client_ip}]]}\n";
    let validated = |settings: &str| {
        let folder = Folder::new(&[("rules.yaml", rules), ("s.yaml", settings)]);
        let output = folder.run("validate rules.yaml --config s.yaml --deny-warnings");
        (output.code, output.stdout.trim_end().rsplit_once(", ").map(|(_, last)| last.to_owned()).unwrap_or_default())
    };
    assert_eq!(validated("grpc: off"), (0, "good".to_owned()));
    assert_eq!(validated("shadow: off"), (0, "1 note".to_owned()), "gRPC can take a permit, but cannot release it");
    assert_eq!(validated(&format!("{auth}grpc: off")), (1, "1 warning".to_owned()));
    assert_eq!(validated("http: off"), (1, "1 warning".to_owned()));
}

#[test]
fn a_queue_has_a_warning_if_its_callers_cannot_wait() {
    let rules = |options: &str| {
        let limit = format!("{{algorithm: leaky_bucket, unit: second, limit: 50{options}}}");
        format!("domain: d\ndescriptors:\n  - key: job\n    rate_limit: {limit}\n")
    };
    let auth = "forward_auth: {domain: d, descriptors: [[{key: job, from: client_ip}]]}\n";
    let validated = |options: &str, settings: &str| {
        let folder = Folder::new(&[("rules.yaml", &rules(options)), ("s.yaml", settings)]);
        let output = folder.run("validate rules.yaml --config s.yaml --deny-warnings");
        let text = output.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.is_empty() || text.contains("so they get one unit every 20ms"), "{text}");
        (output.code, output.stdout.trim_end().rsplit_once(", ").map(|(_, last)| last.to_owned()).unwrap_or_default())
    };
    assert_eq!(validated("", "grpc: off"), (0, "good".to_owned()));
    assert_eq!(validated("", "shadow: off"), (0, "1 note".to_owned()), "callers over HTTP can wait");
    assert_eq!(validated("", "http: off"), (1, "1 warning".to_owned()));
    assert_eq!(validated("", &format!("{auth}grpc: off")), (1, "1 warning".to_owned()));
    assert_eq!(validated(", queue: 0", "http: off"), (0, "good".to_owned()), "nobody can wait in this queue");
}

#[test]
fn validate_shows_each_error_with_its_line_and_its_fix() {
    let folder = Folder::new(&[("rules.yaml", "domain: api\ndescriptors:\n  - ky: user_id\n    key: a\n")]);
    let output = folder.run("validate rules.yaml");
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    for part in ["[rules.yaml:3:5]", "3 |   - ky: user_id", "did you mean `key`?", "1 error"] {
        assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
    }
    let output = folder.run("validate rules.yaml --json");
    assert_eq!((output.code, output.stderr.as_str()), (2, ""));
    let found = json(&output);
    assert_eq!(found["ok"], false);
    let error = &found["errors"][0];
    assert_eq!((error["file"].as_str(), error["line"].as_u64()), (Some("rules.yaml"), Some(3)));
    assert_eq!((error["column"].as_u64(), error["help"].as_str()), (Some(5), Some("did you mean `key`?")));
}

/// Rules with a limit for which `validate` warns on line 6.
const WARNED: &str = "\
domain: api
descriptors:
  - key: a
    rate_limits:
      - {unit: second, requests_per_unit: 1}
      - {unit: minute, requests_per_unit: 100}
";

#[test]
fn validate_prints_warnings_and_can_make_them_fatal() {
    let folder = Folder::new(&[("rules.yaml", WARNED)]);
    let output = folder.run("validate rules.yaml");
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains(", 1 rule, 1 warning"), "{output:?}");
    assert!(output.stderr.contains("[rules.yaml:6:"), "{output:?}");
    assert_eq!(folder.run("validate rules.yaml --deny-warnings").code, 1);
    let output = folder.run("validate rules.yaml --deny-warnings --json");
    assert_eq!((output.code, &json(&output)["ok"]), (1, &Value::Bool(false)));
    assert_eq!(json(&output)["warnings"][0]["severity"], "warning");
    let output = folder.run("validate rules.yaml --json");
    assert_eq!((output.code, &json(&output)["ok"]), (0, &Value::Bool(true)));
}

#[test]
fn validate_reads_folders_and_the_rules_of_a_settings_file() {
    let folder = Folder::new(&[
        ("etc/spillgate.yaml", "rules: [rules]\n"),
        ("etc/rules/a.yaml", "domain: a\ndescriptors: [{key: x}]\n"),
        ("etc/rules/b.yml", "domain: b\ndescriptors: [{key: x}]\n"),
        ("etc/rules/notes.txt", "no rules"),
    ]);
    for arguments in ["validate etc/rules", "validate --config etc/spillgate.yaml"] {
        let output = folder.run(arguments);
        assert!(output.stdout.starts_with("2 files: 2 domains, 2 rules"), "{arguments}: {output:?}");
    }
    folder.write("etc/spillgate.yaml", "rules: [rules]\nhttpp: off\n");
    assert_eq!(folder.run("validate --config etc/spillgate.yaml").code, 2);
}

#[test]
fn missing_rules_are_an_error_with_help() {
    for (arguments, expected) in [
        ("validate", "no rules were given"),
        ("validate nothing.yaml", "nothing.yaml cannot be read"),
        ("check -d api -e a=1", "no rules were given"),
        ("check nothing.yaml -d api -e a=1", "nothing.yaml cannot be read"),
    ] {
        let output = folder().run(arguments);
        assert_eq!(output.code, 2, "{arguments}");
        assert!(output.stderr.contains(expected) && output.stderr.contains("help: "), "{arguments}: {}", output.stderr);
    }
}

#[test]
fn a_name_that_no_rule_has_is_an_error() {
    let rules = "domain: api\ndescriptors: [{key: user_id, value: a, rate_limit: {unit: hour, limit: 1}}]\n";
    let folder = Folder::new(&[("rules.yaml", rules)]);
    for (arguments, message, help) in [
        ("-d apy -e user_id=a", "no rules file has the domain `apy`", "did you mean `api`?"),
        ("-d api -e user_ip=a", "no rule of the domain `api` has the key `user_ip`", "did you mean `user_id`?"),
        ("-d api -e user_id=a -e x=1", "has the key `x`", "the keys are: `user_id`"),
    ] {
        let output = folder.run(&format!("check rules.yaml {arguments}"));
        assert_eq!((output.code, &*output.stdout), (2, ""), "{arguments}: {}", output.stderr);
        assert!(output.stderr.contains(message) && output.stderr.contains(help), "{arguments}: {}", output.stderr);
        assert!(output.stderr.contains("--allow-unmatched"), "{}", output.stderr);
        let report = json(&folder.run(&format!("check rules.yaml {arguments} --json")));
        assert!(report["errors"][0]["message"].as_str().is_some_and(|text| text.contains(message)), "{report}");
        let accepted = json(&folder.run(&format!("check rules.yaml {arguments} --json --allow-unmatched")));
        assert!(accepted["unknown"][0]["message"].as_str().is_some_and(|text| text.contains(message)), "{accepted}");
    }
    let value = folder.run("check rules.yaml -d api -e user_id=b");
    assert_eq!((value.code, &*value.stderr), (0, ""), "a value is no name");
}

#[test]
fn a_question_that_cannot_be_decided_is_an_error_with_the_right_help() {
    let ask = |arguments: &[&str]| {
        let output = folder().run_with(&[&["check", "rules.yaml"], arguments].concat(), &[]);
        assert_eq!(output.code, 2, "{output:?}");
        output.stderr
    };
    let nowhere = ask(&["--domain", "", "-e", "a=1"]);
    assert!(nowhere.contains("the domain is empty") && nowhere.contains("--domain"), "{nowhere}");
    assert!(!nowhere.contains("raise `limits`"), "{nowhere}");
    let long = ask(&["--domain", "api", "-e", &format!("{}=1", "k".repeat(257))]);
    assert!(long.contains("at most 256") && long.contains("raise `limits`"), "{long}");
}

#[test]
fn a_settings_file_among_the_rules_is_recognized() {
    let folder =
        Folder::new(&[("spillgate.yaml", "compat: envoy\nhttp: off\nlimits: {body: 1MiB}\nstore: {url: memory}\n")]);
    let output = folder.run("validate spillgate.yaml");
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("this looks like a settings file") && output.stderr.contains("--config"),
        "{output:?}"
    );
    assert!(output.stderr.contains("1 error"), "{output:?}");
}

#[test]
fn check_explains_how_the_rule_was_found_and_what_its_limit_said() {
    let output = folder().run("check rules.yaml --domain api --descriptor user_id=7 --times 3");
    let expected = "\
domain api (rules.yaml)

descriptor 1: user_id=7
  user_id=7  the key, any value  matched  rules.yaml:3
  rule user_id at rules.yaml:3
    limit per_user: 2 per minute, fixed window

at  answer   limit     says         left         retry after  reset after
0s  allowed  per_user  yes          2 -> 1 of 2  -            1m
0s  allowed  per_user  yes          1 -> 0 of 2  -            1m
0s  refused  per_user  no: used up  0 -> 0 of 2  1m           1m

2 of 3 allowed, 1 refused
";
    assert_eq!(output, Output { code: 1, stdout: expected.to_owned(), stderr: String::new() });
}

#[test]
fn check_asks_several_descriptors_and_limits_at_given_times() {
    let output = folder().run("check rules.yaml -d api -e user_id=vip1,path=/x -e user_id=7 --at 0s,100ms,1s --cost 2");
    let expected = "\
domain api (rules.yaml)

descriptor 1: user_id=vip1, path=/x
  user_id=vip1  wildcard vip*       goes on below  rules.yaml:5
    path=/x     the key, any value  matched        rules.yaml:8
  rule user_id=vip* > path at rules.yaml:8
    limit burst: 3 per second, fixed window
    limit: 100 per hour, token bucket, burst 4

descriptor 2: user_id=7
  user_id=7  the key, any value  matched  rules.yaml:3
  rule user_id at rules.yaml:3
    limit per_user: 2 per minute, fixed window

at     answer   limit            says         left         retry after  reset after
0s     allowed  1: burst         yes          3 -> 1 of 3  -            1s
                1: 100 per hour  yes          4 -> 2 of 4  -            1m12s
                2: per_user      yes          2 -> 0 of 2  -            1m
100ms  refused  1: burst         no: used up  1 -> 1 of 3  900ms        900ms
                1: 100 per hour  yes          2 -> 2 of 4  -            1m11.9s
                2: per_user      no: used up  0 -> 0 of 2  59.9s        59.9s
1s     refused  1: burst         yes          3 -> 3 of 3  -            0s
                1: 100 per hour  yes          2 -> 2 of 4  -            1m11s
                2: per_user      no: used up  0 -> 0 of 2  59s          59s

1 of 3 allowed, 2 refused
";
    assert_eq!(lines(&output.stdout), lines(expected));
    assert_eq!(output.code, 1);
}

#[test]
fn check_shows_delays_bans_unlimited_rules_and_no_rule() {
    let folder = folder();
    let queue = folder.run("check rules.yaml -d api -e queue=1 --times 4 --wait 5s");
    let rows: Vec<_> = queue.stdout.lines().filter(|line| line.starts_with("0s")).collect();
    assert_eq!(
        rows,
        [
            "0s  allowed  2 per second  yes                   3 -> 2 of 3  -            500ms        -",
            "0s  allowed  2 per second  yes, after the delay  2 -> 1 of 3  -            1s           500ms",
            "0s  allowed  2 per second  yes, after the delay  1 -> 0 of 3  -            1.5s         1s",
            "0s  refused  2 per second  no: used up           0 -> 0 of 3  500ms        1.5s         -",
        ]
    );
    let impatient = folder.run("check rules.yaml -d api -e queue=1 --times 2");
    assert!(impatient.stdout.contains("no: longer than the caller accepts"), "{}", impatient.stdout);
    let ban = folder.run("check rules.yaml -d api -e ban=1");
    assert!(ban.stdout.contains("never: the limit is 0"), "{}", ban.stdout);
    let large = folder.run("check rules.yaml -d api -e queue=1 --cost 9");
    assert!(large.stdout.contains("never: the cost is above the capacity"), "{}", large.stdout);
    assert_eq!(ban.code, 1);
    let free = folder.run("check rules.yaml -d api -e free=1");
    assert!(free.stdout.contains("unlimited: allowed and not counted"), "{}", free.stdout);
    let none = folder.run("check rules.yaml -d api -e other=1 --allow-unmatched");
    assert!(none.stdout.contains("other=1  nothing fits  no rule"), "{}", none.stdout);
    assert!(none.stdout.contains("no rule matches: allowed and not counted"), "{}", none.stdout);
    let domain = folder.run("check rules.yaml -d apy -e other=1 --allow-unmatched");
    let says = "no rules file has the domain `apy`: did you mean `api`?\n";
    assert!(domain.stdout.starts_with(says), "{}", domain.stdout);
    assert_eq!([free.code, none.code, domain.code], [0, 0, 0]);
}

#[test]
fn check_can_ask_about_every_value() {
    let text = "domain: d\ndescriptors: [{key: tags, value: 'a,b=c\\d', rate_limit: {unit: day, limit: 1}}]\n";
    let folder = Folder::new(&[("rules.yaml", text)]);
    let output = folder.run_with(&["check", "rules.yaml", "-d", "d", "-e", r"tags=a\,b=c\\d"], &[]);
    assert!(output.stdout.contains(r"tags=a,b=c\d  this key and value  matched  rules.yaml:2"), "{output:?}");
}

#[test]
fn check_in_json_gives_exact_times_and_states() {
    let output = folder().run("check rules.yaml -d api -e user_id=7 --at 0s,1ms --cost 2 --json");
    let found = json(&output);
    assert_eq!(output.code, 1);
    let step = &found["descriptors"][0]["steps"][0];
    assert_eq!((step["how"].as_str(), step["outcome"].as_str()), (Some("key"), Some("matched")));
    let matched = &found["descriptors"][0]["matched"];
    assert_eq!((&matched["file"], &matched["line"]), (&"rules.yaml".into(), &3.into()));
    let asked = &found["asked"];
    assert_eq!((asked[0]["allowed"].as_bool(), asked[1]["allowed"].as_bool()), (Some(true), Some(false)));
    assert_eq!(asked[0]["retry_after_ns"], Value::Null);
    assert_eq!(
        (asked[1]["at_ns"].as_u64(), asked[1]["retry_after_ns"].as_u64()),
        (Some(1_000_000), Some(59_999_000_000))
    );
    let limit = &asked[0]["limits"][0];
    assert_eq!((limit["name"].as_str(), limit["reason"].as_str()), (Some("per_user"), Some("fits")));
    assert_eq!((limit["before"]["remaining"].as_u64(), limit["after"]["remaining"].as_u64()), (Some(2), Some(0)));
}

#[test]
fn check_decides_as_the_reference_server_with_compat_envoy() {
    let text = "domain: d\ncompat: envoy\ndescriptors:\n  - {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}\n  \
                - {key: b, rate_limit: {unit: hour, requests_per_unit: 1}}\n";
    let folder = Folder::new(&[("rules.yaml", text)]);
    let output = folder.run("check rules.yaml -d d -e a=1 -e b=1 --times 3");
    assert!(output.stdout.starts_with("domain d (rules.yaml, compat: envoy)"), "{}", output.stdout);
    let first: Vec<_> = output.stdout.lines().filter(|line| line.contains("1: 5 per hour")).collect();
    assert!(
        first[2].contains("3 -> 2 of 5"),
        "with `compat: envoy`, a refused request is still charged to the descriptor that does not refuse it: {first:?}"
    );
}

#[test]
fn rules_that_are_not_a_regular_file_are_an_error_and_not_waited_for() {
    let folder = folder();
    let made = Command::new("mkfifo").arg(folder.path("pipe.yaml")).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo makes a pipe");
    for arguments in ["validate pipe.yaml", "validate .", "check pipe.yaml -d api -e a=1", "validate -c pipe.yaml"] {
        let output = folder.run(arguments);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments}");
        assert!(output.stderr.contains("pipe.yaml is not a regular file"), "{arguments}: {}", output.stderr);
    }
}

/// To open a pipe waits for its writer, so a server would hang without a line that says why.
#[test]
fn a_secret_or_certificate_that_is_no_regular_file_is_an_error_and_not_waited_for() {
    let folder = folder();
    let made = Command::new("mkfifo").arg(folder.path("pipe")).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo makes a pipe");
    std::fs::write(folder.path("token"), "0123456789").expect("the folder is writable");
    let settings = [
        "admin_token_file",
        "admin_read_token_file",
        "store.key_secret_file",
        "store.password_file",
        "store.sentinel_password_file",
        "store.tls.ca",
        "store.tls.cert",
    ];
    for (setting, (file, kind)) in settings.iter().flat_map(|setting| {
        let files = [("pipe", "a named pipe (FIFO)"), (".", "a directory"), ("/dev/zero", "a device")];
        files.map(|file| (setting, file))
    }) {
        let store = match *setting {
            "store.sentinel_password_file" => ", url: redis-sentinel://127.0.0.1:1/main",
            setting if setting.starts_with("store.tls") => ", url: rediss://127.0.0.1:1",
            _ => ", url: redis://127.0.0.1:1",
        };
        let text = match setting.strip_prefix("store.") {
            None if *setting == "admin_read_token_file" => {
                format!("admin_token_file: token\n{setting}: {file}\nadmin: 127.0.0.1:0\n")
            }
            None => format!("{setting}: {file}\nadmin: 127.0.0.1:0\n"),
            Some(name) => match name.strip_prefix("tls.") {
                None => format!("store: {{{name}: {file}{store}}}\n"),
                Some("cert") => format!("store: {{tls: {{cert: {file}, key: {file}}}{store}}}\n"),
                Some(name) => format!("store: {{tls: {{{name}: {file}}}{store}}}\n"),
            },
        };
        std::fs::write(folder.path("settings.conf"), text).expect("the folder is writable");
        let output = folder.run("serve rules.yaml --config settings.conf --http 127.0.0.1:0 --grpc off");
        assert_eq!(output.code, 2, "{setting} {file}: {output:?}");
        let named = file == "." || output.stderr.contains(&format!("{file} cannot be read: it is {kind}"));
        let says =
            output.stderr.contains(&format!("it is {kind}, not a regular file")) && output.stderr.contains("help: ");
        assert!(named && says, "{setting} {file}: {}", output.stderr);
    }
    let output = folder.run("insight --admin-token-file pipe");
    assert!(output.code == 2 && output.stderr.contains("pipe cannot be read: it is a named pipe"), "{output:?}");
}

#[test]
fn a_rules_file_that_is_not_utf_8_is_named() {
    let folder = folder();
    std::fs::write(folder.path("latin.yaml"), b"domain: \xff\n").expect("the folder is writable");
    for arguments in ["validate latin.yaml", "validate .", "check latin.yaml -d api -e a=1"] {
        let output = folder.run(arguments);
        assert_eq!(output.code, 2, "{arguments}");
        assert!(output.stderr.contains("latin.yaml is not UTF-8 at byte 8"), "{arguments}: {}", output.stderr);
    }
    let settings = folder.run("validate rules.yaml --config latin.yaml");
    assert!(settings.code == 2 && settings.stderr.contains("save the file as UTF-8"), "{settings:?}");
    let twice = folder.run("validate rules.yaml rules.yaml");
    assert!(twice.code == 2 && twice.stderr.contains("give rules.yaml only once"), "{twice:?}");
}

#[test]
fn validate_reads_the_token_file_of_the_settings() {
    let folder = Folder::new(&[
        ("api.yaml", "domain: api\ndescriptors: [{key: x}]\n"),
        ("settings.yaml", "rules: [api.yaml]\nadmin_token_file: token\n"),
    ]);
    let missing = folder.run("validate --config settings.yaml");
    assert!(missing.code == 2 && missing.stderr.contains("token cannot be read"), "{missing:?}");
    folder.write("token", "secret\n");
    let found = folder.run("validate --config settings.yaml");
    assert_eq!(found.code, 0, "{found:?}");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let folder = folder();
    let rules = folder.path("rules.yaml").display().to_string();
    for arguments in [&["schema"][..], &["validate", &rules], &["serve", "--show-settings"], &["--help"], &[]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("this system has /dev/full");
        let output = Command::new(env!("CARGO_BIN_EXE_spillgate")).args(arguments).stdout(full).output();
        let output = output.expect("the program runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {text}");
        assert!(text.contains("the output could not be written"), "{arguments:?}: {text}");
    }
}
