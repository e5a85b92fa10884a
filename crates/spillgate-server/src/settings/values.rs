//! Reads the values of settings from text: addresses, durations, sizes, counts, words.
//!
//! The file, the flags and the environment use the same readers, so that a value is written in the same way everywhere.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use spillgate::text::nearest;
use spillgate::text::yaml::{Node, Value as Yaml};
use spillgate::units::{UnitError, format_duration, parse_bytes, parse_count};
use spillgate_http::{EntrySource, ValueSource};
use spillgate_service::Grants;
use spillgate_service::text::duration;

use crate::listener::Listen;

use super::error::SettingError;
use super::yaml::single;

/// The text of a value, before it is read.
pub(super) struct Value<'v> {
    pub(super) node: &'v Node,
    /// The key as in a file: `limits.body`.
    pub(super) path: &'v str,
    /// The folder where relative paths start.
    pub(super) folder: &'v Path,
}

pub(super) const YEAR: Duration = Duration::from_secs(31_536_000);

type Read<T> = Result<T, SettingError>;

impl<'v> Value<'v> {
    fn of(&self, node: &'v Node) -> Value<'v> {
        Value { node, ..*self }
    }

    fn error(&self, message: impl Into<String>, help: impl Into<String>) -> SettingError {
        SettingError::new(&self.node.at.bytes(), message, help)
    }

    /// Returns the text of a single value, which must not be empty.
    pub(super) fn text(&self) -> Read<&'v str> {
        let (what, help) = match &self.node.value {
            Yaml::Text { text, .. } if !text.trim().is_empty() => return Ok(text.trim()),
            Yaml::Null | Yaml::Text { .. } => {
                ("has no value", "write a value, or leave the key out to get the default")
            }
            Yaml::List(_) => ("is one value, not a list", "take the brackets or dashes away"),
            Yaml::Map(_) => ("is one value, not a group of keys", "write the value right after the colon"),
        };
        Err(self.error(format!("`{}` {what}", self.path), help))
    }

    /// Returns the members of a list. A single value counts as a list with one member.
    pub(super) fn items(&self) -> Read<Vec<Value<'v>>> {
        match (&self.node.value, single(self.node)) {
            (Yaml::List(items), _) => Ok(items.iter().map(|item| self.of(item)).collect()),
            (_, Some(text)) if text.trim().is_empty() => Err(self
                .error(format!("`{}` has no value", self.path), "write a list: `[a, b]`, or `[]` for an empty list")),
            (_, Some(_)) => Ok(vec![self.of(self.node)]),
            (_, None) => Err(self.error(format!("`{}` is a list, not a group of keys", self.path), "write `[a, b]`")),
        }
    }

    pub(super) fn string(&self) -> Read<String> {
        self.text().map(str::to_owned)
    }

    pub(super) fn path_buf(&self) -> Read<PathBuf> {
        Ok(self.folder.join(self.text()?))
    }

    pub(super) fn bool(&self) -> Read<bool> {
        match self.text()? {
            "true" | "on" | "yes" => Ok(true),
            "false" | "off" | "no" => Ok(false),
            other => Err(self.error(format!("`{other}` is neither true nor false"), "write on, off, true or false")),
        }
    }

    /// Reads one of a few words.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Read<T> {
        let text = self.text()?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let choices: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let near = nearest(text, choices.iter().copied());
        let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        let help = format!("{near}write one of: {}", choices.join(", "));
        Err(self.error(format!("`{text}` is not a value of `{}`", self.path), help))
    }

    /// Reads a filter of the log: `info`, or `info,spillgate=debug`.
    pub(super) fn log_filter(&self) -> Read<String> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let text = self.text()?;
        // Each part must end with a level. Without this check, the filter would take a mistyped level for the name of a
        // module.
        let is_level = |part: &str| LEVELS.contains(&part.rsplit('=').next().unwrap_or_default().trim());
        let parsed = tracing_subscriber::EnvFilter::builder().parse(text);
        if text.split(',').all(is_level) && parsed.is_ok() {
            return Ok(text.to_owned());
        }
        let help = "write error, warn, info, debug or trace, or a filter such as info,spillgate=debug";
        Err(self.error(format!("`{text}` is not a log level"), help))
    }

    /// Reads the name of a host: `spillgate.internal`.
    pub(super) fn host_name(&self) -> Read<String> {
        let text = self.text()?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if text.len() <= 253 && text.bytes().all(is_name) {
            return Ok(text.trim_end_matches('.').to_owned());
        }
        let help = "write a name without a port or a path, such as spillgate.internal";
        Err(self.error(format!("`{text}` is not the name of a host"), help))
    }

    /// Reads the origin of a web page as browsers write it: `https://app.example`. `null` is no origin: a browser sends it for
    /// pages of every site.
    pub(super) fn origin(&self) -> Read<String> {
        let text = self.text()?;
        let found = text.split_once("://").filter(|(scheme, host)| {
            let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
            let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
            let is_short = text.len() <= 300;
            let is_whole = !scheme.is_empty() && !host.is_empty() && !host.starts_with(':');
            is_short && is_whole && scheme.bytes().all(is_scheme) && host.bytes().all(is_host)
        });
        let Some((scheme, host)) = found else {
            let help = "write a scheme and a name, with a port if the URL of the page has one, and without a path: \
                        https://app.example";
            return Err(self.error(format!("`{text}` is not the origin of a web page"), help));
        };
        // Browsers leave out the usual port.
        let port = if scheme.eq_ignore_ascii_case("https") { ":443" } else { ":80" };
        let is_web = scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http");
        let host = host.strip_suffix(port).filter(|_| is_web).unwrap_or(host);
        Ok(format!("{scheme}://{host}"))
    }

    /// Reads an address to listen on: `0.0.0.0:8080`, `[::]:8080`, `unix:/path` or `off`.
    pub(super) fn listen(&self) -> Read<Option<Listen>> {
        let text = self.text()?;
        if matches!(text, "off" | "false" | "no") {
            return Ok(None);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(self.error("`unix:` has no path", "write the socket's path: unix:/run/spillgate.sock"));
            }
            return Ok(Some(Listen::Unix(self.folder.join(path))));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Some(Listen::Tcp(address)));
        }
        let port = text.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        let help = match (port, text.rsplit_once(':').map(|(host, _)| host)) {
            (Some(port), Some("localhost")) => format!("host names are not resolved: write 127.0.0.1:{port}"),
            (Some(port), None | Some("" | "*")) => {
                format!("write 127.0.0.1:{port} for this machine only, or 0.0.0.0:{port} for every interface")
            }
            _ => "write an IP address and a port (0.0.0.0:8080, [::]:8080), unix:/path, or off".to_owned(),
        };
        Err(self.error(format!("`{text}` is not an address to listen on"), help))
    }

    fn within(&self, value: u64, range: &RangeInclusive<u64>) -> Read<u64> {
        if range.contains(&value) {
            return Ok(value);
        }
        let (text, least, most) = (self.text()?, range.start(), range.end());
        let help = format!("choose {least} to {most}");
        Err(self.error(format!("`{text}` is out of range for `{}`", self.path), help))
    }

    /// Reads a whole number within `range`. `parse` parses the text.
    fn whole(
        &self,
        parse: impl Fn(&str) -> Result<u64, UnitError>,
        range: &RangeInclusive<u64>,
        help: &str,
    ) -> Read<u64> {
        let text = self.text()?;
        let value = parse(text).map_err(|error| match error {
            UnitError::TooLarge => self.error(format!("`{text}` is too large"), help),
            _ => self.error(format!("`{text}` is not a value of `{}`", self.path), help),
        })?;
        self.within(value, range)
    }

    /// Reads a count: `500`, `10k`, `10M`, `1G`.
    pub(super) fn count(&self, range: RangeInclusive<u64>) -> Read<u64> {
        self.whole(parse_count, &range, "write a whole number: 500, 10k, 10M")
    }

    /// Reads a count, or the word `word`, which means `None`.
    pub(super) fn count_or(&self, word: &str, range: RangeInclusive<u64>) -> Read<Option<u64>> {
        if self.text()? == word {
            return Ok(None);
        }
        let with_word = |error: SettingError| SettingError { help: format!("{}, or `{word}`", error.help), ..error };
        self.count(range).map(Some).map_err(with_word)
    }

    /// Reads a count for each second, such as `1000/s` or `1000`, or the word `word`, which means `None`.
    pub(super) fn count_each_second_or(&self, word: &str, range: RangeInclusive<u32>) -> Read<Option<NonZeroU32>> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        let parse = |text: &str| parse_count(text.strip_suffix("/s").unwrap_or(text).trim_end());
        if self.text()? == word {
            return Ok(None);
        }
        let count = self.whole(parse, &range, "write a number of keys a second: 1000/s, 10k/s, or `off`")?;
        Ok(u32::try_from(count).ok().and_then(NonZeroU32::new))
    }

    /// Reads a number of bytes: `256`, `64KiB`, `1MB`.
    pub(super) fn size(&self, range: RangeInclusive<u64>) -> Read<usize> {
        let value = self.whole(parse_bytes, &range, "write bytes: 1024, 64KiB, 1MiB")?;
        usize::try_from(value).map_err(|_| self.error("too large for this machine", "choose a smaller size"))
    }

    /// Reads a duration such as `10ms`, `1s` or `1h`, from 1 ns to one year.
    pub(super) fn duration(&self) -> Read<Duration> {
        self.duration_from(Duration::from_nanos(1))
    }

    /// Reads a duration that is at least `least`.
    pub(super) fn duration_from(&self, least: Duration) -> Read<Duration> {
        self.duration_within(least..=YEAR)
    }

    pub(super) fn duration_within(&self, range: RangeInclusive<Duration>) -> Read<Duration> {
        let text = self.text()?;
        match duration(text) {
            Ok(value) if range.contains(&value) => Ok(value),
            Ok(_) => {
                let (least, most) = (format_duration(*range.start()), format_duration(*range.end()));
                let help = format!("choose {least} to {most}");
                Err(self.error(format!("`{text}` is out of range for `{}`", self.path), help))
            }
            Err(help) => Err(self.error(format!("`{text}` is not a duration"), help)),
        }
    }

    /// Reads a duration within `range`, or `off`, which means `None`.
    pub(super) fn duration_or_off(&self, range: RangeInclusive<Duration>) -> Read<Option<Duration>> {
        if self.text()? == "off" {
            return Ok(None);
        }
        let with_off = |error: SettingError| SettingError { help: format!("{}, or `off`", error.help), ..error };
        self.duration_within(range).map(Some).map_err(with_off)
    }

    /// Reads a network such as `10.0.0.0/8`, or one address.
    pub(super) fn network(&self) -> Read<IpNet> {
        let text = self.text()?;
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(network.trunc());
        }
        let one = text.parse::<std::net::IpAddr>().map(IpNet::from);
        one.map_err(|_| {
            self.error(
                format!("`{text}` is not a network"),
                "write an address and the length of its prefix: 10.0.0.0/8, fd00::/8",
            )
        })
    }

    /// Reads what clients may do: `[override, refund]`.
    pub(super) fn grants(&self) -> Read<Grants> {
        let mut grants = Grants::default();
        for item in self.items()? {
            match item.word(&[("refund", true), ("override", false)])? {
                true => grants.refund = true,
                false => grants.overriding = true,
            }
        }
        Ok(grants)
    }

    /// Reads descriptors: `[[{key: path, from: path}]]`.
    pub(super) fn descriptors(&self) -> Read<Vec<Vec<EntrySource>>> {
        const HELP: &str =
            "write a list of descriptors, each a list of entries: [[{key: remote_address, from: client_ip}]]";
        let Yaml::List(descriptors) = &self.node.value else {
            return Err(self.error(format!("`{}` is a list of descriptors", self.path), HELP));
        };
        let entries = |descriptor: &'v Node| match &descriptor.value {
            Yaml::List(entries) if !entries.is_empty() => entries.iter().map(|e| self.of(e).entry()).collect(),
            _ => Err(self.of(descriptor).error("a descriptor is a list of entries, at least one", HELP)),
        };
        descriptors.iter().map(entries).collect()
    }

    fn entry(&self) -> Read<EntrySource> {
        const HELP: &str = "write `{key: NAME, from: client_ip | path | method | host | \"header:NAME\" | \"cookie:NAME\" | \
                            \"query:NAME\" | \"value:TEXT\"}`";
        let Yaml::Map(members) = &self.node.value else {
            return Err(self.error("an entry has a `key` and a `from`", HELP));
        };
        if let Some((name, _)) = members.iter().find(|(name, _)| !matches!(single(name), Some("key" | "from"))) {
            let message = format!("unknown key `{}`", single(name).unwrap_or_default());
            return Err(self.of(name).error(message, HELP));
        }
        let member = |wanted: &str| {
            let found = members.iter().find(|(name, _)| single(name) == Some(wanted)).map(|(_, node)| self.of(node));
            found.ok_or_else(|| self.error(format!("this entry has no `{wanted}`"), HELP))
        };
        let (key, from) = (member("key")?, member("from")?);
        Ok(EntrySource { key: key.string()?, from: from.value_source(HELP)? })
    }

    fn value_source(&self, help: &str) -> Read<ValueSource> {
        let text = self.text()?;
        match text.split_once(':') {
            None if text == "client_ip" => Ok(ValueSource::ClientIp),
            None if text == "path" => Ok(ValueSource::Path),
            None if text == "method" => Ok(ValueSource::Method),
            None if text == "host" => Ok(ValueSource::Host),
            // The name of a cookie has the same characters as that of a header field.
            Some(("cookie", name)) if is_header_name(name) => Ok(ValueSource::Cookie(name.to_owned())),
            Some(("query", name)) if !name.is_empty() => Ok(ValueSource::Query(name.to_owned())),
            Some(("header", name)) if is_header_name(name) => Ok(ValueSource::Header(name.to_ascii_lowercase())),
            Some(("value", value)) if !value.is_empty() => Ok(ValueSource::Value(value.to_owned())),
            Some(("header", name)) => Err(self.error(
                format!("`{name}` is not the name of a header field"),
                "write one such as header:X-Forwarded-Uri",
            )),
            Some(("cookie", name)) => {
                Err(self.error(format!("`{name}` is not the name of a cookie"), "write one such as cookie:session"))
            }
            _ => Err(self.error(format!("`{text}` is not a source of a value"), help)),
        }
    }
}

fn is_header_name(name: &str) -> bool {
    http::HeaderName::from_bytes(name.as_bytes()).is_ok()
}
