//! Where a node of a cluster sends a request whose states it does not have.

use redis::{ConnectionAddr, RedisError, ServerErrorKind};

/// Where the states of a slot are, by the word of a server that does not have them.
pub(crate) enum Redirection {
    /// There, from now on; or somewhere, from now on.
    Moved(Option<ConnectionAddr>),
    /// There, for this request.
    Ask(ConnectionAddr),
    /// Partly here and partly there, as yet; or all there, and nobody says where that is.
    TryAgain,
}

/// Where the server sends us, if it does; `asked` is its own address.
pub(crate) fn redirection(error: &RedisError, asked: &ConnectionAddr) -> Option<Redirection> {
    let errors = error.clone().into_server_errors()?;
    let (_, error) = errors.first()?;
    let there = || address(error.details()?.split_ascii_whitespace().nth(1)?, asked);
    match error.kind()? {
        ServerErrorKind::Moved => Some(Redirection::Moved(there())),
        ServerErrorKind::Ask => Some(there().map_or(Redirection::TryAgain, Redirection::Ask)),
        ServerErrorKind::TryAgain => Some(Redirection::TryAgain),
        _ => None,
    }
}

/// `host:port`, as of [`at`].
fn address(text: &str, asked: &ConnectionAddr) -> Option<ConnectionAddr> {
    let (host, port) = text.rsplit_once(':')?;
    at(host, port.parse().ok()?, asked)
}

/// That port of that host; a host without a name is the one that was asked, and one that is `?` is any.
pub(crate) fn at(host: &str, port: u16, asked: &ConnectionAddr) -> Option<ConnectionAddr> {
    let host = match (host, asked) {
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
        let asked = ConnectionAddr::Tcp("asked".to_owned(), 1);
        let told = |text| address(text, &asked).map(|address| address.to_string());
        for (text, there) in [("a:7", "a:7"), (":7", "asked:7"), ("::1:7", "::1:7")] {
            assert_eq!(told(text).as_deref(), Some(there));
        }
        for text in ["", "a", "a:", "a:b", "a:65536", "?:7"] {
            assert_eq!(told(text), None, "{text}");
        }
        assert_eq!(address(":7", &ConnectionAddr::Unix("/socket".into())), None);
    }
}
