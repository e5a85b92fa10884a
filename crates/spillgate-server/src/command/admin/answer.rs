//! Sends a request to the admin listener of one server, and turns its answer into text, JSON or an error.

use std::borrow::Cow;
use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::{self, Admin, HELP, Request, TlsOptions, token};
use crate::cli::Admin as Arguments;
use crate::command::terminal::{EXIT_DENIED, EXIT_UNAVAILABLE, EXIT_USAGE, Problem, Problems, Terminal, clean};

/// The most characters of an error that a server has sent.
const ERROR_CHARS: usize = 1_000;

/// Why a command failed, and its exit code.
pub(super) type Failure = (Problems, u8);

pub(super) fn usage(problem: Problem) -> Failure {
    (problem.into(), EXIT_USAGE)
}

pub(super) fn unavailable(problem: Problem) -> Failure {
    (problem.into(), EXIT_UNAVAILABLE)
}

/// The server that a command asks.
pub(super) struct Server {
    admin: Admin,
    token: Option<String>,
    json: bool,
}

/// An error as the server sends it (RFC 9457).
#[derive(Deserialize, Default)]
#[serde(default)]
struct Refusal {
    detail: String,
    help: String,
}

impl Server {
    pub(super) fn new(arguments: &Arguments) -> Result<Server, Failure> {
        let tls = TlsOptions::new(&arguments.tls).map_err(usage)?;
        let admin = client::address(arguments.server.as_deref(), &tls).map_err(usage)?;
        let token = token(arguments.token_file.as_deref()).map_err(usage)?;
        Ok(Server { admin, token, json: arguments.json })
    }

    pub(super) const fn prints_json(&self) -> bool {
        self.json
    }

    pub(super) fn get(&self, path: &'static str, terminal: &mut Terminal) -> Result<Value, Failure> {
        self.call(&Method::GET, path, None, terminal)
    }

    pub(super) fn post(
        &self,
        path: impl Into<Cow<'static, str>>,
        body: &Value,
        terminal: &mut Terminal,
    ) -> Result<Value, Failure> {
        self.call(&Method::POST, path, Some(body.to_string()), terminal)
    }

    /// Sends a request, and returns the answer if its status is 200.
    fn call(
        &self,
        method: &Method,
        path: impl Into<Cow<'static, str>>,
        body: Option<String>,
        terminal: &mut Terminal,
    ) -> Result<Value, Failure> {
        let (status, bytes) = self.send(method, path, body, client::TIMEOUT, terminal)?;
        match status {
            StatusCode::OK => self.value(&bytes),
            status => Err(self.refused(status, &bytes)),
        }
    }

    /// Sends a request that can name a caller by its hash. If the server sees no request of the caller, that is no answer:
    /// neither that requests are refused, nor that there is nothing to change.
    pub(super) fn seek(&self, path: &'static str, body: String, terminal: &mut Terminal) -> Result<Value, Failure> {
        let (status, bytes) = self.send(&Method::POST, path, Some(body), client::TIMEOUT, terminal)?;
        match status {
            StatusCode::OK => self.value(&bytes),
            StatusCode::NOT_FOUND => Err((self.refused(status, &bytes).0, EXIT_UNAVAILABLE)),
            status => Err(self.refused(status, &bytes)),
        }
    }

    /// Sends a request. Returns the status and the body of the answer.
    pub(super) fn send(
        &self,
        method: &Method,
        path: impl Into<Cow<'static, str>>,
        body: Option<String>,
        within: Duration,
        terminal: &mut Terminal,
    ) -> Result<(StatusCode, bytes::Bytes), Failure> {
        let request = Request { method: method.clone(), path: path.into(), token: self.token.clone(), body, within };
        let waiting = format!("waiting for {}", self.admin);
        let answer = client::send(&self.admin, request, || terminal.progress(&waiting));
        terminal.progress("");
        answer.map_err(unavailable)
    }

    pub(super) fn value(&self, bytes: &[u8]) -> Result<Value, Failure> {
        serde_json::from_slice(bytes).map_err(|error| self.foreign(&error))
    }

    /// Returns the answer as the type that this version of the server sends.
    pub(super) fn parse<T: DeserializeOwned>(&self, answer: &Value) -> Result<T, Failure> {
        T::deserialize(answer).map_err(|error| self.foreign(&error))
    }

    fn foreign(&self, error: &serde_json::Error) -> Failure {
        let error: String = error.to_string().chars().take(ERROR_CHARS).collect();
        let message = format!("the answer of {} is not as spillgate writes it: {error}", self.admin);
        let help = "give --admin the address of spillgate's admin listener, of the same version as this command";
        unavailable(Problem::new(message, help))
    }

    /// Prints the answer to a change: as JSON, or as the lines that `words` returns.
    pub(super) fn print<T: DeserializeOwned>(
        &self,
        answer: &Value,
        terminal: &mut Terminal,
        words: impl FnOnce(&T) -> Vec<String>,
    ) -> Result<(), Failure> {
        terminal.has_done();
        self.list(answer, terminal, |parsed, _| words(parsed).iter().map(|line| clean(line) + "\n").collect())?;
        if answer["logged"] == false {
            terminal.complain("note: the server has no line about this in its log, because its log is full");
        }
        Ok(())
    }

    /// Prints an answer: as JSON, or as the text that `text` returns.
    pub(super) fn list<T: DeserializeOwned>(
        &self,
        answer: &Value,
        terminal: &mut Terminal,
        text: impl FnOnce(&T, &Terminal) -> String,
    ) -> Result<(), Failure> {
        if self.json {
            terminal.json(answer);
        } else {
            let parsed = self.parse(answer)?;
            let text = text(&parsed, terminal);
            terminal.print(&text);
        }
        Ok(())
    }

    /// Returns the error of an answer with another status than 200.
    pub(super) fn refused(&self, status: StatusCode, bytes: &[u8]) -> Failure {
        let admin = &self.admin;
        let refusal: Refusal = serde_json::from_slice(bytes).unwrap_or_default();
        let short = |text: &str| text.chars().take(ERROR_CHARS).collect::<String>();
        let (detail, help) = (short(&refusal.detail), clean(&short(&refusal.help)));
        let token_help = "give --admin-token-file a file with the text of the server's setting admin_token_file";
        match status {
            StatusCode::UNAUTHORIZED => unavailable(client::no_token(admin, self.token.is_some())),
            // Of the answers with this status, only that to the token that may only read comes after a token.
            StatusCode::FORBIDDEN if self.token.is_some() && !detail.is_empty() => {
                unavailable(Problem::new(format!("{admin} refuses: {detail}"), token_help))
            }
            _ if detail.is_empty() => unavailable(client::other_status(admin, status)),
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => usage(Problem::new(detail, help)),
            StatusCode::NOT_FOUND if detail.starts_with("there is nothing at") => {
                unavailable(Problem::new(format!("{admin} answered {status}: {detail}"), HELP))
            }
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => (Problem::new(detail, help).into(), EXIT_DENIED),
            _ => unavailable(Problem::new(format!("{admin} answered {status}: {detail}"), help)),
        }
    }
}
