//! Reads a Markdown page and returns its code blocks, with the marks above the blocks.
//!
//! A mark tells the test how to treat a block. It is an HTML comment above the block, so readers of the page do not see it:
//!
//! * `<!-- not run: REASON -->`: the block is not run, for this reason;
//! * `<!-- exit: 2 -->`: the last command of the block ends with this exit code;
//! * `<!-- from: PATH -->`: the file PATH of the repository contains the lines of the block, one after the other.

use std::fs;

use crate::support::root;

/// A code block with its marks. The block is between two fences, which are lines that begin with three backticks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Block {
    /// The line number of its first fence.
    pub(crate) line: usize,
    /// The word after the first fence: `sh`, `yaml`, `text`.
    pub(crate) language: String,
    pub(crate) text: String,
    /// The reason why the block is not run. `None` if the block is run.
    pub(crate) not_run: Option<String>,
    /// The exit code with which the last command must end.
    pub(crate) exit: i32,
    /// The file that must contain the lines of the block. `None` if the block quotes no file.
    pub(crate) from: Option<String>,
}

impl Block {
    /// Returns the name of the file in which the block is saved. Only a block whose first line is a comment with nothing
    /// but a file name is saved. For any other block, returns `None`.
    pub(crate) fn file_name(&self) -> Option<&str> {
        let name = self.text.lines().next()?.strip_prefix("# ")?.trim();
        let is_name = name.contains('.') && !name.ends_with('.');
        let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
        (is_name && is_plain).then_some(name)
    }
}

/// Returns the text of a file. `path` is relative to the top folder of the repository.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the code blocks of the page `text`. `path` names the page in messages.
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
            assert!(is_used, "{path}:{line} there is no block below the mark");
        }
    }
    blocks
}

fn add_mark(marks: &mut Block, mark: &str, at: &str) {
    match mark.split_once(": ") {
        Some(("not run", reason)) if reason.len() > 10 => marks.not_run = Some(reason.to_owned()),
        Some(("not run", _)) => panic!("{at} the mark `not run` needs a reason of more than 10 characters"),
        Some(("exit", code)) => {
            marks.exit = code.parse().unwrap_or_else(|_| panic!("{at} `{code}` is not an exit code"))
        }
        Some(("from", path)) => marks.from = Some(path.to_owned()),
        // The marks of tables, and comments for people, are ignored.
        _ => {}
    }
}

/// Returns whether `file` contains all of `lines`, one after the other. Indentation and empty lines are ignored.
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
