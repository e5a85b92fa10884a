//! Tables of the page. On a narrow screen each row becomes a block, in which each cell shows its heading.

use maud::{Markup, html};

/// With at most this many columns, a table stays a table on a narrow screen.
const MOST_SHORT: usize = 3;

/// A table. The first cell of each row is the heading of the row.
pub(super) struct Table {
    /// What the table shows, for people and for screen readers.
    pub(super) caption: String,
    /// The headings of the columns.
    pub(super) heads: Vec<&'static str>,
    /// The indexes of the columns that have numbers.
    pub(super) numbers: &'static [usize],
    pub(super) rows: Vec<Vec<Markup>>,
}

impl Table {
    /// Returns the table. The style sheet turns the elements of a table into blocks, and a browser then forgets that
    /// they are a table. So each element says what it is in its attribute `role`.
    pub(super) fn markup(self) -> Markup {
        let class = |column: usize| if self.numbers.contains(&column) { "number" } else { "text" };
        html! {
            table role="table" class=[(self.heads.len() <= MOST_SHORT).then_some("short")] {
                caption { (self.caption) }
                thead role="rowgroup" {
                    tr role="row" {
                        @for (column, head) in self.heads.iter().enumerate() {
                            th role="columnheader" scope="col" class=(class(column)) { (head) }
                        }
                    }
                }
                tbody role="rowgroup" {
                    @for row in &self.rows {
                        tr role="row" {
                            @for (column, cell) in row.iter().enumerate() {
                                @if column == 0 {
                                    th role="rowheader" scope="row" class=(class(0)) { (cell) }
                                } @else {
                                    // On a narrow screen the heading is left of this block.
                                    td role="cell" class=(class(column)) data-head=(self.heads[column]) { div { (cell) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a bar for a share of 0 to 1. Screen readers skip the bar, because its number stands beside it.
pub(super) fn bar(share: f64, class: &str) -> Markup {
    let percent = format!("{:.2}%", 100.0 * share.clamp(0.0, 1.0));
    html! {
        svg class={ "bar " (class) } aria-hidden="true" height="6" {
            rect class="rest" width="100%" height="6" {}
            rect class="part" width=(percent) height="6" {}
        }
    }
}
