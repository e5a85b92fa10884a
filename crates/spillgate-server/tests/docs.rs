//! Checks the README and the book in `docs/`. The rules on these pages must load, and the commands must run and print
//! what the pages show. The links must lead to existing pages, and the tables must agree with the code.
//!
//! Without these tests, a change of the code would make the pages wrong. `make docs-tables` writes the tables and pictures
//! again from the code.

#![allow(clippy::disallowed_methods, reason = "the system clock shows whether a new minute began while a page was run")]

mod complete;
mod diagrams;
mod links;
mod loose;
mod metrics;
mod page;
mod pictures;
mod session;
mod svg;
mod tables;

use std::time::SystemTime;

use session::Session;

/// How often a page is run until the test fails.
const TURNS: u32 = 20;

/// Runs the code blocks of a page. The limits on these pages have windows that begin with a minute of the clock. If a
/// new minute begins during the run, the output can differ from the page. The page is then run again, on a slow machine
/// several times, until a run fits into one minute.
fn run(path: &str) {
    let minute = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs() / 60);
    let blocks = page::blocks(path, &page::read(path));
    for turn in 1..=TURNS {
        let begun = minute();
        match Session::start().run(&blocks) {
            Ok(()) => return,
            Err(error) if minute() == begun || turn == TURNS => panic!("{path}, {error}"),
            Err(_) => {}
        }
    }
}

/// Defines one test for each page, so that the pages are run in parallel.
macro_rules! pages {
    ($($name:ident: $path:literal,)*) => {
        /// The pages whose code blocks are run.
        const PAGES: &[&str] = &[$($path),*];
        mod pages {
            $(#[test]
            fn $name() {
                super::run($path);
            })*
        }
    };
}

pages! {
    readme: "README.md",
    how_it_works_kernel: "docs/src/how-it-works/kernel.md",
    how_to_algorithms: "docs/src/how-to/algorithms.md",
    how_to_embed: "docs/src/how-to/embed.md",
    how_to_from_governor: "docs/src/how-to/from-governor.md",
    how_to_middleware: "docs/src/how-to/middleware.md",
    how_to_embed_redis: "docs/src/how-to/embed-redis.md",
    how_to_envoy: "docs/src/how-to/envoy.md",
    how_to_expensive: "docs/src/how-to/expensive.md",
    how_to_fleet: "docs/src/how-to/fleet.md",
    how_to_llm_tokens: "docs/src/how-to/llm-tokens.md",
    how_to_login: "docs/src/how-to/login.md",
    how_to_outbound: "docs/src/how-to/outbound.md",
    how_to_plans: "docs/src/how-to/plans.md",
    how_to_proxies: "docs/src/how-to/proxies.md",
    how_to_reference_server: "docs/src/how-to/reference-server.md",
    how_to_replay: "docs/src/how-to/replay.md",
    how_to_regions: "docs/src/how-to/regions.md",
    how_to_safety: "docs/src/how-to/safety.md",
    how_to_sketches: "docs/src/how-to/sketches.md",
    how_to_test_limits: "docs/src/how-to/test-limits.md",
    how_to_testing: "docs/src/how-to/testing.md",
    introduction: "docs/src/introduction.md",
    operating_alerts: "docs/src/operating/alerts.md",
    operating_block: "docs/src/operating/block.md",
    operating_deploy: "docs/src/operating/deploy.md",
    operating_kubernetes: "docs/src/operating/kubernetes.md",
    operating_insight: "docs/src/operating/insight.md",
    operating_least_rights: "docs/src/operating/least-rights.md",
    operating_page: "docs/src/operating/page.md",
    operating_redis: "docs/src/operating/redis.md",
    operating_regions: "docs/src/operating/regions.md",
    operating_reload: "docs/src/operating/reload.md",
    operating_snapshot: "docs/src/operating/snapshot.md",
    operating_store_failure: "docs/src/operating/store-failure.md",
    operating_tls: "docs/src/operating/tls.md",
    reference_admin: "docs/src/reference/admin.md",
    reference_exit_codes: "docs/src/reference/exit-codes.md",
    reference_grpc: "docs/src/reference/grpc.md",
    reference_http: "docs/src/reference/http.md",
    reference_logs: "docs/src/reference/logs.md",
    reference_metrics: "docs/src/reference/metrics.md",
    reference_rules: "docs/src/reference/rules.md",
    reference_settings: "docs/src/reference/settings.md",
    tutorial: "docs/src/tutorial.md",
}

#[test]
fn every_page_is_run() {
    for page in links::book() {
        let has_blocks = !page::blocks(&page, &page::read(&page)).is_empty();
        assert!(
            !has_blocks || PAGES.contains(&&*page),
            "{page} has code blocks: add the page to the list in tests/docs.rs"
        );
    }
}

/// rustdoc compiles and runs the Rust code of a page only if the `lib.rs` of a crate includes the page.
#[test]
fn every_page_with_rust_is_a_doc_test() {
    let crates = ["crates/spillgate/src/lib.rs", "crates/spillgate-redis/src/lib.rs"].map(page::read);
    for page in PAGES {
        let has_rust = page::blocks(page, &page::read(page)).iter().any(|block| block.language.starts_with("rust"));
        let included = crates.iter().any(|text| text.contains(&format!("../../../{page}\"")));
        assert!(!has_rust || included, "{page} has Rust code: include the page in a crate's lib.rs under cfg(doctest)");
    }
}

#[test]
fn the_readme_is_short() {
    let text = page::read("README.md");
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(
        lines <= 170 && words <= 1500,
        "the README has {lines} lines and {words} words: move a part of it to the book"
    );
}

#[test]
fn the_readme_has_only_figures_that_were_measured() {
    let (readme, results) = (page::read("README.md"), page::read("bench/RESULTS.md"));
    let section = readme
        .split("## How fast")
        .nth(1)
        .and_then(|text| text.split("\n## ").next())
        .expect("the README has this section");
    let is_number = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    let figures: Vec<_> = section.split_whitespace().map(|word| word.trim_end_matches('.')).filter(is_number).collect();
    assert!(figures.len() >= 5, "the section has at least five figures: {figures:?}");
    for figure in figures {
        assert!(results.contains(figure), "bench/RESULTS.md has no {figure}");
    }
}
