//! Checks that every link between pages leads to an existing file and heading, and that every page is in the table of contents.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::page::read;
use crate::support::root;

/// The start of a link from a page of the book to a file of the repository.
const REPOSITORY: &str = "https://github.com/spillgate/spillgate/blob/main/";

/// Returns the paths of all pages of the book, relative to the top folder of the repository.
pub(crate) fn book() -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the entry of the folder can be read").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    walk(&root.join("docs/src"), &mut found);
    let relative = |path: PathBuf| path.strip_prefix(&root).expect("the page is below the root").display().to_string();
    let mut pages: Vec<String> = found.into_iter().map(relative).collect();
    pages.sort();
    pages
}

/// Returns the links of a page, each with its line number. Links in code blocks are left out.
fn links(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut is_in_block) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        is_in_block ^= line.trim_start().starts_with("```");
        for (at, _) in line.match_indices("](").filter(|_| !is_in_block) {
            let rest = &line[at + 2..];
            found.extend(rest.find(')').map(|end| (number, &rest[..end])));
        }
    }
    found
}

/// Returns the anchors of a page: the names that mdBook and GitHub make from its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut is_in_block) = (BTreeSet::new(), false);
    for line in text.lines() {
        is_in_block ^= line.trim_start().starts_with("```");
        if !is_in_block && line.starts_with('#') {
            let kept = |c: char| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
                _ => None,
            };
            found.insert(line.trim_start_matches('#').trim().chars().filter_map(kept).collect());
        }
    }
    found
}

fn problem(page: &str, target: &str, is_book: bool) -> Option<String> {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    if let Some(path) = file.strip_prefix(REPOSITORY) {
        return (!root().join(path).exists()).then(|| format!("{path} is not in the repository"));
    }
    if file.contains("://") {
        return None;
    }
    let folder = Path::new(page).parent().expect("a page is in a folder");
    let path = if file.is_empty() { PathBuf::from(page) } else { folder.join(file) };
    let Ok(found) = root().join(&path).canonicalize() else { return Some("there is no such file".to_owned()) };
    if is_book && !found.starts_with(root().join("docs/src")) {
        return Some(format!("the link leads out of the book: write {REPOSITORY}..."));
    }
    let anchor = anchor?;
    let text = fs::read_to_string(&found).expect("the page can be read");
    (!anchors(&text).contains(anchor)).then(|| "there is no such heading".to_owned())
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut problems = Vec::new();
    let mut seen = 0;
    for page in book().into_iter().chain(["README.md".to_owned()]) {
        let text = read(&page);
        for (line, target) in links(&text) {
            seen += 1;
            let is_book = page.starts_with("docs/");
            problems.extend(problem(&page, target, is_book).map(|why| format!("{page}:{line} {target}: {why}")));
        }
    }
    assert!(seen > 50, "only {seen} links were found");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let summary = read("docs/src/SUMMARY.md");
    let mut listed: Vec<String> = links(&summary).iter().map(|(_, target)| format!("docs/src/{target}")).collect();
    listed.sort();
    let pages: Vec<String> = book().into_iter().filter(|page| !page.ends_with("/SUMMARY.md")).collect();
    assert_eq!(listed, pages);
}
