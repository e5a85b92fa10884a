//! The settings of several regions: the name of this one, the stores of the others, and what limits mean that do not say it
//! themselves.

use std::path::PathBuf;
use std::time::Duration;

use spillgate::regions::region_tag;
use spillgate::text::yaml::{Node, Value as Yaml};
use spillgate::{AcrossRegions, Regions};

use super::error::SettingError;
use super::store::{StoreTls, StoreUrl};
use super::values::Value;
use super::yaml::single;

/// The setting that names the stores of the other regions.
pub(super) const PEERS: &str = "regions.peers";

/// The other regions, and how this one reaches their stores.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RegionSettings {
    /// The name of this region.
    pub name: Option<String>,
    /// The stores of the other regions. Empty if this is the only region.
    pub peers: Vec<PeerSettings>,
    /// What a limit without `across_regions` means.
    pub default: Option<Across>,
    /// The time between two messages to a region.
    pub sync: Duration,
    /// The maximum number of entries that the other regions have to be told.
    pub max_keys: usize,
    /// The login and the certificates for the stores of all other regions, if a region has none of its own.
    pub login: PeerLogin,
}

/// One other region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSettings {
    pub name: String,
    pub url: StoreUrl,
    pub login: PeerLogin,
}

/// How a server of this region logs in at the store of another region.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerLogin {
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
    pub tls: StoreTls,
}

/// What a limit means for all regions together, without the number of regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Across {
    Each,
    Split,
    Shared,
}

impl Across {
    pub(super) const WORDS: [(&'static str, Across); 3] =
        [("each", Across::Each), ("split", Across::Split), ("shared", Across::Shared)];
}

impl RegionSettings {
    /// Returns how many regions there are. `None` if this is the only one.
    #[must_use]
    pub fn count(&self) -> Option<Regions> {
        u8::try_from(self.peers.len() + 1).ok().and_then(Regions::new)
    }

    /// Returns what a limit means that does not say it.
    #[must_use]
    pub fn across(&self) -> AcrossRegions {
        match (self.default, self.count()) {
            (Some(Across::Split), Some(regions)) => AcrossRegions::Split(regions),
            (Some(Across::Shared), Some(regions)) => AcrossRegions::Shared(regions),
            _ => AcrossRegions::Each,
        }
    }
}

impl Value<'_> {
    /// Reads the name of a region: a short word, because it is a label of metrics and a part of paths.
    pub(super) fn region_name(&self) -> Result<String, SettingError> {
        let text = self.text()?;
        if is_name(text) {
            return Ok(text.to_owned());
        }
        let help = "write 1 to 32 lower-case letters, digits and dashes, such as eu-west-1";
        Err(SettingError::new(&self.node.at.bytes(), format!("`{text}` is not the name of a region"), help))
    }

    /// Reads the stores of the other regions: `[us=rediss://HOST:PORT]`, or `{us: rediss://HOST:PORT}`, or
    /// `{us: {url: rediss://HOST:PORT, user: NAME}}`.
    pub(super) fn peers(&self) -> Result<Vec<PeerSettings>, SettingError> {
        if let Yaml::Map(members) = &self.node.value {
            return members.iter().map(|(name, node)| self.peer(name, node)).collect();
        }
        // The URL of a cluster has commas, as a list of regions in a flag has. A part without a name belongs to the region
        // before it.
        let mut named: Vec<(Value<'_>, String, String)> = Vec::new();
        for item in self.items()? {
            let text = item.text()?.to_owned();
            match text.split_once('=').filter(|(name, _)| is_name(name)) {
                Some((name, url)) => named.push((item, name.to_owned(), url.to_owned())),
                None => match named
                    .last_mut()
                    .filter(|(_, _, url)| url.contains("-cluster://") || url.contains("-sentinel://"))
                {
                    Some((_, _, url)) => *url = format!("{url},{text}"),
                    None => {
                        let help = "write NAME=URL, with a name of lower-case letters, digits and dashes: us=rediss://HOST:PORT";
                        return Err(SettingError::new(
                            &item.node.at.bytes(),
                            "this is not a region and its store",
                            help,
                        ));
                    }
                },
            }
        }
        named.into_iter().map(|(item, name, url)| item.peer_at(name, &url, PeerLogin::default())).collect()
    }

    fn peer(&self, name: &Node, node: &Node) -> Result<PeerSettings, SettingError> {
        let region = Value { node: name, ..*self }.region_name()?;
        let Yaml::Map(members) = &node.value else {
            let own = Value { node, ..*self };
            return own.peer_at(region, own.text()?, PeerLogin::default());
        };
        let (mut url, mut login) = (None, PeerLogin::default());
        for (key, value) in members {
            let value = Value { node: value, ..*self };
            match single(key) {
                Some("url") => url = Some(value.text()?),
                Some("user") => login.user = Some(value.string()?),
                Some("password_file") => login.password_file = Some(value.path_buf()?),
                Some("tls") => login.tls = value.peer_tls()?,
                other => {
                    let message = format!("unknown key `{PEERS}.{region}.{}`", other.unwrap_or_default());
                    let help = "the keys of a region are url, user, password_file and tls";
                    return Err(SettingError::new(&key.at.bytes(), message, help));
                }
            }
        }
        let none = || {
            let help = "write `url: rediss://HOST:PORT`";
            SettingError::new(&name.at.bytes(), format!("the region `{region}` has no `url`"), help)
        };
        let url = url.ok_or_else(none)?;
        Value { node, ..*self }.peer_at(region, url, login)
    }

    fn peer_at(&self, name: String, url: &str, login: PeerLogin) -> Result<PeerSettings, SettingError> {
        let node = Node { value: Yaml::Text { text: url.into(), quoted: false }, ..self.node.clone() };
        let url = StoreUrl::read(&Value { node: &node, ..*self })?;
        if url == StoreUrl::Memory {
            let help = "write the URL of the shared store of that region: rediss://HOST:PORT";
            let message = format!("the store of the region `{name}` is memory, which no other region can reach");
            return Err(SettingError::new(&self.node.at.bytes(), message, help));
        }
        Ok(PeerSettings { name, url, login })
    }

    fn peer_tls(&self) -> Result<StoreTls, SettingError> {
        let mut tls = StoreTls::default();
        let Yaml::Map(members) = &self.node.value else {
            let help = "write `tls: {ca: FILE}`";
            return Err(SettingError::new(&self.node.at.bytes(), "`tls` is a group of keys", help));
        };
        for (key, value) in members {
            let value = Value { node: value, ..*self };
            match single(key) {
                Some("ca") => tls.ca = Some(value.path_buf()?),
                Some("cert") => tls.cert = Some(value.path_buf()?),
                Some("key") => tls.key = Some(value.path_buf()?),
                Some("server_name") => tls.server_name = Some(value.string()?),
                Some("skip_name_check") => tls.skip_name_check = value.bool()?,
                other => {
                    let message = format!("unknown key `tls.{}`", other.unwrap_or_default());
                    let help = "the keys of tls are ca, cert, key, server_name and skip_name_check";
                    return Err(SettingError::new(&key.at.bytes(), message, help));
                }
            }
        }
        Ok(tls)
    }
}

fn is_name(text: &str) -> bool {
    let is_sign = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&text.len()) && text.bytes().all(is_sign)
}

/// Finds conflicts between settings of regions. `written` has each key under `regions` that has a value which is not the
/// default.
pub(super) fn conflicts(
    regions: &RegionSettings,
    own: &StoreUrl,
    written: &[&'static str],
) -> Vec<(&'static str, String, &'static str)> {
    let mut found = Vec::new();
    if regions.peers.is_empty() {
        let help = "set `regions.peers` to the stores of the other regions, or remove this setting";
        let without = written.iter().filter(|path| **path != PEERS);
        return without.map(|path| (*path, format!("`{path}` has no effect without `regions.peers`"), help)).collect();
    }
    if regions.name.is_none() {
        let message = "`regions.peers` names other regions, but this one has no name".to_owned();
        found.push((PEERS, message, "set `regions.name` to the name of this region"));
    }
    if regions.default.is_none() {
        let message =
            "`regions.peers` needs `regions.default`: what limits mean that do not say it themselves".to_owned();
        let help = "set `regions.default` to each (each region admits the whole limit), split or shared";
        found.push((PEERS, message, help));
    }
    if regions.count().is_none() {
        let message =
            format!("there are {} regions with this one, and at most {} work", regions.peers.len() + 1, Regions::MAX);
        found.push((PEERS, message, "name fewer regions"));
    }
    for (i, peer) in regions.peers.iter().enumerate() {
        if regions.name.as_deref() == Some(&*peer.name) {
            let message = format!("`{}` is the name of this region, and of another", peer.name);
            found.push((PEERS, message, "name only the other regions here, each by its own name"));
        }
        for other in &regions.peers[..i] {
            if other.name == peer.name {
                found.push((
                    PEERS,
                    format!("two regions have the name `{}`", peer.name),
                    "give each region its own name",
                ));
            } else if region_tag(&other.name) == region_tag(&peer.name) {
                let message = format!("the names `{}` and `{}` have one check value", other.name, peer.name);
                found.push((PEERS, message, "rename one of these regions, for example with a number at its end"));
            } else if other.url == peer.url {
                let message = format!("the regions `{}` and `{}` have one store", other.name, peer.name);
                found.push((PEERS, message, "give each region its own store"));
            }
        }
        if peer.url == *own {
            let message = format!("the region `{}` has the store of this region, which is `store.url`", peer.name);
            found.push((PEERS, message, "give each region its own store"));
        }
        let login = &peer.login;
        if login.tls != StoreTls::default() && !peer.url.speaks_tls() {
            let message = format!("the region `{}` has `tls`, but its URL does not use TLS", peer.name);
            found.push((PEERS, message, "write rediss:// (with a second s) in its URL, or remove `tls`"));
        }
        if login.user.is_some() && login.password_file.is_none() && regions.login.password_file.is_none() {
            let message = format!("the user of the region `{}` has no password", peer.name);
            found.push((PEERS, message, "set `password_file` for this region, or `regions.password_file` for all"));
        }
    }
    for path in written.iter().filter(|path| path.starts_with("regions.tls.")) {
        if !regions.peers.iter().any(|peer| peer.url.speaks_tls()) {
            let message = format!("`{path}` is for TLS, but no URL in `regions.peers` uses TLS");
            found.push((*path, message, "write rediss:// (with a second s) in these URLs, or remove this setting"));
        }
    }
    if regions.login.user.is_some() && regions.login.password_file.is_none() {
        let message = "`regions.user` has no password".to_owned();
        found.push(("regions.user", message, "set `regions.password_file` to a file with the user's password"));
    }
    found
}

#[cfg(test)]
mod tests {
    use spillgate::text::Diagnostic;

    use super::super::{SettingsFile, Sources, resolve};
    use super::*;

    fn read(text: &str) -> Result<RegionSettings, Vec<Diagnostic>> {
        let file = SettingsFile { name: "/etc/spillgate/a.yaml".into(), text: text.into() };
        resolve(&Sources { file: Some(file), ..Sources::default() }).map(|resolved| resolved.settings.regions)
    }

    fn named(peers: &str) -> String {
        format!("regions: {{name: eu, default: split, peers: {peers}}}")
    }

    #[test]
    fn regions_are_a_list_or_a_map() {
        let expected = [("us", "redis://h:1"), ("ap", "redis-cluster://a:1,b:2")];
        for text in [
            "[us=redis://h:1, 'ap=redis-cluster://a:1,b:2']",
            "[us=redis://h:1, ap=redis-cluster://a:1, b:2]",
            "{us: redis://h:1, ap: 'redis-cluster://a:1,b:2'}",
            "{us: {url: redis://h:1}, ap: {url: 'redis-cluster://a:1,b:2'}}",
        ] {
            let regions = read(&named(text)).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
            let peers: Vec<_> = regions.peers.iter().map(|peer| (&*peer.name, peer.url.to_string())).collect();
            let peers: Vec<_> = peers.iter().map(|(name, url)| (*name, &**url)).collect();
            assert_eq!(peers, expected, "{text}");
            assert_eq!(regions.count().map(Regions::get), Some(3));
            assert_eq!(regions.across().as_str(), "split");
        }
        let regions = read(&named("{us: {url: rediss://h:1, user: u, password_file: p, tls: {ca: c}}}"));
        let login = &regions.expect("the settings are valid").peers[0].login;
        assert_eq!(login.user.as_deref(), Some("u"));
        assert_eq!(login.password_file.as_deref(), Some("/etc/spillgate/p".as_ref()));
        assert_eq!(login.tls.ca.as_deref(), Some("/etc/spillgate/c".as_ref()));
        let alone = read("workers: 1").expect("the settings are valid");
        assert_eq!((alone.count(), alone.across()), (None, AcrossRegions::Each));
    }

    #[test]
    fn settings_that_contradict_each_other_are_errors_without_passwords() {
        let nine = (0..8).map(|i| format!("r{i}=redis://h:{i}")).collect::<Vec<_>>().join(", ");
        for (text, part) in [
            ("regions: {name: eu}".to_owned(), "`regions.name` has no effect without `regions.peers`"),
            ("regions: {sync: 50ms}".to_owned(), "`regions.sync` has no effect without"),
            ("regions: {default: each, peers: [us=redis://h]}".to_owned(), "but this one has no name"),
            ("regions: {name: eu, peers: [us=redis://h]}".to_owned(), "needs `regions.default`"),
            (named(&format!("[{nine}]")), "there are 9 regions with this one, and at most 8 work"),
            (named("[us=redis://h:1, us=redis://h:2]"), "two regions have the name `us`"),
            (named("[us=redis://u:S3cret@h:1, ap=redis://u:S3cret@h:1]"), "the regions `us` and `ap` have one store"),
            (named("[eu=redis://h:1]"), "`eu` is the name of this region, and of another"),
            (
                format!("store: {{url: 'redis://u:S3cret@h:1'}}\n{}", named("[us=redis://u:S3cret@h:1]")),
                "the region `us` has the store of this region, which is `store.url`",
            ),
            (
                named("{us: {url: redis://h:1, tls: {ca: c}}}"),
                "the region `us` has `tls`, but its URL does not use TLS",
            ),
            (
                "regions: {name: eu, default: split, peers: [us=redis://h:1], tls: {ca: c}}".to_owned(),
                "`regions.tls.ca` is for TLS, but no URL in `regions.peers` uses TLS",
            ),
            (named("[us=memory]"), "is memory, which no other region can reach"),
            (named("[redis://u:S3cret@h:1]"), "this is not a region and its store"),
            (named("[us=redis:/u:S3cret@h:1]"), "is not a store"),
            (named("{us: {user: u}}"), "the region `us` has no `url`"),
            (named("{us: {url: redis://h:1, user: u}}"), "the user of the region `us` has no password"),
            (named("{us: {url: 'redis://u:S3cret@h:1', pass: S3cret}}"), "unknown key `regions.peers.us.pass`"),
            (named("{us: {url: 'redis://u:S3cret@h:1', tls: {key_file: k}}}"), "unknown key `tls.key_file`"),
            (named("{US: redis://h:1}"), "`US` is not the name of a region"),
            ("regions: {name: eu, default: shard, peers: [us=redis://h]}".to_owned(), "`shard` is not a value"),
            (
                "regions: {name: eu, default: split, sync: 1ms, peers: [us=redis://h]}".to_owned(),
                "`1ms` is out of range",
            ),
            (
                "regions: {name: eu, default: split, user: u, peers: [us=redis://h]}".to_owned(),
                "`regions.user` has no password",
            ),
        ] {
            let errors = read(&text).expect_err(&text);
            let shown = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            assert!(shown.contains(part), "{text}: {shown}");
            assert!(!shown.contains("S3cret"), "{text}: {shown}");
            assert!(errors.iter().all(|error| !error.help().is_empty()), "{text}");
        }
    }

    #[test]
    fn passwords_of_regions_are_not_shown() {
        let text = named("[us=redis://u:S3cret@h:1, ap=rediss://v:S3cret@i:2]");
        let file = SettingsFile { name: "a.yaml".into(), text };
        let resolved = resolve(&Sources { file: Some(file), ..Sources::default() });
        let resolved = resolved.expect("the settings are valid");
        assert_eq!(resolved.origins[PEERS].1, "us=redis://u:***@h:1,ap=rediss://v:***@i:2");
        assert!(!format!("{:?}", resolved.settings).contains("S3cret"));
    }
}
