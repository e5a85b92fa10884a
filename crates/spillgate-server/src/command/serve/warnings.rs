//! Warnings about the rights of callers of the admin listener and the HTTP listener, which the log shows at the start.
//!
//! Without these warnings, an operator notices a wrong right too late: after a stranger has read or used up a limit, or
//! when Prometheus has read nothing.

use crate::listener::Listen;
use spillgate_admin::Access;

pub(super) const SHORT: &str = "an admin token has fewer than 16 characters, so a program could find it by trying";
const OPEN: &str = "the admin listener has no token, so everyone who reaches it can read. A request by a name of this server \
                    gets 403, also from Prometheus, until admin_hosts has the name";

const OPEN_HTTP: &str = "the HTTP listener is open to other machines, so everyone who reaches it can use up limits. Bind it to a \
                         loopback or private address (setting http), or set http_hosts to the names that your callers use";

/// Returns a warning if other machines reach the HTTP listener, and the settings do not say by which names. The default
/// address is such a case, because a container needs it.
pub(super) fn of_http(http: Option<&Listen>, hosts: &[String]) -> Option<&'static str> {
    (http.is_some_and(is_reachable) && hosts.is_empty()).then_some(OPEN_HTTP)
}

/// Returns whether other machines can reach the listener.
fn is_reachable(listen: &Listen) -> bool {
    match listen {
        Listen::Tcp(address) => !address.ip().to_canonical().is_loopback(),
        Listen::Unix(_) => false,
    }
}

/// Returns a warning for each right that the operator may not expect.
pub(super) fn of_access(admin: Option<&Listen>, hosts: &[String], access: &Access) -> Vec<&'static str> {
    let is_open = admin.is_some_and(is_reachable) && !access.has_token() && hosts.is_empty();
    let warnings = [(access.has_short_token(), SHORT), (is_open, OPEN)];
    warnings.into_iter().filter(|(is_true, _)| *is_true).map(|(_, warning)| warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Option<Listen> {
        match text {
            "off" => None,
            "unix" => Some(Listen::Unix("/a.sock".into())),
            address => Some(Listen::Tcp(address.parse().expect("it is an address"))),
        }
    }

    #[test]
    fn an_operator_is_warned_of_an_open_http_listener_until_its_names_are_set() {
        for http in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "unix", "off"] {
            assert_eq!(of_http(listen(http).as_ref(), &[]), None, "{http}");
        }
        for http in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            assert_eq!(of_http(listen(http).as_ref(), &[]), Some(OPEN_HTTP), "{http}");
            assert_eq!(of_http(listen(http).as_ref(), &["gate.internal".to_owned()]), None, "{http}");
        }
    }

    fn warnings(admin: &str, token: Option<&str>, hosts: &[&str]) -> Vec<&'static str> {
        let admin = listen(admin);
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let access = Access::new(token, None, hosts.clone()).expect("the token is valid");
        of_access(admin.as_ref(), &hosts, &access)
    }

    #[test]
    fn an_operator_is_warned_of_short_tokens_and_of_an_open_listener() {
        for admin in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "unix", "off"] {
            assert_eq!(warnings(admin, None, &[]), [""; 0], "{admin}");
            assert_eq!(warnings(admin, Some("15-characters--"), &[]), [SHORT], "{admin}");
        }
        for admin in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[2001:db8::1]:1"] {
            assert_eq!(warnings(admin, None, &[]), [OPEN], "{admin}");
            assert_eq!(warnings(admin, None, &["gate.internal"]), [""; 0], "{admin}");
            assert_eq!(warnings(admin, Some("16-characters---"), &[]), [""; 0], "{admin}");
            assert_eq!(warnings(admin, Some("15-characters--"), &[]), [SHORT], "{admin}");
        }
    }
}
