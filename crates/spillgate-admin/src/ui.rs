//! `GET /` and `GET /ui/<file>`: the files of the page for operators, which are in the folder `ui/`.
//!
//! The files are a part of the program, so the page needs no other server, and has the same version as the answers that
//! it shows. The files hold no secret, so a browser gets them without a token. Then the page asks its user for the
//! token.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use spillgate_http::problem::Problem;

/// What a browser lets the page do: load its own files, and send requests to its own server. So even if the page showed
/// a client's text as HTML by mistake, this text could run no script, and send nothing to another server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

struct File {
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
}

macro_rules! file {
    ($name:literal, $content_type:expr) => {
        File { name: $name, content_type: $content_type, text: include_str!(concat!("ui/", $name)) }
    };
}

const INDEX: File = file!("index.html", HTML);

const FILES: [File; 16] = [
    file!("page.css", CSS),
    file!("icon.svg", SVG),
    file!("app.js", SCRIPT),
    file!("actions.js", SCRIPT),
    file!("api.js", SCRIPT),
    file!("blocks.js", SCRIPT),
    file!("caller.js", SCRIPT),
    file!("chart.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("explain.js", SCRIPT),
    file!("format.js", SCRIPT),
    file!("limit.js", SCRIPT),
    file!("overview.js", SCRIPT),
    file!("reloads.js", SCRIPT),
    file!("rows.js", SCRIPT),
    file!("state.js", SCRIPT),
];

pub(super) async fn index() -> Response {
    answer(&INDEX)
}

pub(super) async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => answer(file),
        None => Problem::new(StatusCode::NOT_FOUND, "the page has no such file", "open / in a browser").into_response(),
    }
}

fn answer(file: &File) -> Response {
    let headers = [(header::CONTENT_TYPE, file.content_type), (header::CONTENT_SECURITY_POLICY, POLICY)];
    (headers, file.text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without this test, a file that is missing in [`FILES`] would be noticed only in a browser.
    #[test]
    fn each_file_that_a_file_names_is_served() {
        let mut named = 0;
        for file in [&INDEX].into_iter().chain(&FILES) {
            let after = |start| file.text.split(start).skip(1);
            for rest in after("\"/ui/").chain(after("from './")) {
                let name = rest.split(['"', '\'']).next().unwrap_or_default();
                assert!(FILES.iter().any(|other| other.name == name), "{} names {name}", file.name);
                named += 1;
            }
        }
        assert!(named > FILES.len(), "only {named} names were found");
    }

    /// The policy forbids scripts and styles in HTML, so a browser would ignore them without an error of the program.
    #[test]
    fn no_file_has_scripts_or_styles_in_markup() {
        for file in [&INDEX].into_iter().chain(&FILES) {
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                " style=\"",
                "<style",
                "javascript:",
            ] {
                assert!(!file.text.contains(forbidden), "{} has {forbidden}", file.name);
            }
        }
        assert!(!INDEX.text.contains("<script>") && !INDEX.text.contains(" on"), "the page has no script of its own");
    }

    #[test]
    fn the_policy_lets_the_page_reach_only_its_own_server() {
        for file in [&INDEX].into_iter().chain(&FILES) {
            let answer = answer(file);
            assert_eq!(answer.headers()["content-type"], file.content_type);
            let policy = answer.headers()["content-security-policy"].to_str().unwrap_or_default();
            for directive in policy.split("; ") {
                let (name, sources) = directive.split_once(' ').unwrap_or_default();
                let allowed = if name.starts_with("require-") {
                    "'script'"
                } else if name.ends_with("-src") && name != "default-src" {
                    "'self'"
                } else {
                    "'none'"
                };
                assert_eq!(sources, allowed, "{directive}");
            }
        }
    }
}
