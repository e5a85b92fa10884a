//! The tests of the server. Most of them start the real program on free ports.
//!
//! All modules are in one test program, because linking takes time for each further program.

mod access_log;
mod cli;
mod cli_support;
mod commands;
mod docs;
mod envoy;
mod events;
mod forward_auth;
mod grpc;
mod health;
mod hostile;
mod http;
mod insight;
mod leave;
mod log_faults;
mod log_formats;
mod metrics;
mod one_description;
mod open_files;
mod openapi;
mod page;
mod python_client;
mod reload;
mod replay;
mod replay_page;
mod request_log;
mod scrape;
mod serve;
mod settings;
mod snapshot;
mod store;
mod support;
mod tidy;
mod tls;
mod unread;
mod watch;
