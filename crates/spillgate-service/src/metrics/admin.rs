//! Counts the requests that the admin listener refuses.
//!
//! These counters tell an operator that some program lacks a right, uses a wrong token, or uses a name for this server
//! that is not in the settings.

use super::registry::{Counter, Registry};

/// Why the admin listener refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdminRefusal {
    /// The URL has a name that is not a known name of this server.
    Host,
    /// The request came from a web page of another site.
    Origin,
    /// The settings have no token, and the client of a POST is not on this machine, or uses a proxy.
    Remote,
    /// The settings have no token, and a write lacks the header field `X-Spillgate-Admin: 1`.
    Header,
    /// The token is missing or wrong.
    Token,
    /// The token may only read, and the request is a write.
    ReadToken,
    /// The address of the client has sent too many requests or wrong tokens.
    Rate,
}

impl AdminRefusal {
    const ALL: [AdminRefusal; 7] = [
        AdminRefusal::Host,
        AdminRefusal::Origin,
        AdminRefusal::Remote,
        AdminRefusal::Header,
        AdminRefusal::Token,
        AdminRefusal::ReadToken,
        AdminRefusal::Rate,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            AdminRefusal::Host => "host",
            AdminRefusal::Origin => "origin",
            AdminRefusal::Remote => "remote",
            AdminRefusal::Header => "header",
            AdminRefusal::Token => "token",
            AdminRefusal::ReadToken => "read_token",
            AdminRefusal::Rate => "rate",
        }
    }
}

/// One counter for each reason.
pub(super) type AdminRefusals = [Counter; AdminRefusal::ALL.len()];

pub(super) fn refusals(registry: &mut Registry) -> AdminRefusals {
    let help = "Requests that the admin listener refused, by reason";
    registry.counters("admin_refused", help, "reason", AdminRefusal::ALL.map(AdminRefusal::as_str))
}
