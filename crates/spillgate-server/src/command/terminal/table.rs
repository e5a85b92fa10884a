//! Tables of text with aligned columns.
//!
//! Columns without values are left out, so that wide tables fit a terminal.

use super::{Terminal, Tone};

/// Rows of cells; each column is as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    indent: usize,
    rows: Vec<Vec<(Tone, String)>>,
}

impl Table {
    pub(crate) fn new(indent: usize) -> Table {
        Table { indent, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (Tone, String)>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the table as text. If `titled`, the first row has the titles of the columns. A column is left out if all
    /// its cells below the title are empty or `-`.
    pub(crate) fn text(&self, titled: bool, terminal: &Terminal) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.rows.iter().skip(usize::from(titled)).filter_map(move |row| row.get(column));
        let has_value = |column: usize| cells(column).any(|(_, text)| !text.is_empty() && text != "-");
        let shown: Vec<usize> = (0..columns).filter(|column| has_value(*column)).collect();
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|(_, text)| text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = shown.iter().map(|column| width(*column)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            let mut pad = 0;
            for (column, width) in shown.iter().zip(&widths) {
                let Some((tone, cell)) = row.get(*column) else { continue };
                line.push_str(&" ".repeat(pad));
                line.push_str(&terminal.paint(if cell.is_empty() { Tone::Plain } else { *tone }, cell));
                pad = width - cell.chars().count() + 2;
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_ones_are_left_out() {
        let mut table = Table::new(2);
        for row in [["at", "delay", "who"], ["1ms", "-", "grüße"], ["10ms", "-", "b"]] {
            table.row(row.map(|cell| (Tone::Plain, cell.to_owned())));
        }
        assert_eq!(table.text(true, &Terminal::new()), "  at    who\n  1ms   grüße\n  10ms  b\n");
    }
}
