//! Reads redirections: errors with which a node of a cluster says that another node has the keys of a command.
//!
//! The errors MOVED and ASK contain the address of the right node as text. This file parses the text, so that the rest
//! of the store works with addresses.
//!
//! ```text
//! -MOVED 3999 10.0.0.7:6381      the slot has moved: send the command to this address, and read the slot map again
//! -ASK 3999 10.0.0.7:6381        the slot is moving, and the key has moved: send ASKING and the command to this address
//! -TRYAGAIN Multiple keys ..     the slot is moving, and its keys are on two nodes: wait and try again
//! ```
//!
//! A node that redirects has executed nothing. So a redirected request is never charged twice.

use redis::{ConnectionAddr, RedisError, ServerErrorKind};

/// What a node says about a slot whose states it does not have.
pub(crate) enum Redirection {
    /// The slot has moved to this address. `None` if the error contains no address.
    Moved(Option<ConnectionAddr>),
    /// This request must be sent to this address. Other requests for the slot are still sent to the old node.
    Ask(ConnectionAddr),
    /// The states of the request are on two nodes, or an ASK contains no address. Send the request again later.
    TryAgain,
}

/// Returns the redirection in the error. `None` if there is none. `sender` is the address of the node that sent the
/// error.
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

/// Parses `host:port`. The function [`at`] describes the possible hosts.
fn address(text: &str, sender: &ConnectionAddr) -> Option<ConnectionAddr> {
    let (host, port) = text.rsplit_once(':')?;
    at(host, port.parse().ok()?, sender)
}

/// Returns the address of this host and port. An empty host means the host of `sender`. The host `?` means that the
/// node does not know the host, so the result is `None`.
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
