//! Checks that comments, messages and pages are plain English. These texts must have no phrase of [`BANNED`], and no
//! sentence with more than [`SENTENCE_WORDS_MAX`] words.
//!
//! The readers are engineers who learned English at school. Without this test, unusual words come back.

use super::prose_text::{self, Block, Kind};
use super::{assert_none, files, starts_with_any};

const SENTENCE_WORDS_MAX: usize = 40;

/// The path of this file. It contains the banned phrases, so it is not checked.
const LISTS_THEM: &str = "crates/spillgate-server/tests/tidy/prose.rs";

/// Phrases that must not be written in this repository, each with the words to write instead. Phrases are in lower case.
const BANNED: &[(&str, &str)] = &[
    ("but for", "except"),
    ("save for", "except"),
    ("anew", "again"),
    ("is none", "does not exist, is invalid"),
    ("are none", "do not exist, are invalid"),
    ("so many", "n, this many"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("mending", "fixing"),
    ("told", "reported, returned, distinguished"),
    ("in doubt", "may have been applied"),
    ("hearsay", "a hint"),
    ("manners", "limits"),
    ("insist", "give up on"),
    ("insists", "gives up on"),
    ("pulse", "keep-alive"),
    ("litter", "leftovers"),
    ("siege", "load test"),
    ("mouth", "the usual technical word"),
    ("patient", "what is examined"),
    ("world", "fixture, setup"),
    ("foreign", "unknown, too old, of another program"),
    ("unasked", "not sent"),
    ("let past", "allowed"),
    ("lets past", "allows"),
    ("stand in", "are in, replace"),
    ("stands in", "is in, replaces"),
    ("stood in", "was in, replaced"),
    ("hands on", "forwards"),
    ("handed on", "forwarded"),
    ("come to be", "exist, start"),
    ("for nothing", "free, without a charge"),
    ("not so the", "the ... is different"),
    ("borne", "supported, survived"),
    ("whence", "from where"),
    ("lest", "so that ... not"),
];

/// Words that mean people. A text about a machine, a caller or a thread must use another word.
const PEOPLE: &[(&str, &str)] =
    &[("somebody", "a caller, a client, a user"), ("nobody", "no caller, no client, no user")];

/// Files that are allowed to contain the words of [`PEOPLE`], because these files are about people.
const OF_PEOPLE: &[&str] = &["CONTRIBUTING.md", "README.md", "DESIGN.md", "docs/"];

/// Words that must not begin a sentence, because they hide its subject. Only a question can begin with "Who".
const BEGINNINGS: &[(&str, &str)] = &[
    ("who", "a caller that, a client that"),
    ("whoever", "a caller that"),
    ("of", "begin with the subject"),
    ("nor", "begin with the subject"),
    ("not so", "begin with the subject"),
    ("those that", "begin with the noun"),
];

fn problems_of(path: &str, text: &str) -> Vec<String> {
    let mut problems: Vec<_> =
        prose_text::blocks(path, text).iter().flat_map(|block| block_problems(path, block)).collect();
    problems.sort_by_key(|(line, _)| *line);
    problems.into_iter().map(|(line, problem)| format!("{path}:{line}: {problem}")).collect()
}

fn block_problems(path: &str, block: &Block) -> Vec<(usize, String)> {
    let mut problems = Vec::new();
    let of_people = starts_with_any(path, OF_PEOPLE);
    for sentence in block.sentences() {
        let words: Vec<&str> = sentence.words.iter().map(|word| word.text.as_str()).collect();
        for at in 0..words.len() {
            let people = PEOPLE.iter().filter(|_| !of_people);
            for (phrase, instead) in BANNED.iter().chain(people).filter(|(phrase, _)| sentence.has(at, phrase)) {
                problems.push((sentence.words[at].line, format!("\"{phrase}\" (say: {instead})")));
            }
        }
        if block.kind != Kind::Prose {
            continue;
        }
        let Some(first) = sentence.words.first().filter(|_| sentence.capital && !sentence.question) else { continue };
        for (phrase, instead) in BEGINNINGS.iter().filter(|(phrase, _)| sentence.has(0, phrase)) {
            problems.push((first.line, format!("a sentence that begins with \"{phrase}\" ({instead})")));
        }
        if sentence.count > SENTENCE_WORDS_MAX {
            let start = words[..6].join(" ");
            problems.push((first.line, format!("\"{start} ...\" ({} words)", sentence.count)));
        }
    }
    problems
}

#[test]
fn sentences_are_short_and_plain() {
    let mut problems = Vec::new();
    let mut read = 0;
    for (path, text) in files() {
        if prose_text::is_read(&path) && path != LISTS_THEM {
            read += 1;
            problems.extend(problems_of(&path, &text));
        }
    }
    assert!(read > 300, "only {read} files were read");
    assert_none(&problems, "write plain English with at most 40 words in a sentence (a code span counts as one word)");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sentence of this many words.
    fn sentence(words: usize) -> String {
        format!("A{}.", " b".repeat(words - 1))
    }

    #[test]
    fn a_planted_phrase_is_found_in_every_language() {
        let cases = [
            ("a.rs", "//! It is\n//! told.\n", 2),
            ("a.rs", "fn f() {} // All but\nfn g() {} // for x\n", 0),
            ("a.rs", "/// All but\n/// for `x`.\nfn f() {}\n", 1),
            ("a.rs", "fn f() {\n    panic!(\"all \\\n but for\");\n}\n", 3),
            ("a.rs", "/* It is so\n   many. */\n", 1),
            ("a.rs", "fn a_file_is_none_here() {}\n", 1),
            ("a.rs", "struct ConnectionManners;\n", 1),
            ("a.rs", "fn f() { x.is_none(); x.is_none_or(y); }\n", 0),
            ("a.rs", "fn f() { g(\"told\"); let mouths = 1; }\n", 0),
            ("a.md", "# All\n\nIt is `told` anew.\n", 3),
            ("a.md", "```\nIt is told.\n```\n", 0),
            ("a.lua", "local a = 1 -- it is told\n", 1),
            ("a.sh", "#!/bin/sh\necho \"it is told\"\n", 2),
            ("a.py", "def f():\n    \"\"\"Says.\n\n    What is told.\n    \"\"\"\n", 4),
            ("a.yaml", "a: 1 # it is told\n", 1),
            ("Makefile", "a: ## It is told\n", 1),
        ];
        for (path, text, line) in cases {
            let problems = problems_of(path, text);
            let found = problems.iter().map(|p| p.split(':').nth(1).unwrap().parse().unwrap());
            assert_eq!(found.collect::<Vec<usize>>(), if line == 0 { vec![] } else { vec![line] }, "{path}: {text}");
        }
    }

    #[test]
    fn a_planted_long_sentence_is_found() {
        let (long, most) = (sentence(41), sentence(40));
        let wrapped = long.replacen(" b b b b b b b b b b", "\n/// b b b b b b b b b b", 2);
        for (path, text) in [
            ("a.md", format!("# A\n\nShort. {long} Short.\n")),
            ("a.md", format!("# A\n\n* one:\n* {}: b b `c d` [e](f g)\n", sentence(37).trim_end_matches('.'))),
            ("a.rs", format!("/// Short.\n///\n/// {wrapped}\nfn f() {{}}\n")),
            ("a.rs", format!("fn f() {{}}\n\n// {long}\n")),
            ("a.lua", format!("\n\n-- {long}\n")),
        ] {
            let problems = problems_of(path, &text);
            assert!(problems.len() == 1 && problems[0].ends_with("(41 words)"), "{path}: {problems:?}");
            let at = if path == "a.md" && text.contains("* one") { "4" } else { "3" };
            assert_eq!(problems[0].split(':').nth(1), Some(at), "{path}: {problems:?}");
            let shorter = text.replace(&long, &most).replace(&wrapped, &most).replace(" `c d`", "");
            assert_eq!(problems_of(path, &shorter), [""; 0]);
        }
    }

    #[test]
    fn code_tables_and_lists_end_sentences() {
        let (half, code) = ("a b c d e f g h i j k l m n o p q r s t u v", "x ".repeat(60));
        for (path, text) in [
            ("a.md", format!("| {half} | {half} |\n|---|---|\n| {half} | {half} |\n")),
            ("a.md", format!("* {half}\n* {half}\n  1. {half}\n")),
            ("a.md", format!("# {half}\n{half}\n\n{half}\n")),
            ("a.md", format!("{half}\n```text\n{code}\n```\n{half}\n")),
            ("a.md", format!("{half}\n\n    {code}\n\nIt is `{code}` and [a](b.md \"{code}\").\n")),
            ("a.rs", format!("/// {half}\nfn f() {{}}\n/// {half}\nfn g() {{ let _ = r#\"{code}\"#; }}\n")),
            ("a.rs", format!("/// {half}:\n/// * {half}\n/// - {half}\n///\n/// ```\n/// {code}\n/// ```\n")),
            ("a.rs", format!("//! {half}\n\n// {half}\nlet {code}; // {half}\n// {half}\n")),
            ("a.lua", format!("-- KEYS     {half}\n-- ARGV[2]  {half}\n")),
            ("a.py", format!("{code}\n# {half}\n{code}\n# {half}\n")),
        ] {
            assert_eq!(problems_of(path, &text), [""; 0], "{path}: {text}");
        }
    }

    #[test]
    fn a_subject_comes_first() {
        let found = |text: &str| problems_of("a.md", text).len();
        assert_eq!(found("It ends. Who waits is answered."), 1);
        assert_eq!(found("Of a state, nothing is left."), 1);
        assert_eq!(found("Who waits? Nothing is sought of it; so be it."), 0);
        assert_eq!(found("A list\n* of limits\n* so on"), 0);
    }
}
