//! The server `spillgate`, as a library so that its tests can start it in their own process.

pub mod admin;
pub mod cli;
pub mod command;
pub mod listener;
pub mod metrics;
pub mod protocol;
pub mod service;
pub mod settings;
