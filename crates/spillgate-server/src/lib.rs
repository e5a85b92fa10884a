//! The server `spillgate` as a library.
//!
//! It is a library so that its tests can start the server in their own process. It is not an API for programs.

pub mod cli;
pub mod command;
pub mod listener;
mod runtime;
pub mod settings;
