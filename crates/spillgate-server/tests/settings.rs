//! Tests of the settings with the real binary: which source of a setting wins (flag, environment variable or file), and
//! what the errors about wrong settings say.
//!
//! The code that reads settings has its own tests in `src/settings/tests.rs`.

use crate::cli_support::{Folder, Output, lines};
use crate::support;

const RULES: (&str, &str) = ("rules.yaml", "domain: d\ndescriptors: [{key: a}]\n");

/// Returns the value and the origin of the setting `key`, as `serve --show-settings` prints them.
fn shown(output: &Output, key: &str) -> (String, String) {
    assert_eq!(output.code, 0, "{output:?}");
    let line = output.stdout.lines().find(|line| line.split(' ').next() == Some(key));
    let words: Vec<_> =
        line.unwrap_or_else(|| panic!("the output has no setting {key}: {output:?}")).split_whitespace().collect();
    (words[1].to_owned(), words[2].to_owned())
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let folder = Folder::new(&[RULES, ("s.yaml", "memory: {max_keys: 1k}\nhttp: off\n")]);
    let show = |arguments: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["serve", "--show-settings"], arguments].concat();
        shown(&folder.run_with(&arguments, variables), "memory.max_keys")
    };
    let set = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
    let variable = [("SPILLGATE_MEMORY_MAX_KEYS", "2k")];
    assert_eq!(show(&[], &[]), set("10M", "default"));
    assert_eq!(show(&["-c", "s.yaml"], &[]), set("1k", "file"));
    assert_eq!(show(&["-c", "s.yaml"], &variable), set("2k", "environment"));
    assert_eq!(show(&["-c", "s.yaml", "--memory-max-keys", "3k"], &variable), set("3k", "flag"));
    assert_eq!(show(&["-c", "s.yaml", "--memory-max-keys=3k"], &[]), set("3k", "flag"));
}

#[test]
fn switches_and_lists_are_flags_too() {
    let folder = Folder::new(&[RULES]);
    let output = folder.run("serve --show-settings --shadow --trusted-proxies 10.0.0.0/8 --trusted-proxies fd00::/8");
    assert_eq!(shown(&output, "shadow"), ("true".to_owned(), "flag".to_owned()));
    assert_eq!(shown(&output, "trusted_proxies").0, "10.0.0.0/8,fd00::/8");
    assert_eq!(shown(&folder.run("serve --show-settings --shadow=false"), "shadow").0, "false");
}

#[test]
fn a_wrong_key_shows_its_line_and_the_nearest_right_one() {
    let folder = Folder::new(&[RULES, ("s.yaml", "http: off\nlimits:\n  boddy: 1KiB\n")]);
    let output = folder.run("serve rules.yaml -c s.yaml");
    let expected = "
  x unknown key `limits.boddy`
   ,-[s.yaml:3:3]
 3 | boddy
   : ^^|^^
   :   `-- no such key
   `----
  help: did you mean `body`?
";
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert_eq!(lines(output.stderr.trim()), lines(expected.trim()));
}

#[test]
fn a_wrong_value_shows_its_flag_or_variable() {
    let folder = Folder::new(&[RULES]);
    let output = folder.run("serve rules.yaml --limits-body 64XB");
    let expected = "
  x `64XB` is not a value of `limits.body`
   ,-[the command line:1:15]
 1 | --limits-body 64XB
   :               ^^|^
   :                 `-- here
   `----
  help: write bytes: 1024, 64KiB, 1MiB
";
    assert_eq!(output.code, 2);
    assert_eq!(lines(output.stderr.trim()), lines(expected.trim()));
    let output = folder.run_with(&["serve", "rules.yaml"], &[("SPILLGATE_HTTP", "8080")]);
    assert_eq!(output.code, 2);
    assert!(
        output.stderr.contains("SPILLGATE_HTTP=8080") && output.stderr.contains("0.0.0.0:8080"),
        "{}",
        output.stderr
    );
    let output = folder.run_with(&["serve", "rules.yaml"], &[("SPILLGATE_HTPP", "off")]);
    assert_eq!(output.code, 2);
    assert!(output.stderr.contains("did you mean `SPILLGATE_HTTP`?"), "{}", output.stderr);
}

#[test]
fn settings_files_that_cannot_be_read_are_named() {
    let folder = Folder::new(&[RULES, ("broken.yaml", "http: [\n"), ("large.yaml", &"#".repeat(2 << 20))]);
    for (file, expected) in [
        ("missing.yaml", "the settings file missing.yaml cannot be read: No such file or directory"),
        ("broken.yaml", "this is not valid YAML"),
        ("large.yaml", "larger than 1 MiB"),
        (".", "is not a regular file"),
    ] {
        let output = folder.run(&format!("serve rules.yaml -c {file}"));
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{file}");
        assert!(output.stderr.contains(expected) && output.stderr.contains("help: "), "{file}: {}", output.stderr);
    }
}

#[test]
fn a_typo_in_forward_auth_is_an_error_and_not_a_limit_that_is_off() {
    let rules = "domain: web
descriptors:
  - {key: remote_address, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: tier, value: gold, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: page, value: 'login*', rate_limit: {unit: day, requests_per_unit: 9}}
  - key: step
    descriptors: [{key: path, rate_limit: {unlimited: true}}]
";
    let folder = Folder::new(&[("rules.yaml", rules)]);
    let run = |command: &str, domain: &str, descriptor: &str| {
        let settings = format!(
            "rules: [rules.yaml]\nhttp: 127.0.0.1:0\ngrpc: off\nadmin: off\n\
             forward_auth:\n  domain: {domain}\n  descriptors: [[{descriptor}]]\n"
        );
        folder.write("s.yaml", &settings);
        folder.run(&format!("{command} -c s.yaml"))
    };
    let address = "{key: remote_address, from: client_ip}";
    for (domain, descriptor, why, help) in [
        ("wbe", address, "no rules file has the domain `wbe`", "did you mean `web`?"),
        ("shop", address, "no rules file has the domain `shop`", "the domains are: web"),
        ("web", "{key: remote_adress, from: client_ip}", "limits `remote_adress`", "did you mean `remote_address`?"),
        (
            "web",
            "{key: user, from: 'header:X-User'}",
            "limits `user`",
            "limit: page=login*, remote_address, step > path, tier=gold;",
        ),
        ("web", "{key: tier, from: 'value:golden'}", "limits `tier=golden`", "did you mean `tier=gold`?"),
        ("web", "{key: page, from: 'value:logni'}", "limits `page=logni`", "did you mean `page=login*`?"),
        ("web", "{key: step, from: client_ip}", "limits `step`", "rate_limit: {unlimited: true}"),
    ] {
        for command in ["validate", "serve"] {
            let output = run(command, domain, descriptor);
            assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{command}: {output:?}");
            assert!(output.stderr.contains(why) && output.stderr.contains(help), "{descriptor}: {}", output.stderr);
        }
    }
    for descriptor in [
        address,
        "{key: tier, from: 'header:X-Tier'}",
        "{key: tier, from: 'value:gold'}",
        "{key: page, from: 'value:login/2'}",
        "{key: step, from: 'value:x'}, {key: path, from: client_ip}",
    ] {
        assert_eq!(run("validate", "web", descriptor).code, 0, "{descriptor}");
    }
}

#[test]
fn json_carries_every_error_and_no_colour() {
    let folder = Folder::new(&[RULES, ("s.yaml", "htpp: off\nshadow: maybe\n")]);
    let output = folder.run("serve rules.yaml -c s.yaml --json");
    let found: serde_json::Value = serde_json::from_str(&output.stdout).expect("the output is JSON");
    assert_eq!((output.code, output.stderr.as_str()), (2, ""));
    assert_eq!(found["errors"].as_array().map(Vec::len), Some(2));
    assert_eq!(found["errors"][1]["line"], 2);
    assert!(!output.stdout.contains('\x1b'));
}

#[test]
fn the_example_is_valid_and_says_the_defaults() {
    let example = support::root().join("examples/spillgate.yaml");
    let folder = Folder::new(&[RULES]);
    let example = example.to_string_lossy();
    let by_file = folder.run(&format!("serve --show-settings --json -c {example}"));
    let by_default = folder.run("serve --show-settings --json");
    let read = |output: &Output| serde_json::from_str::<serde_json::Value>(&output.stdout).expect("the output is JSON");
    let (by_file, by_default) = (read(&by_file), read(&by_default));
    for (key, set) in by_default.as_object().expect("the settings are an object") {
        if set["from"] == "computed" {
            continue;
        }
        assert_eq!(by_file[key]["from"], "file", "{key} is missing in the example");
        assert_eq!(by_file[key]["value"], set["value"], "{key}");
    }
}

#[test]
fn the_memory_that_clients_can_hold_is_shown_and_stays_below_1_gib() {
    let folder = Folder::new(&[RULES]);
    let text = folder.run("serve --show-settings --workers 10").stdout;
    let rows = text.split_once("Memory that clients can hold at most").expect("the rows follow the settings").1;
    let mib = |line: &str| line.rsplit(' ').next()?.strip_suffix("MiB")?.parse::<u64>().ok();
    let rows: Vec<u64> = rows.lines().filter_map(mib).collect();
    let (sum, rows) = rows.split_last().expect("there are rows");
    assert!(rows.len() == 15 && *sum < 1024 && *sum <= rows.iter().sum() && rows.contains(&256), "{text}");
    let text = folder.run("serve --show-settings --json --workers 10").stdout;
    let json: serde_json::Value = serde_json::from_str(&text).expect("the output is JSON");
    assert_eq!(json["memory_of_clients"]["value"], format!("{sum}MiB"));
    assert!(!text.contains("1GiB or more"), "{text}");
    let shared = folder.run("serve --show-settings --workers 8 --store redis://127.0.0.1:1").stdout;
    assert!(shared.contains(&format!("{}MiB", sum - 8 + 18)) && !shared.contains("1GiB or more"), "{shared}");
    let many = folder.run("serve --show-settings --workers 64").stdout;
    assert!(
        many.contains("This is 1GiB or more. Without TLS, the defaults stay below it with up to 8 workers"),
        "{many}"
    );
    let halved = folder.run("serve --show-settings --json --limits-in-flight 128MiB --workers 10").stdout;
    assert!(halved.contains(&format!("{}MiB", sum - 128)), "{halved}");
}

#[test]
fn the_size_of_a_sketch_that_does_not_exist_is_an_error() {
    let folder = Folder::new(&[RULES, ("s.yaml", "memory: {sketch: 512MiB, max_keys: 5}\n")]);
    let output = folder.run("validate rules.yaml -c s.yaml");
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.stderr.contains("`memory.sketch` has no effect without `memory.on_full: sketch`"), "{output:?}");
    let shown = folder.run("serve rules.yaml -c s.yaml --memory-on-full sketch --show-settings");
    assert_eq!(shown.code, 0, "{shown:?}");
}

#[test]
fn a_client_that_leaves_out_a_header_field_to_avoid_every_rule_is_a_warning() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 9}";
    let plans = format!(
        "domain: web
descriptors:
  - {{key: plan, value: free, descriptors: [{{key: api_key, {limit}}}]}}
  - {{key: plan, value: 'p*', descriptors: [{{key: api_key, {limit}}}]}}
  - {{key: tier, value: gold, {limit}}}
  - {{key: tier, {limit}}}
  - {{key: a, value: '*', descriptors: [{{key: b, value: x, {limit}}}]}}
  - {{key: a, value: y, descriptors: [{{key: b, {limit}}}]}}
  - {{key: path, value: '/login*', {limit}}}
  - {{key: all, value: requests, {limit}}}
"
    );
    let folder = Folder::new(&[("rules.yaml", &plans)]);
    let run = |command: &str, descriptors: &str| {
        let settings = format!(
            "rules: [rules.yaml]\nhttp: 192.0.2.1:1\ngrpc: off\nadmin: off\n\
             forward_auth:\n  domain: web\n  descriptors: [{descriptors}]\n"
        );
        folder.write("s.yaml", &settings);
        folder.run(&format!("{command} -c s.yaml"))
    };
    for (descriptor, what) in [
        ("[{key: plan, from: 'header:X-Plan'}, {key: api_key, from: 'header:X-Key'}]", "the header field `x-plan`"),
        ("[{key: plan, from: 'cookie:plan'}, {key: api_key, from: client_ip}]", "the cookie `plan`"),
        ("[{key: plan, from: 'query:p'}, {key: api_key, from: client_ip}]", "the parameter `p` of the query"),
        // Each of them alone can be left out, but no rule matches if both are missing.
        ("[{key: a, from: 'header:A'}, {key: b, from: 'header:B'}]", "the header field `a` and the header field `b`"),
        // Another descriptor that limits all requests does not replace the limit of the plan.
        ("[{key: all, from: 'value:requests'}], [{key: plan, from: 'header:P'}, {key: api_key, from: path}]", "`p`"),
    ] {
        let output = run("validate", descriptor);
        assert_eq!(output.code, 0, "{output:?}");
        let text = output.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("a client that sends forward-auth a request without"), "{descriptor}: {text}");
        assert!(text.contains(what) && text.contains("{unlimited: true}"), "{descriptor}: {text}");
        let started = run("serve", descriptor);
        let is_warned = |line: &str| line.contains("WARN") && line.contains("without") && line.contains(what);
        assert!(started.stderr.lines().any(is_warned), "{descriptor}: {started:?}");
    }
    for descriptor in [
        "[{key: tier, from: 'header:X-Tier'}]",
        "[{key: plan, from: 'value:free'}, {key: api_key, from: 'header:X-Key'}]",
        "[{key: plan, from: method}, {key: api_key, from: host}]",
        "[{key: path, from: path}]",
        // The name says that the proxy sets the field.
        "[{key: plan, from: 'header:X-Forwarded-Plan'}, {key: api_key, from: client_ip}]",
    ] {
        let output = run("validate", descriptor);
        assert!(!output.stderr.contains("without"), "{descriptor}: {}", output.stderr);
    }
    let raw = run("validate", "[{key: path, from: 'header:X-Forwarded-Uri'}]");
    assert!(raw.stderr.contains("note: ") && raw.stderr.contains("write `from: path`"), "{}", raw.stderr);
    for (wrong, why) in [("cookie:", "not the name of a cookie"), ("query:", "not a source"), ("uri", "not a source")] {
        let output = run("validate", &format!("[{{key: tier, from: '{wrong}'}}]"));
        assert!(output.code == 2 && output.stderr.contains(why), "{wrong}: {}", output.stderr);
    }
}
