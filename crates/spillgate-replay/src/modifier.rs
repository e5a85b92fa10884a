//! What a template makes of the value of a field, such as `{remote_addr|network}`.
//!
//! The functions are those with which the server makes its own keys, so a replay counts the same callers as the server.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;
use memchr::memchr3;
use spillgate::{address_of, client_of};
use spillgate_service::counted_by;

/// The settings of a server that say how it counts clients.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The networks of proxies whose X-Forwarded-For is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// IPv6 clients whose addresses begin with the same bits count as one client. This is the number of these bits.
    pub ipv6_prefix: u8,
}

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings { trusted_proxies: Vec::new(), ipv6_prefix: 64 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modifier {
    /// An address without its port and its brackets.
    Ip,
    /// The network by which the server counts an address.
    Network,
    /// The client in a list of X-Forwarded-For, as the server finds it.
    Client,
    /// The first item of a list.
    First,
    /// The last item of a list.
    Last,
    /// The path of a URI in the form of `from: path`.
    Normal,
}

impl Modifier {
    const NAMES: [(&'static str, Modifier); 6] = [
        ("ip", Modifier::Ip),
        ("network", Modifier::Network),
        ("client", Modifier::Client),
        ("first", Modifier::First),
        ("last", Modifier::Last),
        ("normal", Modifier::Normal),
    ];

    /// Returns the modifier with this name. An error lists the names.
    pub(super) fn parse(name: &str) -> Result<Modifier, String> {
        let known = Modifier::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, modifier)| *modifier).ok_or_else(|| {
            let names = Modifier::NAMES.map(|(name, _)| name).join(", ");
            format!("there is no modifier `{name}`. The modifiers are {names}")
        })
    }

    fn name(self) -> &'static str {
        Modifier::NAMES.iter().find(|(_, modifier)| *modifier == self).map_or("", |(name, _)| name)
    }

    /// Changes a value. A text that is not an address stays as it is if an address is wanted. `peer` is the address of
    /// the connection, if the line has it. Returns `None` if the line does not say who the client is.
    pub(super) fn apply<'v>(
        self,
        value: Option<Cow<'v, str>>,
        peer: Option<&str>,
        settings: &ClientSettings,
    ) -> Option<Cow<'v, str>> {
        if self == Modifier::Client {
            return client(value.as_deref().unwrap_or_default(), peer, settings).map(Cow::Owned);
        }
        let value = value?;
        let address = |written: fn(IpAddr, u8) -> String| {
            address_of(value.as_bytes()).map(|address| written(address, settings.ipv6_prefix))
        };
        let changed = match self {
            Modifier::Ip => address(|address, _| address.to_string()),
            Modifier::Network => address(counted_by::network),
            Modifier::First => value.split(',').next().map(|item| item.trim().to_owned()),
            Modifier::Last => value.rsplit(',').next().map(|item| item.trim().to_owned()),
            Modifier::Normal => Some(counted_by::path(&value).into_owned()),
            Modifier::Client => None,
        };
        Some(changed.map_or(value, Cow::Owned)).filter(|value| !value.is_empty())
    }
}

/// Returns the network of the client in a list of addresses. Without the address of the connection, the last address of
/// the list takes its place, because a proxy has added it.
fn client(list: &str, peer: Option<&str>, settings: &ClientSettings) -> Option<String> {
    let mut entries = list.rsplit(',').filter(|entry| !entry.is_empty()).map(str::as_bytes);
    let peer = peer.and_then(|peer| address_of(peer.as_bytes())).or_else(|| address_of(entries.next()?))?;
    let is_trusted = |address| settings.trusted_proxies.iter().any(|network| network.contains(&address));
    Some(counted_by::network(client_of(peer, entries, is_trusted), settings.ipv6_prefix))
}

/// A value that a server would count in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Port,
    List,
    Ipv6,
    Query,
}

const ODD: [Odd; 4] = [Odd::Port, Odd::List, Odd::Ipv6, Odd::Query];
/// Fewer values than this share, in percent, are not worth a warning.
const WARNING_PERCENT: u64 = 1;
/// The beginning of an example that a warning shows.
const EXAMPLE_BYTES: usize = 80;

impl Odd {
    fn of(value: &str) -> Option<Odd> {
        memchr3(b':', b',', b'?', value.as_bytes())?;
        if let Some((first, last)) = value.split_once(',') {
            let last = last.rsplit(',').next().unwrap_or_default();
            let is_list = [first, last].iter().all(|entry| address_of(entry.as_bytes()).is_some());
            return is_list.then_some(Odd::List).or_else(|| Odd::query(value));
        }
        match value.parse::<IpAddr>() {
            Ok(IpAddr::V6(_)) => Some(Odd::Ipv6),
            Ok(IpAddr::V4(_)) => None,
            Err(_) if address_of(value.as_bytes()).is_some() => Some(Odd::Port),
            Err(_) => Odd::query(value),
        }
    }

    fn query(value: &str) -> Option<Odd> {
        let is_uri = value.starts_with('/') || value.starts_with("http://") || value.starts_with("https://");
        (is_uri && value.contains('?')).then_some(Odd::Query)
    }

    /// Returns what the values are, what follows from it, and the modifier that makes it right.
    const fn words(self) -> (&'static str, &'static str, Modifier) {
        match self {
            Odd::Port => ("addresses with a port", "So each connection counts as a caller", Modifier::Network),
            Odd::List => ("lists of addresses", "So each list counts as a caller", Modifier::Client),
            Odd::Ipv6 => (
                "IPv6 addresses",
                "So each address counts as a caller, but one client has a whole network of them",
                Modifier::Network,
            ),
            Odd::Query => ("URIs with a query", "So each query counts as a path of its own", Modifier::Normal),
        }
    }
}

/// Counts the values of a field of a template that a server would count in another way.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    values: u64,
    counts: [u64; ODD.len()],
    examples: [Option<String>; ODD.len()],
}

impl Seen {
    pub(super) fn look(&mut self, value: &str, modifiers: &[Modifier]) {
        self.values += 1;
        if matches!(modifiers.last(), Some(Modifier::Network | Modifier::Client | Modifier::Normal)) {
            return;
        }
        if let Some(odd) = Odd::of(value) {
            self.counts[odd as usize] += 1;
            self.examples[odd as usize].get_or_insert_with(|| value.chars().take(EXAMPLE_BYTES).collect());
        }
    }

    /// Returns a warning about the most frequent kind of such values, if they are not very few.
    pub(super) fn warning(&self, field: &str, modifiers: &[Modifier], hides: bool) -> Option<String> {
        let (odd, count) =
            ODD.into_iter().zip(self.counts).max_by_key(|(odd, count)| (*count, std::cmp::Reverse(*odd as usize)))?;
        if count == 0 || count * 100 < self.values * WARNING_PERCENT {
            return None;
        }
        let percent = 100.0 * count as f64 / self.values as f64;
        let (what, therefore, right) = odd.words();
        let example = self.examples[odd as usize].as_deref().filter(|_| !hides);
        let example = example.map(|example| format!(", such as {example}")).unwrap_or_default();
        let written = |modifiers: &mut dyn Iterator<Item = Modifier>| {
            modifiers.fold(field.to_owned(), |text, modifier| format!("{text}|{}", modifier.name()))
        };
        let now = written(&mut modifiers.iter().copied());
        let before = modifiers.iter().copied().filter(|modifier| *modifier != Modifier::Ip);
        let then = written(&mut before.chain([right]));
        let proxies =
            if right == Modifier::Client { ", with the networks of your proxies in --trusted-proxies" } else { "" };
        Some(format!(
            "{percent:.0} % of the values of `{{{now}}}` are {what}{example}. {therefore}. Write `{{{then}}}`{proxies}."
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(modifiers: &[&str], value: Option<&str>, peer: Option<&str>) -> Option<String> {
        let trusted_proxies = vec!["10.0.0.0/8".parse().expect("it is a network")];
        let settings = ClientSettings { trusted_proxies, ..ClientSettings::default() };
        let modifiers = modifiers.iter().map(|name| Modifier::parse(name).expect(name));
        let value = value.map(Cow::Borrowed);
        modifiers.fold(value, |value, modifier| modifier.apply(value, peer, &settings)).map(Cow::into_owned)
    }

    #[test]
    fn addresses_are_those_of_the_server() {
        for (modifier, value, expected) in [
            ("ip", "192.0.2.7:4711", "192.0.2.7"),
            ("ip", "[2001:db8:1:2::7]:4711", "2001:db8:1:2::7"),
            ("ip", "::ffff:192.0.2.7", "192.0.2.7"),
            ("ip", "unix:", "unix:"),
            ("network", "192.0.2.7", "192.0.2.7"),
            ("network", "192.0.2.7:4711", "192.0.2.7"),
            ("network", "[2001:db8:1:2::7]:4711", "2001:db8:1:2::/64"),
            ("network", "::ffff:192.0.2.7", "192.0.2.7"),
            ("network", "64:ff9b::192.0.2.7", "192.0.2.7"),
            ("network", "a.example", "a.example"),
            ("first", "192.0.2.7, 10.0.0.1", "192.0.2.7"),
            ("last", "192.0.2.7, 10.0.0.1", "10.0.0.1"),
            ("last", "192.0.2.7", "192.0.2.7"),
            ("normal", "//a/%62/../c?d=e", "/a/c"),
            ("normal", "https://a.example:443/b?c", "/b"),
        ] {
            assert_eq!(apply(&[modifier], Some(value), None).as_deref(), Some(expected), "{value}|{modifier}");
        }
        assert_eq!(apply(&["last", "network"], Some("1.1.1.1, 2001:db8::1"), None).as_deref(), Some("2001:db8::/64"));
        assert_eq!((apply(&["ip"], None, Some("::1")), apply(&["first"], Some(",a"), None)), (None, None));
    }

    #[test]
    fn the_client_is_found_from_the_right() {
        let list = "1.1.1.1, 203.0.113.7, 10.0.0.2";
        for (list, peer, expected) in [
            (Some(list), Some("10.0.0.1:4711"), Some("203.0.113.7")),
            (Some(list), None, Some("203.0.113.7")),
            (Some(list), Some("198.51.100.9"), Some("198.51.100.9")),
            (Some("1.1.1.1, unknown, 10.0.0.2"), Some("10.0.0.1"), Some("10.0.0.2")),
            (Some("10.0.0.3"), Some("unix:"), Some("10.0.0.3")),
            (None, Some("2001:db8:1:2::7"), Some("2001:db8:1:2::/64")),
            (Some("unknown"), None, None),
            (None, None, None),
        ] {
            assert_eq!(apply(&["client"], list, peer).as_deref(), expected, "{list:?} {peer:?}");
        }
    }

    #[test]
    fn a_warning_names_the_modifier() {
        for (value, modifiers, expected) in [
            ("203.0.113.7:40000", &[][..], Some("`{f|network}`.")),
            ("[2001:db8::1]:4", &[], Some("`{f|network}`.")),
            ("2001:db8::1", &[Modifier::Ip], Some("`{f|network}`.")),
            ("::ffff:192.0.2.7", &[Modifier::First], Some("`{f|first|network}`.")),
            (
                "1.1.1.1, 2001:db8::1",
                &[],
                Some("`{f|client}`, with the networks of your proxies in --trusted-proxies."),
            ),
            ("/a?b=1,2", &[], Some("`{f|normal}`.")),
            ("http://a.example/a?b", &[], Some("`{f|normal}`.")),
            ("2001:db8::/64", &[Modifier::Network], None),
            ("192.0.2.7", &[], None),
            ("Mozilla/5.0 (X11; a?), b: c", &[], None),
            ("/a", &[], None),
        ] {
            let mut seen = Seen::default();
            seen.look(value, modifiers);
            let warning = seen.warning("f", modifiers, false);
            assert_eq!(warning.is_some(), expected.is_some(), "{value}: {warning:?}");
            let (warning, expected) = (warning.unwrap_or_default(), expected.unwrap_or_default());
            assert!(warning.ends_with(expected), "{value}: {warning}");
            assert!(expected.is_empty() || warning.starts_with("100 % of") && warning.contains(value), "{warning}");
            assert!(!seen.warning("f", modifiers, true).is_some_and(|hidden| hidden.contains(value)));
        }
        let mut few = Seen::default();
        (0..1000).for_each(|_| few.look("192.0.2.7", &[]));
        (0..9).for_each(|_| few.look("2001:db8::1", &[]));
        assert_eq!(few.warning("f", &[], false), None);
    }
}
