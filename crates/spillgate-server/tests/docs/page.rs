//! A Markdown page as its fenced blocks, with the marks that stand above them.
//!
//! A mark is an HTML comment on the line above a block, so readers do not see it:
//!
//! * `<!-- not run: REASON -->`: the block is not run, and why;
//! * `<!-- exit: 2 -->`: the last command of the block ends with this exit code;
//! * `<!-- from: PATH -->`: the lines of the block are in that file of the repository, in a row.

use std::fs;

use crate::support::root;

/// A fenced block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Block {
    /// The line of its first fence.
    pub(crate) line: usize,
    /// The word behind the fence: `sh`, `yaml`, `text`.
    pub(crate) language: String,
    pub(crate) text: String,
    /// Why it is not run.
    pub(crate) not_run: Option<String>,
    /// The exit code that is expected.
    pub(crate) exit: i32,
    /// The file that it quotes.
    pub(crate) from: Option<String>,
}

impl Block {
    /// The file that the block is saved as: its first line is a comment that holds nothing but a file name.
    pub(crate) fn file_name(&self) -> Option<&str> {
        let name = self.text.lines().next()?.strip_prefix("# ")?.trim();
        let is_name = name.contains('.') && !name.ends_with('.');
        let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
        (is_name && is_plain).then_some(name)
    }
}

/// The text of a page, by its path from the root.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The blocks of a page.
pub(crate) fn blocks(path: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut marks = Block::default();
    let mut lines = (1..).zip(text.lines());
    while let Some((line, text)) = lines.next() {
        let trimmed = text.trim_start();
        if let Some(language) = trimmed.strip_prefix("```") {
            let indent = text.len() - trimmed.len();
            let mut block = Block { line, language: language.trim().to_owned(), ..std::mem::take(&mut marks) };
            assert!(!block.language.is_empty(), "{path}:{line} the block has no language");
            loop {
                let (_, text) = lines.next().unwrap_or_else(|| panic!("{path}:{line} the block has no end"));
                if text.trim() == "```" {
                    break;
                }
                block.text.push_str(text.get(indent..).unwrap_or_default());
                block.text.push('\n');
            }
            blocks.push(block);
        } else if let Some(mark) = trimmed.strip_prefix("<!--").and_then(|rest| rest.trim_end().strip_suffix("-->")) {
            add_mark(&mut marks, mark.trim(), &format!("{path}:{line}"));
        } else if !trimmed.is_empty() {
            let is_used = marks.not_run.is_none() && marks.from.is_none() && marks.exit == 0;
            assert!(is_used, "{path}:{line} a mark stands above no block");
        }
    }
    blocks
}

fn add_mark(marks: &mut Block, mark: &str, at: &str) {
    match mark.split_once(": ") {
        Some(("not run", reason)) if reason.len() > 10 => marks.not_run = Some(reason.to_owned()),
        Some(("not run", _)) => panic!("{at} the mark says no reason"),
        Some(("exit", code)) => marks.exit = code.parse().unwrap_or_else(|_| panic!("{at} no exit code: {code}")),
        Some(("from", path)) => marks.from = Some(path.to_owned()),
        // Marks of tables, and comments for people.
        _ => {}
    }
}

/// Whether `lines` are in `file` in a row, whatever their indentation.
pub(crate) fn quotes(file: &str, lines: &str) -> bool {
    fn trimmed(text: &str) -> Vec<&str> {
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
    }
    let (file, lines) = (trimmed(file), trimmed(lines));
    !lines.is_empty() && file.windows(lines.len()).any(|window| window == lines)
}

#[test]
fn marks_belong_to_the_block_below_them() {
    let text = "# A\n\n<!-- exit: 2 -->\n```sh\nfalse\n```\n\n  ```yaml\n  # rules/a.yaml\n  domain: a\n  ```\n";
    let blocks = blocks("page", text);
    assert_eq!((blocks[0].exit, &*blocks[0].text, blocks[0].file_name()), (2, "false\n", None));
    assert_eq!((blocks[1].exit, blocks[1].line, blocks[1].file_name()), (0, 8, Some("rules/a.yaml")));
    assert_eq!(blocks[1].text, "# rules/a.yaml\ndomain: a\n");
}
