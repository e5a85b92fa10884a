//! Reads requests of RLS v3 in the JSON mapping of protobuf.
//!
//! The mapping allows field names in camel case or snake case, null for absent fields, integers as numbers or strings,
//! and enums by name or number. The deserializers that serde derives accept only some of these forms.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};

use super::json::{Object, Text};

/// `RateLimitRequest`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RateLimitRequest<'a> {
    #[serde(borrow, default)]
    pub(super) domain: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) descriptors: Option<Vec<Object<RateLimitDescriptor<'a>>>>,
    #[serde(default, alias = "hits_addend")]
    pub(super) hits_addend: Option<Uint<{ u32::MAX as u64 }>>,
}

/// `RateLimitDescriptor`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RateLimitDescriptor<'a> {
    #[serde(borrow, default)]
    pub(super) entries: Option<Vec<Object<Entry<'a>>>>,
    #[serde(default)]
    pub(super) limit: Option<Object<RateLimitOverride>>,
    /// 0 means a peek. If the field is absent, `hits_addend` of the request applies.
    #[serde(default, alias = "hits_addend")]
    pub(super) hits_addend: Option<Uint<{ u64::MAX }>>,
    #[serde(default, alias = "is_negative_hits")]
    pub(super) is_negative_hits: Option<bool>,
}

/// `RateLimitDescriptor.Entry`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry<'a> {
    #[serde(borrow, default)]
    pub(super) key: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) value: Option<Text<'a>>,
}

/// `RateLimitDescriptor.RateLimitOverride`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RateLimitOverride {
    #[serde(default, alias = "requests_per_unit")]
    pub(super) requests_per_unit: Option<Uint<{ u32::MAX as u64 }>>,
    #[serde(default)]
    pub(super) unit: Option<UnitNumber>,
}

/// An unsigned integer of at most `MAX`. A client writes it as a number or as a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Uint<const MAX: u64>(pub(super) u64);

impl<'de, const MAX: u64> Deserialize<'de> for Uint<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UintVisitor::<MAX>).map(Uint)
    }
}

struct UintVisitor<const MAX: u64>;

impl<const MAX: u64> Visitor<'_> for UintVisitor<MAX> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {MAX}, as a number or a string")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        if number <= MAX { Ok(number) } else { Err(E::invalid_value(Unexpected::Unsigned(number), &self)) }
    }

    /// The mapping allows whole numbers that are written as `1e3` or `5.0`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number is whole, and from 0 to 2^53"
    )]
    fn visit_f64<E: Error>(self, number: f64) -> Result<u64, E> {
        if number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&number) {
            return self.visit_u64(number as u64);
        }
        Err(E::invalid_value(Unexpected::Float(number), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| digits && *number <= MAX);
        number.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// The names of the units of `envoy.type.v3.RateLimitUnit`. The index of a name is the number of the unit.
const UNITS: [&str; 7] = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"];

/// The number of a unit, from 0 (unknown) to 6 (year).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnitNumber(pub(super) i32);

impl<'de> Deserialize<'de> for UnitNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnitVisitor)
    }
}

struct UnitVisitor;

impl Visitor<'_> for UnitVisitor {
    type Value = UnitNumber;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a unit: SECOND, MINUTE, HOUR, DAY, MONTH or YEAR, or its number 1 to 6")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<UnitNumber, E> {
        let known = i32::try_from(number).ok().filter(|_| number < UNITS.len() as u64);
        known.map(UnitNumber).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<UnitNumber, E> {
        let number = UNITS.iter().position(|unit| *unit == name).and_then(|number| i32::try_from(number).ok());
        number.map(UnitNumber).ok_or_else(|| E::invalid_value(Unexpected::Str(name), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> RateLimitRequest<'_> {
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{body}: {error}"))
    }

    #[test]
    fn both_spellings_of_every_field_are_read() {
        let camel = r#"{"domain":"d","hitsAddend":3,"descriptors":[{"entries":[{"key":"k","value":"v"}],
            "limit":{"requestsPerUnit":5,"unit":"HOUR"},"hitsAddend":"0","isNegativeHits":true}]}"#;
        let snake = r#"{"domain":"d","hits_addend":"3","descriptors":[{"entries":[{"key":"k","value":"v"}],
            "limit":{"requests_per_unit":"5","unit":3},"hits_addend":0,"is_negative_hits":true}]}"#;
        for body in [camel, snake] {
            let request = read(body);
            assert_eq!(request.hits_addend, Some(Uint(3)));
            let descriptor = &request.descriptors.as_ref().expect("the request has descriptors")[0].0;
            assert_eq!((descriptor.hits_addend, descriptor.is_negative_hits), (Some(Uint(0)), Some(true)));
            let Object(limit) = descriptor.limit.as_ref().expect("the descriptor has a limit");
            assert_eq!((limit.requests_per_unit, limit.unit), (Some(Uint(5)), Some(UnitNumber(3))));
            let entry = &descriptor.entries.as_ref().expect("the descriptor has entries")[0].0;
            assert_eq!((entry.key.as_deref(), entry.value.as_deref()), (Some("k"), Some("v")));
        }
    }

    #[test]
    fn null_is_absent() {
        let request = read(r#"{"domain":null,"descriptors":null,"hitsAddend":null}"#);
        assert!(request.domain.is_none() && request.descriptors.is_none() && request.hits_addend.is_none());
    }

    #[test]
    fn integers_are_whole_numbers_in_range_in_every_spelling() {
        let read = |text: &str| serde_json::from_str::<Uint<100>>(text).map(|uint| uint.0).ok();
        for (text, number) in [("7", 7), ("\"7\"", 7), ("7.0", 7), ("1e2", 100), ("0", 0)] {
            assert_eq!(read(text), Some(number), "{text}");
        }
        for text in ["101", "\"101\"", "-1", "\"-1\"", "\"+1\"", "0.5", "\"\"", "\" 1\"", "true", "1e400", "[1]"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn unknown_and_duplicate_fields_are_named() {
        let bodies = [
            (r#"{"domian":"d"}"#, "unknown field `domian`"),
            (r#"{"hitsAddend":1,"hits_addend":1}"#, "duplicate field `hitsAddend`"),
            (r#"{"domain":"d","domain":"d"}"#, "duplicate field `domain`"),
            (r#"{"descriptors":[{"limit":{"unit":"WEEK"}}]}"#, "expected a unit"),
            (r#"{"descriptors":[{"limit":{"unit":7}}]}"#, "expected a unit"),
        ];
        for (body, expected) in bodies {
            let error = serde_json::from_str::<RateLimitRequest<'_>>(body).expect_err(body).to_string();
            assert!(error.contains(expected), "{body}: {error}");
        }
    }
}
