//! Checks that no sentence of a comment or a page has more than [`SENTENCE_WORDS_MAX`] words.
//!
//! The readers are engineers who learned English at school: a sentence of 40 words has to be read twice.

use super::prose_text;
use super::{assert_none, files};

const SENTENCE_WORDS_MAX: usize = 40;

fn problems_of(path: &str, text: &str) -> Vec<String> {
    let sentences = prose_text::blocks(path, text).into_iter().flat_map(|block| block.sentences());
    let mut long: Vec<_> =
        sentences.filter(|sentence| sentence.is_sentence && sentence.count > SENTENCE_WORDS_MAX).collect();
    long.sort_by_key(|sentence| sentence.line);
    long.iter().map(|s| format!("{path}:{}: \"{}...\" ({} words)", s.line, s.start, s.count)).collect()
}

#[test]
fn sentences_are_short() {
    let mut problems = Vec::new();
    let mut read = 0;
    for (path, text) in files().into_iter().filter(|(path, _)| prose_text::is_read(path)) {
        read += 1;
        problems.extend(problems_of(&path, &text));
    }
    assert!(read > 300, "only {read} files were read");
    assert_none(&problems, "a sentence must have at most 40 words (a code span counts as one word)");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(words: usize) -> String {
        format!("A{}.", " b".repeat(words - 1))
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
}
