//! The settings of TLS on the listeners.

use std::path::PathBuf;

use super::Settings;
use super::error::SettingError;
use super::values::Value;
use crate::listener::{ClientPattern, Listen};

/// The listeners that can have TLS. Probes and Prometheus ask `health`, and they trust no authority of the operator and
/// send no certificate.
const LISTENERS: [&str; 3] = ["http", "grpc", "admin"];

/// TLS on the listeners. Without `cert`, no listener has TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListenerTls {
    /// The file with the certificate of this server.
    pub cert: Option<PathBuf>,
    /// The file with the key of this certificate.
    pub key: Option<PathBuf>,
    /// The listeners with TLS. `None` means each of `grpc`, `http` and `admin` that has a TCP address.
    pub listeners: Option<Vec<&'static str>>,
    /// The file with the authorities that sign the certificates of clients.
    pub client_ca: Option<PathBuf>,
    /// The listeners whose clients need a certificate. `None` means each that has TLS.
    pub client_listeners: Option<Vec<&'static str>>,
    /// The clients that may connect. Empty means every client with a certificate of these authorities.
    pub client_names: Vec<ClientPattern>,
    /// Whether clients may also connect without TLS.
    pub allows_plain: bool,
}

impl Settings {
    /// Returns whether the listener of this name has TLS.
    #[must_use]
    pub fn has_tls(&self, listener: &str) -> bool {
        let is_tcp =
            |(name, listen): &(&str, Option<&Listen>)| *name == listener && matches!(listen, Some(Listen::Tcp(_)));
        let is_named = |names: &Vec<&str>| names.contains(&listener);
        self.tls.cert.is_some()
            && LISTENERS.contains(&listener)
            && self.tls.listeners.as_ref().is_none_or(is_named)
            && self.listeners().iter().any(is_tcp)
    }

    /// Returns whether clients of the listener of this name need a certificate.
    #[must_use]
    pub fn wants_certificates(&self, listener: &str) -> bool {
        let is_named = |names: &Vec<&str>| names.contains(&listener);
        self.tls.client_ca.is_some()
            && self.has_tls(listener)
            && self.tls.client_listeners.as_ref().is_none_or(is_named)
    }
}

impl Value<'_> {
    /// Reads names of listeners: `[grpc, http]`.
    pub(super) fn listener_names(&self) -> Result<Vec<&'static str>, SettingError> {
        let words = LISTENERS.map(|name| (name, name));
        self.items()?.iter().map(|item| item.word(&words)).collect()
    }

    /// Reads a name that the certificate of a client may have.
    pub(super) fn client_pattern(&self) -> Result<ClientPattern, SettingError> {
        let text = self.text()?;
        ClientPattern::parse(text).ok_or_else(|| {
            let help = "write a DNS name (gateway.internal), all names with one more label (*.internal), a URI \
                        (spiffe://cluster/ns/shop), or all URIs below one (spiffe://cluster/ns/*)";
            SettingError::new(&self.node.at.bytes(), format!("`{text}` is not the name of a client"), help)
        })
    }
}

/// Returns the settings of TLS that contradict each other, or have no effect. `changed` are the keys of this group that the
/// user has set.
pub(super) fn conflicts(settings: &Settings, changed: &[&'static str]) -> Vec<(&'static str, String, &'static str)> {
    let tls = &settings.tls;
    let mut found = Vec::new();
    match (&tls.cert, &tls.key) {
        (Some(_), None) => found.push((
            "tls.cert",
            "`tls.cert` is set without `tls.key`".to_owned(),
            "set `tls.key` to the file with the certificate's key",
        )),
        (None, Some(_)) => found.push((
            "tls.key",
            "`tls.key` is set without `tls.cert`".to_owned(),
            "set `tls.cert` to the file with the key's certificate",
        )),
        (None, None) => {
            for path in changed {
                let message = format!("`{path}` has no effect without `tls.cert`, because no listener has TLS");
                found.push((*path, message, "set `tls.cert` and `tls.key` too, or remove this setting"));
            }
            return found;
        }
        (Some(_), Some(_)) => {}
    }
    let of_names = |names: &Option<Vec<&'static str>>| names.clone().unwrap_or_default();
    for name in of_names(&tls.listeners) {
        match settings.listeners().into_iter().find_map(|(other, listen)| listen.filter(|_| other == name)) {
            Some(Listen::Tcp(_)) => {}
            Some(Listen::Unix(_)) => found.push((
                "tls.listeners",
                format!("`tls.listeners` names `{name}`, which is a Unix socket, and such a socket has no TLS"),
                "take it out of the list, or give it an address IP:PORT. The permissions of its file say who may use it",
            )),
            None => found.push((
                "tls.listeners",
                format!("`tls.listeners` names `{name}`, which is off"),
                "take it out of the list, or give it an address",
            )),
        }
    }
    if found.is_empty() && !settings.listeners().iter().any(|(name, _)| settings.has_tls(name)) {
        let message = "`tls.cert` is set, but no listener has TLS".to_owned();
        found.push(("tls.cert", message, "give a listener an address IP:PORT, and name it in `tls.listeners`"));
    }
    for path in changed.iter().filter(|path| path.starts_with("tls.client_") && tls.client_ca.is_none()) {
        let message = format!("`{path}` has no effect without `tls.client_ca`, because no client needs a certificate");
        found.push((*path, message, "set `tls.client_ca` to the file of the authority that signs them"));
    }
    for name in of_names(&tls.client_listeners) {
        if tls.client_ca.is_some() && found.is_empty() && !settings.has_tls(name) {
            let message = format!("`tls.client_listeners` names `{name}`, which has no TLS");
            found.push((
                "tls.client_listeners",
                message,
                "name it in `tls.listeners` too, or take it out of this list",
            ));
        }
    }
    // A template with an empty list must not let in everybody.
    if changed.contains(&"tls.client_names") && tls.client_names.is_empty() && tls.client_ca.is_some() {
        let message = "`tls.client_names` names no client".to_owned();
        let help = "name the clients that may connect, or remove this setting to let in each client with a certificate of `tls.client_ca`";
        found.push(("tls.client_names", message, help));
    }
    if tls.client_listeners.as_ref().is_some_and(Vec::is_empty) && tls.client_ca.is_some() {
        let message = "`tls.client_listeners` names no listener, so `tls.client_ca` has no effect".to_owned();
        found.push(("tls.client_listeners", message, "name a listener, or remove `tls.client_ca`"));
    }
    if tls.allows_plain && tls.client_ca.is_some() {
        let message =
            "`tls.plain: allow` lets in clients without a certificate, and `tls.client_ca` wants one".to_owned();
        found.push((
            "tls.plain",
            message,
            "remove one of them: first move all clients to TLS, and then ask for certificates",
        ));
    }
    found
}
