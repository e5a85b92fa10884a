//! Checks the licence, the minimum Rust version and the users of each dependency, as `cargo metadata` reports them.
//!
//! After an update of Cargo.lock, a dependency can have another licence or need a newer Rust. These tests notice both.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::{assert_none, root};

/// The licences that are allowed for dependencies. For `a AND b`, both `a` and `b` must be in this list. For `a OR b`,
/// one of the two is enough.
const LICENCES: [&str; 8] =
    ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause", "BSL-1.0", "ISC", "Unicode-3.0", "Zlib"];

/// Crates that must not be linked, and why.
const BANNED: [(&str, &str); 4] = [
    ("serde_yaml", "nobody maintains it; serde-saphyr reports line and column"),
    ("serde_yml", "nobody maintains it; serde-saphyr reports line and column"),
    ("fred", "the store on Redis uses the crate redis"),
    ("openssl-sys", "TLS is rustls with ring, so that no library of the system is needed"),
];

/// Some outer crates, each with our crates that may use it directly. The compiler cannot check such a rule, for example
/// that only one of our crates uses a client of Redis.
const USERS: [(&str, &[&str]); 6] = [
    ("serde-saphyr", &["spillgate-text"]),
    ("redis", &["spillgate-redis"]),
    ("axum", &["spillgate-admin", "spillgate-server", "spillgate-tower"]),
    ("tonic", &["spillgate-grpc", "spillgate-tower"]),
    ("clap", &["spillgate-server"]),
    ("mimalloc", &["spillgate-server"]),
];

/// Returns the output of `cargo metadata` about the packages for this machine. Nothing is downloaded.
fn metadata() -> Value {
    let output = |program: String, arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let rustc = output(variable("RUSTC", "rustc"), &["-vV"]);
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let arguments =
        ["metadata", "--format-version=1", "--locked", "--offline", "--all-features", "--filter-platform", host];
    serde_json::from_str(&output(variable("CARGO", "cargo"), &arguments)).unwrap()
}

/// Returns the packages that are compiled for our crates. Packages that only tests and benches need are included if `with_tests`
/// is true.
fn packages(metadata: &Value, with_tests: bool) -> Vec<&Value> {
    let of = |value: &'static str, id: &Value| {
        let list = if value == "nodes" { &metadata["resolve"]["nodes"] } else { &metadata[value] };
        list.as_array().unwrap().iter().find(|entry| entry["id"] == *id).expect("cargo describes every package")
    };
    let mut open: Vec<&Value> = metadata["workspace_members"].as_array().unwrap().iter().collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id.as_str().unwrap()) {
            continue;
        }
        found.push(of("packages", id));
        for dependency in of("nodes", id)["deps"].as_array().unwrap() {
            let mut kinds = dependency["dep_kinds"].as_array().unwrap().iter();
            open.extend(kinds.any(|kind| with_tests || kind["kind"] != "dev").then_some(&dependency["pkg"]));
        }
    }
    assert!(found.len() > 50, "only {} packages were found", found.len());
    found
}

/// Returns whether the licences of [`LICENCES`] are enough for this SPDX expression (names of licences with AND and
/// OR). `a/b` is an old way to write `a OR b`.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.trim();
    let any = parts(expression, " OR ").into_iter().flat_map(|part| parts(part, "/")).collect::<Vec<_>>();
    if any.len() > 1 {
        return any.into_iter().any(is_allowed);
    }
    let all = parts(expression, " AND ");
    if all.len() > 1 {
        return all.into_iter().all(is_allowed);
    }
    match expression.strip_prefix('(').and_then(|inside| inside.strip_suffix(')')) {
        Some(inside) => is_allowed(inside),
        None => LICENCES.contains(&expression),
    }
}

/// Splits the text at each separator that is not inside brackets.
fn parts<'t>(text: &'t str, separator: &str) -> Vec<&'t str> {
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0i32);
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 && at >= start && text[at..].starts_with(separator) {
            found.push(&text[start..at]);
            start = at + separator.len();
        }
    }
    found.push(&text[start..]);
    found
}

#[test]
fn every_licence_is_allowed() {
    let mut problems = Vec::new();
    for package in packages(&metadata(), true) {
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_allowed(licence) {
            problems.push(format!("{} {}: {licence}", package["name"], package["version"]));
        }
    }
    assert_none(&problems, "a dependency must have a licence of the list LICENCES");
}

#[test]
fn no_dependency_needs_a_newer_rust_than_the_manifest_declares() {
    let metadata = metadata();
    let packages = packages(&metadata, false);
    let ours = packages
        .iter()
        .find(|package| package["name"] == "spillgate")
        .expect("the workspace has the package spillgate");
    let declared = ours["rust_version"].as_str().expect("the manifest declares rust-version");
    let newer = packages.iter().filter_map(|package| {
        let needed = package["rust_version"].as_str()?;
        (version(needed) > version(declared)).then(|| format!("{} needs {needed}", package["name"]))
    });
    assert_none(
        &newer.collect::<Vec<_>>(),
        &format!("a dependency must not need a newer Rust than rust-version, {declared}"),
    );
}

#[test]
fn banned_crates_are_not_linked_and_some_have_one_user() {
    let metadata = metadata();
    let mut problems = Vec::new();
    for package in packages(&metadata, true) {
        let reason = BANNED.iter().find(|(name, _)| package["name"] == *name);
        problems.extend(reason.map(|(name, reason)| format!("{name}: {reason}")));
        if !(package["source"].is_null()
            || package["source"] == "registry+https://github.com/rust-lang/crates.io-index")
        {
            problems.push(format!("{} comes from {}", package["name"], package["source"]));
        }
        let own = package["name"].as_str().filter(|name| name.starts_with("spillgate"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let users = USERS.iter().find(|(name, _)| dependency["name"] == *name && dependency["kind"].is_null());
            if let (Some(own), Some((name, users))) = (own, users)
                && !users.contains(&own)
            {
                problems.push(format!("{own} uses {name}, and only {users:?} may"));
            }
        }
    }
    assert_none(&problems, "the lists BANNED and USERS of this test say which crates may use which");
    for (name, users) in USERS {
        let manifest = root().join("crates").join(users[0]).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        assert!(
            manifest.contains(&format!("\n{name}.workspace")) || manifest.contains(&format!("\n{name} = ")),
            "{name} has no user"
        );
    }
}

#[test]
fn the_kernel_uses_no_std_and_no_other_crate() {
    let manifest = std::fs::read_to_string(root().join("crates/spillgate-core/Cargo.toml")).unwrap();
    let dependencies = manifest.split("\n[dependencies]\n").nth(1).expect("the manifest has the section");
    assert_eq!(dependencies.split("\n[").next().map(str::trim), Some(""), "the kernel depends on nothing");
    let source = std::fs::read_to_string(root().join("crates/spillgate-core/src/lib.rs")).unwrap();
    assert!(source.contains("\n#![no_std]\n"), "the kernel has no std");
}

#[test]
fn licence_expressions_are_read() {
    for allowed in ["MIT", "GPL-3.0 OR MIT", "(MIT OR GPL-3.0) AND ISC", "Unlicense/MIT", "MIT AND (GPL-3.0 OR Zlib)"] {
        assert!(is_allowed(allowed), "{allowed}");
    }
    for refused in ["GPL-3.0", "none", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "GPL-3.0 OR AGPL-3.0", "MITX"] {
        assert!(!is_allowed(refused), "{refused}");
    }
}

/// Returns the numbers of a version such as `1.91.0` or `1.91`.
fn version(text: &str) -> Vec<u32> {
    text.split('.').map(|number| number.parse().unwrap()).chain([0]).take(3).collect()
}
