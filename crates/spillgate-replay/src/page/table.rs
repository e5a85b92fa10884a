//! Tables of the page. On a narrow screen each row becomes a block, in which each cell shows its heading.

use maud::{Markup, html};

/// A table of which the first cell of each row names the row.
pub(super) struct Table {
    /// What the table shows, for people and for screen readers.
    pub(super) caption: String,
    /// The headings of the columns.
    pub(super) heads: Vec<&'static str>,
    /// The positions of the columns that have numbers.
    pub(super) numbers: &'static [usize],
    pub(super) rows: Vec<Vec<Markup>>,
}

impl Table {
    /// Returns the table. The roles say again what the elements are, because a browser forgets it when a style sheet makes blocks
    /// of them.
    pub(super) fn markup(self) -> Markup {
        let class = |column: usize| if self.numbers.contains(&column) { "number" } else { "text" };
        html! {
            table role="table" {
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

/// Returns a bar for a share of 0 to 1. The number stands beside it, so screen readers skip it.
pub(super) fn bar(share: f64, class: &str) -> Markup {
    let percent = format!("{:.2}%", 100.0 * share.clamp(0.0, 1.0));
    html! {
        svg class={ "bar " (class) } aria-hidden="true" height="6" {
            rect class="rest" width="100%" height="6" {}
            rect class="part" width=(percent) height="6" {}
        }
    }
}
