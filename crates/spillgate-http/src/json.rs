//! Reads JSON strictly, and borrows strings from the body where that is possible.
//!
//! Because reading is strict, the client gets a useful error for a misspelled member. Because strings are borrowed, a
//! request needs few allocations.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

/// A string of the body. It is borrowed from the body, or copied if it contains escapes such as `\n`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

/// A JSON string, number or boolean as the text under which a request is counted. A number or a boolean becomes a text
/// such as `7`, `1.5` or `true`. A number that is too large to be read exactly is an error, because several different
/// numbers would become the same text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scalar<'a>(Text<'a>);

impl std::ops::Deref for Scalar<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// From this number on, a float cannot represent every whole number.
        const EXACT: f64 = 9_007_199_254_740_992.0;

        struct ScalarVisitor;

        fn text<'de>(text: String) -> Scalar<'de> {
            Scalar(Text(Cow::Owned(text)))
        }

        impl<'de> Visitor<'de> for ScalarVisitor {
            type Value = Scalar<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number or a boolean")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Scalar<'de>, E> {
                Ok(Scalar(Text(Cow::Borrowed(text))))
            }

            fn visit_str<E: Error>(self, written: &str) -> Result<Scalar<'de>, E> {
                Ok(text(written.to_owned()))
            }

            fn visit_bool<E: Error>(self, boolean: bool) -> Result<Scalar<'de>, E> {
                Ok(text(boolean.to_string()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar<'de>, E> {
                Ok(text(number.to_string()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar<'de>, E> {
                Ok(text(number.to_string()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Scalar<'de>, E> {
                if number.abs() >= EXACT {
                    return Err(E::custom("this number is too large to be exact; write the value as a string"));
                }
                Ok(text(format!("{number:?}")))
            }
        }

        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// The entries of one descriptor, in the order of the body. A client writes an object such as `{"user_id":"7"}`, or a
/// list of pairs such as `[["user_id","7"]]`. A key can occur twice in a list, but not in an object.
#[derive(Debug, PartialEq, Eq)]
pub struct Entries<'a>(SmallVec<[(Text<'a>, Scalar<'a>); 2]>);

impl Entries<'_> {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for EntriesVisitor<'a> {
            type Value = Entries<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#"a descriptor such as {"user_id":"7"} or [["user_id","7"], ...] (the order counts)"#)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'a>, A::Error> {
                let mut entries = SmallVec::<[(Text<'a>, Scalar<'a>); 2]>::new();
                while let Some(key) = map.next_key::<Text<'a>>()? {
                    if entries.iter().any(|(other, _)| *other == key) {
                        let message = format!("duplicate field `{}`; write [[key, value], ...] to repeat a key", &*key);
                        return Err(A::Error::custom(message));
                    }
                    // The time for finding duplicates grows with the square of the number of entries, so this number
                    // has a bound here, before the service applies the setting `limits.entries`.
                    if entries.len() > MOST_MEMBERS {
                        return Err(A::Error::custom("too many entries in one descriptor"));
                    }
                    entries.push((key, map.next_value()?));
                }
                Ok(Entries(entries))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<Entries<'a>, A::Error> {
                let mut entries = SmallVec::new();
                while let Some(pair) = pairs.next_element::<(Text<'a>, Scalar<'a>)>()? {
                    entries.push(pair);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_any(EntriesVisitor(PhantomData))
    }
}

/// The largest possible value of the setting `limits.entries`. An object with one member more is still read, so that
/// the service can reject it with the same error as a list of entries. With two members more, reading fails.
const MOST_MEMBERS: usize = 256;

/// A `T` that a client has to write as a JSON object. Without this type, serde would also accept a list of the values
/// of the members. Such a list is always a mistake of the client.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Object)
    }
}

pub fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice::<Object<T>>(body).map(|Object(object)| object)
}

/// Returns the text of an error for clients. It has plain words where serde names types of Rust, such as `u64`.
pub(crate) fn plain(error: &serde_json::Error) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("u64", "a whole number from 0 to 18446744073709551615"),
        ("u8", "a whole number from 0 to 255"),
        ("a sequence", "a list"),
        ("a tuple of size 2", "a pair [\"key\",\"value\"]"),
        ("a map", "an object"),
    ];
    let text = error.to_string();
    let Some((found, expected)) = text.rsplit_once(", expected ") else { return text };
    let found = found.replacen("invalid type: map", "invalid type: object", 1);
    let found = found.replacen("invalid type: sequence", "invalid type: list", 1);
    let word = WORDS.iter().find_map(|(word, plain)| Some((plain, expected.strip_prefix(word)?)));
    match word {
        Some((plain, rest)) if rest.is_empty() || rest.starts_with(' ') => {
            format!("{found}, expected {plain}{rest}")
        }
        _ => format!("{found}, expected {expected}"),
    }
}

pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

/// Parses one object or a list of objects. A body that begins with `[` is read as a list, and any other body as an
/// object. So an error names a list only if the client has sent a list.
pub(crate) fn one_or_many<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<OneOrMany<T>, serde_json::Error> {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') {
        let many: Vec<Object<T>> = serde_json::from_slice(body)?;
        Ok(OneOrMany::Many(many.into_iter().map(|Object(object)| object).collect()))
    } else {
        object(body).map(OneOrMany::One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(body: &str) -> Result<Vec<(String, String)>, String> {
        let entries: Entries<'_> = serde_json::from_str(body).map_err(|error| error.to_string())?;
        Ok(entries.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn members_keep_their_written_order() {
        assert_eq!(entries(r#"{"b":"2","a":"1"}"#), Ok(pairs(&[("b", "2"), ("a", "1")])));
        assert_eq!(entries(r#"[["b","2"],["a","1"],["b","3"]]"#), Ok(pairs(&[("b", "2"), ("a", "1"), ("b", "3")])));
        assert_eq!(entries("{}"), Ok(vec![]));
    }

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(entries(r#"{"a\n\u00e9":"\"\ud83e\udd80"}"#), Ok(pairs(&[("a\n\u{e9}", "\"\u{1F980}")])));
    }

    #[test]
    fn an_invalid_descriptor_is_an_error_that_shows_a_valid_one() {
        let bodies = [
            (r#"{"a":null}"#, "expected a string, a number or a boolean"),
            (r#"[[1,"a"]]"#, "expected a string"),
            (r#"{"a":"1","a":"2"}"#, "duplicate field `a`"),
            (r#"{"\u0061":"1","a":"2"}"#, "duplicate field `a`"),
            (r#"[["a"]]"#, "invalid length 1"),
            (r#"[["a","b","c"]]"#, "trailing characters"),
            (r#""a=b""#, "expected a descriptor such as"),
            (r#"{"a":"\ud800"}"#, "line 1 column"),
        ];
        for (body, expected) in bodies {
            let error = entries(body).expect_err(body);
            assert!(error.contains(expected), "{body}: {error}");
        }
    }

    #[test]
    fn many_members_are_refused_before_they_cost_much() {
        let members: Vec<String> = (0..10_000).map(|i| format!(r#""k{i}":"v""#)).collect();
        let error =
            entries(&format!("{{{}}}", members.join(","))).expect_err("an object with 10,000 members is refused");
        assert!(error.contains("too many entries"), "{error}");
    }

    #[test]
    fn an_object_is_not_a_list_of_its_values() {
        #[derive(Debug, serde::Deserialize)]
        struct One<'a> {
            #[serde(borrow)]
            name: Text<'a>,
        }
        assert!(matches!(object::<One<'_>>(br#"{"name":"x"}"#), Ok(One { name: Text(Cow::Borrowed("x")) })));
        for body in [&br#"["x"]"#[..], b"[]", b"7", b"null"] {
            let error = object::<One<'_>>(body).expect_err("a body that is not an object is refused").to_string();
            assert!(error.contains("expected an object"), "{error}");
        }
        assert!(one_or_many::<One<'_>>(br#"[["x"]]"#).is_err());
    }

    #[test]
    fn only_strings_with_escapes_are_copied() {
        let plain: Text<'_> = serde_json::from_str(r#""plain""#).unwrap();
        assert!(matches!(plain.0, Cow::Borrowed("plain")));
    }
}
