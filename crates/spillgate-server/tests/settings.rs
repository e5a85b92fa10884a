//! Settings of the real binary: precedence, and what a wrong one says. The reader's own tests are in src/settings.

mod cli_support;
mod support;

use cli_support::{Folder, Said, lines};

const RULES: (&str, &str) = ("rules.yaml", "domain: d\ndescriptors: [{key: a}]\n");

/// Value and origin of `key` by `serve --show-settings`.
fn shown(said: &Said, key: &str) -> (String, String) {
    assert_eq!(said.code, 0, "{said:?}");
    let line = said.stdout.lines().find(|line| line.split(' ').next() == Some(key));
    let words: Vec<_> = line.unwrap_or_else(|| panic!("no {key}: {said:?}")).split_whitespace().collect();
    (words[1].to_owned(), words[2].to_owned())
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let folder = Folder::new(&[RULES, ("s.yaml", "memory: {max_keys: 1k}\nhttp: off\n")]);
    let show = |arguments: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["serve", "--show-settings"], arguments].concat();
        shown(&folder.run_with(&arguments, variables), "memory.max_keys")
    };
    let told = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
    let variable = [("SPILLGATE_MEMORY_MAX_KEYS", "2k")];
    assert_eq!(show(&[], &[]), told("10M", "default"));
    assert_eq!(show(&["-c", "s.yaml"], &[]), told("1k", "file"));
    assert_eq!(show(&["-c", "s.yaml"], &variable), told("2k", "environment"));
    assert_eq!(show(&["-c", "s.yaml", "--memory-max-keys", "3k"], &variable), told("3k", "flag"));
    assert_eq!(show(&["-c", "s.yaml", "--memory-max-keys=3k"], &[]), told("3k", "flag"));
}

#[test]
fn switches_and_lists_are_flags_too() {
    let folder = Folder::new(&[RULES]);
    let said = folder.run("serve --show-settings --shadow --trusted-proxies 10.0.0.0/8 --trusted-proxies fd00::/8");
    assert_eq!(shown(&said, "shadow"), ("true".to_owned(), "flag".to_owned()));
    assert_eq!(shown(&said, "trusted_proxies").0, "10.0.0.0/8,fd00::/8");
    assert_eq!(shown(&folder.run("serve --show-settings --shadow=false"), "shadow").0, "false");
}

#[test]
fn a_wrong_key_shows_its_line_and_the_nearest_right_one() {
    let folder = Folder::new(&[RULES, ("s.yaml", "http: off\nlimits:\n  boddy: 1KiB\n")]);
    let said = folder.run("serve rules.yaml -c s.yaml");
    let expected = "
  x unknown key `limits.boddy`
   ,-[s.yaml:3:3]
 2 | limits:
 3 |   boddy: 1KiB
   :   ^^|^^
   :     `-- no such key
   `----
  help: did you mean `body`?
";
    assert_eq!((said.code, said.stdout.as_str()), (2, ""));
    assert_eq!(lines(said.stderr.trim()), lines(expected.trim()));
}

#[test]
fn a_wrong_value_shows_the_flag_or_variable_that_brought_it() {
    let folder = Folder::new(&[RULES]);
    let said = folder.run("serve rules.yaml --limits-body 64XB");
    let expected = "
  x `64XB` is not a value of `limits.body`
   ,-[the command line:1:15]
 1 | --limits-body 64XB
   :               ^^|^
   :                 `-- here
   `----
  help: write bytes: 1024, 64KiB, 1MiB
";
    assert_eq!(said.code, 2);
    assert_eq!(lines(said.stderr.trim()), lines(expected.trim()));
    let said = folder.run_with(&["serve", "rules.yaml"], &[("SPILLGATE_HTTP", "8080")]);
    assert_eq!(said.code, 2);
    assert!(said.stderr.contains("SPILLGATE_HTTP=8080") && said.stderr.contains("0.0.0.0:8080"), "{}", said.stderr);
    let said = folder.run_with(&["serve", "rules.yaml"], &[("SPILLGATE_HTPP", "off")]);
    assert_eq!(said.code, 2);
    assert!(said.stderr.contains("did you mean `SPILLGATE_HTTP`?"), "{}", said.stderr);
}

#[test]
fn settings_files_that_cannot_be_read_are_named() {
    let folder = Folder::new(&[RULES, ("broken.yaml", "http: [\n"), ("large.yaml", &"#".repeat(2 << 20))]);
    for (file, expected) in [
        ("missing.yaml", "the settings file missing.yaml cannot be read: No such file or directory"),
        ("broken.yaml", "this is not YAML"),
        ("large.yaml", "larger than 1 MiB"),
        (".", "is not a regular file"),
    ] {
        let said = folder.run(&format!("serve rules.yaml -c {file}"));
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{file}");
        assert!(said.stderr.contains(expected) && said.stderr.contains("help: "), "{file}: {}", said.stderr);
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
            let said = run(command, domain, descriptor);
            assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{command}: {said:?}");
            assert!(said.stderr.contains(why) && said.stderr.contains(help), "{descriptor}: {}", said.stderr);
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
    let said = folder.run("serve rules.yaml -c s.yaml --json");
    let found: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert_eq!((said.code, said.stderr.as_str()), (2, ""));
    assert_eq!(found["errors"].as_array().map(Vec::len), Some(2));
    assert_eq!(found["errors"][1]["line"], 2);
    assert!(!said.stdout.contains('\x1b'));
}

#[test]
fn the_example_is_valid_and_says_the_defaults() {
    let example = support::root().join("examples/spillgate.yaml");
    let folder = Folder::new(&[RULES]);
    let example = example.to_string_lossy();
    let by_file = folder.run(&format!("serve --show-settings --json -c {example}"));
    let by_default = folder.run("serve --show-settings --json");
    let read = |said: &Said| serde_json::from_str::<serde_json::Value>(&said.stdout).expect("JSON");
    let (by_file, by_default) = (read(&by_file), read(&by_default));
    for (key, set) in by_default.as_object().expect("an object") {
        assert_eq!(by_file[key]["from"], "file", "{key} is missing in the example");
        assert_eq!(by_file[key]["value"], set["value"], "{key}");
    }
}
