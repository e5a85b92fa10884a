//! Loads the files in the folder `broken`, which all have an error. The report must show the right line and how to fix
//! the error.
//!
//! Without the line and the fix, a user would have to search for the error.

use std::path::PathBuf;

use spillgate_rules::{Rules, RulesErrors, RulesFile};

/// The comment that marks each wrong line of a broken file.
const MARKER: &str = "# <-- here";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/broken")
}

fn broken_files() -> Vec<RulesFile> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder())
        .expect("the folder can be read")
        .map(|entry| entry.expect("the entry can be read").path())
        .collect();
    paths.sort();
    let name = |path: &PathBuf| path.file_name().expect("the path has a name").to_string_lossy().into_owned();
    paths
        .iter()
        .map(|path| RulesFile { name: name(path), text: std::fs::read_to_string(path).expect("the file is UTF-8") })
        .collect()
}

fn errors(file: &RulesFile) -> RulesErrors {
    Rules::parse(std::slice::from_ref(file)).expect_err(&file.name)
}

#[test]
fn each_broken_file_gives_its_line_and_its_fix() {
    let files = broken_files();
    assert!(files.len() >= 60, "only {} broken files were found", files.len());
    for file in files {
        let name = file.name.trim_end_matches(".yaml").to_owned();
        insta::assert_snapshot!(name, errors(&file).to_string());
    }
}

#[test]
fn errors_are_exactly_on_the_marked_lines() {
    let mut marked_files = 0;
    for file in broken_files() {
        let marked: Vec<u32> =
            (1..).zip(file.text.lines()).filter(|(_, line)| line.contains(MARKER)).map(|(number, _)| number).collect();
        if marked.is_empty() {
            continue;
        }
        marked_files += 1;
        let mut lines: Vec<u32> = errors(&file).iter().map(|error| error.line()).collect();
        lines.dedup();
        assert_eq!(lines, marked, "{}: {}", file.name, errors(&file));
    }
    assert!(marked_files >= 60, "only {marked_files} broken files have a marked line");
}

#[test]
fn one_mistake_is_one_error() {
    for (name, mistakes) in [
        ("limit_requests_per_minute", 1),
        ("limit_is_a_list", 1),
        ("file_misspelt_domain", 1),
        ("yaml_alias_error_once", 1),
        ("descriptor_unknown_key_hides_another", 5),
    ] {
        let file = broken_files().into_iter().find(|file| file.name == format!("{name}.yaml")).expect(name);
        assert_eq!(errors(&file).iter().count(), mistakes, "{}", errors(&file));
    }
}

#[test]
fn each_error_has_a_fix_and_a_position_inside_the_text() {
    for file in broken_files() {
        for error in &errors(&file) {
            assert!(!error.help().is_empty() && !error.message().is_empty(), "{}", file.name);
            assert_eq!(error.file(), file.name);
            let line = file.text.lines().nth(error.line() as usize - 1).unwrap_or_default();
            assert!(error.column() as usize <= line.chars().count() + 1, "{error}");
            // The lines of a settings file are not shown, because they may contain a password.
            let position = if file.name == "file_is_settings.yaml" { "  at file_is" } else { "`-- " };
            assert!(error.to_string().contains(position), "{error}");
        }
    }
}
