//! Tests of how rules files and folders are read, and of several files that are loaded together.
//!
//! The paths come from a command line. A path can lead to anything: a folder that contains itself, a pipe, a huge file.

use std::fs;
use std::path::{Path, PathBuf};

use spillgate_rules::{MAX_FILE_BYTES, Rules, RulesFile, left_out, read_files};

fn write(folder: &Path, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("the file can be written");
    path
}

#[test]
fn a_folder_is_its_rules_files_in_name_order() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.yml", "a.yaml", ".hidden.yaml", "notes.txt", "c.yaml.bak", "d.YAML", "e.Yml", "f.json", ".notes"] {
        write(folder.path(), name, "domain: x");
    }
    let files = read_files(&[folder.path().to_owned()]).unwrap();
    let names: Vec<_> = files.iter().map(|file| Path::new(&file.name).file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["a.yaml", "b.yml", "d.YAML", "e.Yml", "f.json"]);
    let left_out = left_out(&[folder.path().to_owned()]);
    assert_eq!(left_out, ["c.yaml.bak", "notes.txt"].map(|name| folder.path().join(name)));
    let mut rules = Rules::parse(&files[..1]).expect("the rules are valid");
    let before = rules.warnings().len();
    rules.warn_of_left_out(&left_out);
    let warned: Vec<_> = rules.warnings().iter().map(|warning| warning.message()).collect();
    assert_eq!(warned.len(), before + 1);
    assert!(
        warned[0].starts_with("2 files in folders of rules are left out: ") && warned[0].ends_with("notes.txt"),
        "{warned:?}"
    );
}

#[test]
fn folders_inside_a_folder_are_read_after_its_own_files() {
    let folder = tempfile::tempdir().unwrap();
    for inside in ["sub.yaml", "a/deep", ".git"] {
        fs::create_dir_all(folder.path().join(inside)).unwrap();
    }
    for name in ["z.yaml", "sub.yaml/c.yaml", "a/b.yml", "a/deep/d.yaml", "a/notes.txt", ".git/e.yaml"] {
        write(folder.path(), name, "domain: x");
    }
    let files = read_files(&[folder.path().to_owned()]).unwrap();
    let name = |file: &RulesFile| Path::new(&file.name).strip_prefix(folder.path()).unwrap().display().to_string();
    let names: Vec<_> = files.iter().map(name).collect();
    assert_eq!(names, ["z.yaml", "a/b.yml", "a/deep/d.yaml", "sub.yaml/c.yaml"]);
}

#[cfg(unix)]
#[test]
fn a_folder_that_contains_itself_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.yaml", "domain: x");
    std::os::unix::fs::symlink(".", folder.path().join("again")).unwrap();
    let error = read_files(&[folder.path().to_owned()]).unwrap_err();
    assert!(error.message().contains("more than 8 levels of folders") && error.help().contains("a link"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_folder_of_links_is_read_as_orchestrators_mount_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("..2026_01_01");
    fs::create_dir(&data).unwrap();
    write(&data, "rules.yaml", "domain: linked");
    std::os::unix::fs::symlink("..2026_01_01", folder.path().join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/rules.yaml", folder.path().join("rules.yaml")).unwrap();
    let files = read_files(&[folder.path().to_owned()]).unwrap();
    assert_eq!(files.iter().map(|file| file.text.as_str()).collect::<Vec<_>>(), ["domain: linked"]);
}

#[test]
fn a_file_is_read_whatever_its_name_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "rules.conf", "domain: x");
    assert_eq!(read_files(&[path]).unwrap().len(), 1);
}

#[test]
fn what_cannot_be_read_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let missing = read_files(&[folder.path().join("none.yaml")]).unwrap_err();
    assert!(missing.message().contains("none.yaml cannot be read"), "{missing}");
    let empty = read_files(&[folder.path().to_owned()]).unwrap_err();
    assert!(empty.message().contains("has no rules file") && empty.help().contains(".yaml, .yml or .json"), "{empty}");
    let nothing = read_files(&[]).unwrap_err();
    assert_eq!(nothing.message(), "no rules file was given");
}

#[test]
fn bytes_that_are_not_text_are_shown_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "latin1.yaml", b"domain: api\n# caf\xe9\n");
    let error = read_files(&[path]).unwrap_err();
    assert_eq!((error.line(), error.column()), (2, 6));
    assert!(error.message().contains("not UTF-8") && error.help().contains("UTF-8"), "{error}");
}

#[test]
fn a_file_above_the_bound_is_rejected_unread() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "large.yaml", vec![b'#'; MAX_FILE_BYTES + 1]);
    assert!(read_files(&[path]).unwrap_err().message().contains("larger than 16 MiB"));
    let text = "#".repeat(MAX_FILE_BYTES + 1);
    let errors = Rules::parse(&[RulesFile { name: "large.yaml".into(), text }]).unwrap_err();
    assert_eq!(errors.iter().count(), 1);
}

fn file(name: &str, text: &str) -> RulesFile {
    RulesFile { name: name.into(), text: text.into() }
}

#[test]
fn one_domain_is_one_file() {
    let errors = Rules::parse(&[file("a.yaml", "domain: api"), file("b.yaml", "# rules\ndomain: api")]).unwrap_err();
    insta::assert_snapshot!("one_domain_is_one_file", errors.to_string());
}

#[test]
fn the_errors_of_all_files_come_at_once() {
    let files = [file("a.yaml", "domain: a\ncompat: x"), file("b.yaml", "domain: b"), file("c.yaml", "domain: [")];
    let errors = Rules::parse(&files).unwrap_err();
    let places: Vec<(&str, u32)> = errors.iter().map(|error| (error.file(), error.line())).collect();
    assert_eq!(places, [("a.yaml", 2), ("c.yaml", 1)]);
    let shown = errors.to_string();
    assert!(shown.find("[a.yaml:2:9]") < shown.find("[c.yaml:1:9]"), "{shown}");
}

#[test]
fn a_flood_of_errors_is_cut() {
    let text = format!("domain: a\ndescriptors:\n{}", "  - {kex: a}\n".repeat(500));
    let errors = Rules::parse(&[file("a.yaml", &text)]).unwrap_err();
    assert_eq!(errors.iter().count(), spillgate::rules::RulesErrors::MAX);
    assert!(errors.to_string().ends_with("more\n"), "{}", errors.to_string().len());
}

#[test]
fn paths_that_repeat_long_outer_keys_are_bounded() {
    let mut text = String::from("domain: d\ndescriptors:\n");
    let mut indent = String::new();
    for _ in 0..15 {
        text.push_str(&format!("{indent}- key: k\n{indent}  value: {}\n{indent}  descriptors:\n", "v".repeat(4096)));
        indent.push_str("  ");
    }
    for number in 0..1_500 {
        text.push_str(&format!("{indent}- key: k{number}\n"));
    }
    let errors = Rules::parse(&[file("d.yaml", &text)]).unwrap_err();
    assert!(errors.to_string().contains("are longer than 64 MiB"), "{}", errors.iter().count());
}

#[test]
fn a_domain_without_rules_loads() {
    for text in ["domain: api", "domain: api\ndescriptors:", "domain: api\ndescriptors: []", "\u{feff}domain: api\r\n"]
    {
        let rules = Rules::parse(&[file("a.yaml", text)]).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(rules.domains().map(|domain| &*domain.name).collect::<Vec<_>>(), ["api"]);
    }
}

#[test]
fn each_of_many_rules_is_found() {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for number in 0..1_000 {
        text.push_str(&format!("  - {{key: user, value: u{number}, rate_limit: {{unit: second, limit: {number}}}}}\n"));
        text.push_str(&format!(
            "  - {{key: path, value: /{number}/*, rate_limit: {{unit: second, limit: {number}}}}}\n"
        ));
    }
    let rules = Rules::parse(&[file("d.yaml", &text)]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(rules.rules().count(), 2_000);
    for number in [0, 77, 999] {
        for entry in [("user", format!("u{number}")), ("path", format!("/{number}/x"))] {
            let rule = rules.find("d", &[(entry.0, &entry.1)]).unwrap();
            assert_eq!(rule.limits[0].requests_per_unit, number);
        }
    }
}
