//! Reads lines that are JSON objects. The name of a value is its path, for example `request.headers.Host.0`.
//!
//! Only the wanted values are decoded. The rest of a line is checked and skipped.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::plan::Values;

/// A node in the tree of the wanted paths: one key of a path.
#[derive(Debug, Clone, Default)]
struct Node {
    key: String,
    /// Whether the key names a header. Such a key is compared without case, and with `_` equal to `-`, because servers
    /// write header names in any case, and field names have `_`.
    is_header: bool,
    source: Option<usize>,
    children: Vec<usize>,
}

/// The paths of the wanted values, as a tree. The first node is the whole line.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    nodes: Vec<Node>,
}

impl Paths {
    /// `sources` has the names of the wanted values. `keys` says which keys the lines have for the names of nginx.
    pub(super) fn new(sources: &[String], keys_of: Keys) -> Paths {
        let mut paths = Paths { nodes: vec![Node::default()] };
        for (source, name) in sources.iter().enumerate() {
            let keys = match keys_of {
                Keys::Plain => None,
                Keys::Caddy => of_caddy(name),
                Keys::Traefik => of_traefik(name),
            };
            let header = keys.as_ref().and_then(|(_, header)| *header);
            let keys = keys.map_or_else(|| name.split('.').map(str::to_owned).collect(), |(keys, _)| keys);
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            paths.add(&keys, header, source);
            // Some programs write an object `a` with a key `b`, others a key `a.b`.
            if name.contains('.') {
                paths.add(&[name], None, source);
            }
        }
        paths
    }

    /// `header` is the depth of the key that names a header, if there is one.
    fn add(&mut self, keys: &[&str], header: Option<usize>, source: usize) {
        let mut at = 0;
        for (depth, key) in keys.iter().enumerate() {
            let found = self.nodes[at].children.iter().copied().find(|child| self.nodes[*child].key == **key);
            at = found.unwrap_or_else(|| {
                let is_header = header == Some(depth);
                self.nodes.push(Node { key: (*key).to_owned(), is_header, ..Node::default() });
                let new = self.nodes.len() - 1;
                self.nodes[at].children.push(new);
                new
            });
        }
        self.nodes[at].source = Some(source);
    }

    /// Finds the values of a line. Returns `None` if the line is not a JSON object.
    pub(super) fn read(&self, line: &[u8], values: &mut Values) -> Option<()> {
        let lossy = String::from_utf8_lossy(line);
        if !lossy.trim_start().starts_with('{') {
            return None;
        }
        let mut json = serde_json::Deserializer::from_str(&lossy);
        Inside { paths: self, node: 0, values }.deserialize(&mut json).ok()?;
        json.end().ok()
    }

    fn child(&self, node: usize, key: &str) -> Option<usize> {
        let is_it = |child: &Node| match child.is_header {
            false => child.key == key,
            true => {
                let plain = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
                child.key.len() == key.len() && child.key.bytes().zip(key.bytes()).all(|(a, b)| plain(a) == plain(b))
            }
        };
        self.nodes[node].children.iter().copied().find(|child| is_it(&self.nodes[*child]))
    }
}

/// Whose keys the lines have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// The names of fields are the paths.
    Plain,
    Caddy,
    Traefik,
}

/// The path of a value, and the depth of the key that names a header, if there is one.
type Path = (Vec<String>, Option<usize>);

fn path(keys: &[&str]) -> Option<Path> {
    Some((keys.iter().map(|key| (*key).to_owned()).collect(), None))
}

/// Returns the path at which Caddy writes the value that nginx calls `name`.
fn of_caddy(name: &str) -> Option<Path> {
    match name {
        "remote_addr" => path(&["request", "remote_ip"]),
        // Caddy up to 2.4 writes the address with its port.
        "client_with_port" => path(&["request", "remote_addr"]),
        "request_method" => path(&["request", "method"]),
        "request_uri" => path(&["request", "uri"]),
        "host" => path(&["request", "host"]),
        "server_protocol" => path(&["request", "proto"]),
        "remote_user" => path(&["user_id"]),
        "body_bytes_sent" => path(&["size"]),
        _ => {
            let (keys, _) = path(&["request", "headers", name.strip_prefix("http_")?, "0"])?;
            Some((keys, Some(2)))
        }
    }
}

/// Returns the path at which Traefik writes the value that nginx calls `name`. Traefik writes the header fields that its
/// settings name.
fn of_traefik(name: &str) -> Option<Path> {
    match name {
        "remote_addr" => path(&["ClientHost"]),
        "client_with_port" => path(&["ClientAddr"]),
        "request_method" => path(&["RequestMethod"]),
        "request_uri" => path(&["RequestPath"]),
        "host" => path(&["RequestHost"]),
        "server_protocol" => path(&["RequestProtocol"]),
        "status" => path(&["DownstreamStatus"]),
        "remote_user" => path(&["ClientUsername"]),
        "body_bytes_sent" => path(&["DownstreamContentSize"]),
        _ => Some((vec![format!("request_{}", name.strip_prefix("http_")?)], Some(0))),
    }
}

/// Reads the JSON value at a node of the tree.
struct Inside<'a> {
    paths: &'a Paths,
    node: usize,
    values: &'a mut Values,
}

impl Inside<'_> {
    fn child(&mut self, node: usize) -> Inside<'_> {
        Inside { paths: self.paths, node, values: self.values }
    }

    fn keep(&mut self, text: &str) {
        if let Some(source) = self.paths.nodes[self.node].source {
            let begin = self.values.decoded.len();
            self.values.decoded.extend_from_slice(text.as_bytes());
            self.values.set_decoded(source, begin);
        }
    }
}

impl<'de> DeserializeSeed<'de> for Inside<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(mut self, json: D) -> Result<(), D::Error> {
        if !self.paths.nodes[self.node].children.is_empty() {
            return json.deserialize_any(self);
        }
        let raw = <&RawValue as serde::Deserialize>::deserialize(json)?.get();
        match raw.as_bytes().first() {
            Some(b'{' | b'[' | b'n') | None => {}
            Some(b'"') if raw.contains('\\') => {
                self.keep(&serde_json::from_str::<String>(raw).map_err(serde::de::Error::custom)?);
            }
            Some(_) => self.keep(raw.trim_matches('"')),
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Inside<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(child) = map.next_key_seed(Key { paths: self.paths, node: self.node })? {
            match child {
                Some(child) => map.next_value_seed(self.child(child))?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        for index in 0u64.. {
            let children = &self.paths.nodes[self.node].children;
            let child = children.iter().copied().find(|child| self.paths.nodes[*child].key.parse() == Ok(index));
            let more = match child {
                Some(child) => list.next_element_seed(self.child(child))?.is_some(),
                None => list.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn visit_str<E>(mut self, text: &str) -> Result<(), E> {
        self.keep(text);
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Reads a key of an object. Returns the node of the key, if a wanted path has it.
struct Key<'a> {
    paths: &'a Paths,
    node: usize,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Option<usize>, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Option<usize>, E> {
        Ok(self.paths.child(self.node, key))
    }
}
