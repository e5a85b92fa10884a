//! Redirections: where a node of a cluster sends a request whose states it does not have.
//!
//! The errors MOVED, ASK and TRYAGAIN name the right node in text. Everything above this works with addresses.
//!
//! ```text
//! -MOVED 3999 10.0.0.7:6381      the slot has moved: send there, and read the slot map again
//! -ASK 3999 10.0.0.7:6381        the slot is moving, and this key is gone: send ASKING and the command there
//! -TRYAGAIN Multiple keys ..     the slot is moving, and its keys are on two nodes: wait and try again
//! ```
//!
//! A node that redirects has executed nothing. So a redirected request is never charged twice.

use redis::{ConnectionAddr, RedisError, ServerErrorKind};

/// Where the states of a slot are, according to a node that does not have them.
pub(crate) enum Redirection {
    /// The slot has moved to this node. `None` if the error names no node.
    Moved(Option<ConnectionAddr>),
    /// This request, and only this one, must be sent to that node.
    Ask(ConnectionAddr),
    /// Some of the states are here and some are there, or the error names no node. Send the request again later.
    TryAgain,
}

/// The redirection in the error, if it is one. `sender` is the address of the node that sent it.
pub(crate) fn redirection(error: &RedisError, sender: &ConnectionAddr) -> Option<Redirection> {
    let errors = error.clone().into_server_errors()?;
    let (_, error) = errors.first()?;
    let there = || address(error.details()?.split_ascii_whitespace().nth(1)?, sender);
    match error.kind()? {
        ServerErrorKind::Moved => Some(Redirection::Moved(there())),
        ServerErrorKind::Ask => Some(there().map_or(Redirection::TryAgain, Redirection::Ask)),
        ServerErrorKind::TryAgain => Some(Redirection::TryAgain),
        _ => None,
    }
}

/// Parses `host:port`, with a host as described at [`at`].
fn address(text: &str, sender: &ConnectionAddr) -> Option<ConnectionAddr> {
    let (host, port) = text.rsplit_once(':')?;
    at(host, port.parse().ok()?, sender)
}

/// The address of that host and port. An empty host means the node that was asked. The host `?` is unknown.
pub(crate) fn at(host: &str, port: u16, sender: &ConnectionAddr) -> Option<ConnectionAddr> {
    let host = match (host, sender) {
        ("", ConnectionAddr::Tcp(host, _)) => host,
        ("", _) | ("?", _) => return None,
        (host, _) => host,
    };
    Some(ConnectionAddr::Tcp(host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use redis::ConnectionAddr;

    use super::address;

    #[test]
    fn addresses_that_servers_send_us_to() {
        let sender = ConnectionAddr::Tcp("asked".to_owned(), 1);
        let parsed = |text| address(text, &sender).map(|address| address.to_string());
        for (text, there) in [("a:7", "a:7"), (":7", "asked:7"), ("::1:7", "::1:7")] {
            assert_eq!(parsed(text).as_deref(), Some(there));
        }
        for text in ["", "a", "a:", "a:b", "a:65536", "?:7"] {
            assert_eq!(parsed(text), None, "{text}");
        }
        assert_eq!(address(":7", &ConnectionAddr::Unix("/socket".into())), None);
    }
}
