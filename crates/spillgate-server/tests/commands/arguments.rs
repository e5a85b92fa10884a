//! What commands say about arguments that are wrong or missing, and if their answer cannot be printed.

use std::fs::File;

use crate::cli_support::command;
use crate::commands::{RULES, Scene};

#[test]
fn an_error_of_a_time_names_the_flag() {
    let scene = Scene::new(RULES, &[]);
    for lasts in ["-5m", "10", "soon", "40d", ""] {
        for change in [&["block", "user_id=7"][..], &["shadow", "on", "user_id"]] {
            let output = scene.run(&[change, &["--for", lasts]].concat());
            assert_eq!(output.code, 2, "{output:?}");
            assert!(output.stderr.contains(&format!("--for is {lasts:?}: ")), "{output:?}");
            assert!(output.stderr.contains("write 1s to 30d") && !output.stderr.contains("-- -"), "{output:?}");
        }
    }
    assert_eq!(scene.text(&["blocks"]), "no caller is blocked\n");
}

#[test]
fn a_command_without_its_main_argument_names_all_forms_of_it() {
    let scene = Scene::new(RULES, &[]);
    for (command, forms) in [
        (&["explain"][..], &["--descriptor", "--request", "--caller", "--hash"][..]),
        (&["shadow", "on", "--for=1m"], &["RULE", "--all"]),
        (&["block", "--for=1m"], &["KEY=VALUE", "--hash"]),
    ] {
        scene.fails(command, 2, forms);
    }
    scene.fails(&["explain", "--descriptor=user_id=7"], 2, &["--domain <NAME>"]);
    for [one, other] in [["--caller=a=1", "--hash=0123456789abcdef"], ["--request={}", "--caller=a=1"]] {
        scene.fails(&["explain", one, other], 2, &["cannot be used with"]);
    }
    scene.fails(&["shadow", "on", "user_id", "--all", "--for=1m"], 2, &["cannot be used with"]);
}

#[test]
fn spaces_between_entries_are_ignored() {
    let nested =
        "  - {key: plan, value: free, descriptors: [{key: user_id, rate_limit: {unit: year, requests_per_unit: 1}}]}\n";
    let scene = Scene::new(&format!("{RULES}{nested}"), &[]);
    let explained = scene.text(&["explain", "-d=api", "-e=plan=free, user_id=7"]);
    assert!(explained.contains("rule plan=free > user_id at "), "{explained}");
    scene.fails(&["block", "plan=free, user_id=7", "--for=1m"], 2, &["write one KEY=VALUE"]);
    scene.fails(&["explain", "--caller=plan=free, user_id=7"], 2, &["one"]);
}

/// `/dev/full` accepts no byte, as a disk that is full.
#[test]
fn a_change_whose_answer_cannot_be_printed_is_not_called_a_failure() {
    let scene = Scene::new(RULES, &[]);
    let admin = format!("--admin=http://{}", scene.server.admin());
    let run = |arguments: &[&str]| {
        let full = File::create("/dev/full").expect("the device is there");
        let output = command(scene.folder.path("").as_path()).args(arguments).arg(&admin).stdout(full).output();
        let output = output.expect("spillgate runs");
        (output.status.code(), String::from_utf8(output.stderr).expect("the error is UTF-8"))
    };
    for change in [
        &["block", "user_id=7", "--for=10m"][..],
        &["block", "user_id=8", "--for=10m", "--json"],
        &["unblock", "user_id=8"],
        &["shadow", "on", "user_id", "--for=1m"],
        &["reset", "-d=api", "-e=user_id=7"],
        &["reload"],
    ] {
        let (code, error) = run(change);
        assert_eq!(code, Some(3), "{change:?}: {error}");
        assert!(error.starts_with("error: done, but the answer could not be printed: "), "{change:?}: {error}");
    }
    assert!(scene.text(&["blocks"]).starts_with("entry"), "the block is on");
    for question in [&["blocks"][..], &["unblock", "user_id=8", "--json"]] {
        let (code, error) = run(question);
        assert!(code == Some(3) && error.contains("error: the output could not be written: "), "{question:?}: {error}");
    }
}

#[test]
fn the_callers_of_one_rule_are_listed_up_to_ten() {
    let scene = Scene::new(RULES, &["--insight-keys=plain"]);
    for user in 0..13 {
        // Two requests are allowed, and the third one is refused, so both lists have all of these callers.
        (0..3).for_each(|_| _ = scene.user(&user.to_string()));
    }
    scene.check(&serde_json::json!({ "remote_address": "192.0.2.1" }));
    let all = scene.text(&["top"]);
    assert!(all.contains("\napi: remote_address ("), "{all}");
    for named in [&["per_user"][..], &["api: user_id"], &["api: per_user", "--domain=api"]] {
        let text = scene.text(&[&["top"], named].concat());
        assert!(text.starts_with("api: user_id, limit per_user (") && !text.contains("remote_address"), "{text}");
        assert_eq!(text.matches("\n  and 3 more callers\n").count(), 2, "{text}");
        assert_eq!(text.matches("  user_id=").count(), 20, "{text}");
    }
    let json = scene.json(&["top", "api: user_id"], 0);
    assert_eq!(json["limits"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["limits"][0]["refused"]["callers"].as_array().map(Vec::len), Some(13));
    assert_eq!(scene.json(&["top", "--domain=api"], 0)["limits"].as_array().map(Vec::len), Some(2));
    scene.fails(&["top", "user_ip"], 2, &["no limit that is watched has the name `user_ip`", "did you mean"]);
    scene.fails(&["top", "--domain=ap"], 2, &["has the domain `ap`", "`spillgate top`"]);
}
