//! Tests that the JSON Schema and the parser of rules files accept the same keys and words.
//!
//! The schema and the parser are written separately. Without these tests, the schema could lack a key that the parser
//! knows, and an editor would then mark this key as an error.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use spillgate_core::Algorithm;

use super::SCHEMA;
use crate::read::Section;
use spillgate_core::Regions;

use crate::{Defaults, Rules, RulesFile};

fn schema() -> Value {
    serde_json::from_str(SCHEMA).expect("the schema is JSON")
}

fn section(schema: &Value, section: Section) -> &Value {
    let at = match section {
        Section::File => "",
        Section::Descriptor => "/$defs/descriptor",
        Section::Limit => "/$defs/limit",
        Section::Replaces => "/$defs/replaces",
    };
    schema.pointer(at).expect("every section is in the schema")
}

/// Adds to `found` each place where `value` does not match `part`, which is a part of `schema`. `path` is the path of
/// `value` in its file. This check supports only the keywords that the schema of rules files uses.
fn violations(schema: &Value, part: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let mut against = |what: &str| found.push(format!("{path}: {what}"));
    for (keyword, rule) in part.as_object().expect("a schema is a map") {
        let ok = match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" => true,
            "type" => match rule {
                Value::Array(types) => types.iter().any(|name| is_type(name, value)),
                name => is_type(name, value),
            },
            "enum" => rule.as_array().is_some_and(|choices| choices.contains(value)),
            "minLength" => value.as_str().is_none_or(|text| text.len() as u64 >= rule.as_u64().unwrap()),
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap()),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= rule.as_u64().unwrap()),
            "minimum" => !value.is_number() || value.as_u64().is_some_and(|n| n >= rule.as_u64().unwrap()),
            "maximum" => !value.is_number() || value.as_u64().is_some_and(|n| n <= rule.as_u64().unwrap()),
            // Patterns are not checked here. The parser checks a value with a pattern more strictly, and other tests
            // load the examples with the parser.
            "pattern" => true,
            "required" => rule.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some()),
            "anyOf" => rule.as_array().unwrap().iter().any(|choice| {
                let mut inner = Vec::new();
                violations(schema, choice, value, path, &mut inner);
                inner.is_empty()
            }),
            "additionalProperties" => {
                let known = part["properties"].as_object().unwrap();
                value.as_object().is_none_or(|map| map.keys().all(|key| known.contains_key(key)))
            }
            "properties" | "items" | "$ref" => true,
            unknown => panic!("this check does not know the keyword {unknown}"),
        };
        if !ok {
            against(keyword);
        }
    }
    if let Some(target) = part.get("$ref").and_then(Value::as_str) {
        let target = schema.pointer(target.trim_start_matches('#')).expect("$ref has a target");
        violations(schema, target, value, path, found);
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        if let Some(items) = part.get("items") {
            violations(schema, items, item, &format!("{path}[{index}]"), found);
        }
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        if let Some(property) = part.get("properties").and_then(|all| all.get(key)) {
            violations(schema, property, inner, &format!("{path}.{key}"), found);
        }
    }
}

fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str().expect("a type is a word") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("unknown type {other}"),
    }
}

fn against_schema(text: &str) -> Vec<String> {
    let (schema, value) = (schema(), serde_saphyr::from_str::<Value>(text).expect("the text is YAML"));
    let mut found = Vec::new();
    violations(&schema, &schema, &value, "", &mut found);
    found
}

#[test]
fn the_parser_and_the_schema_know_the_same_keys() {
    let schema = schema();
    for place in Section::ALL {
        let known: BTreeSet<&str> = place.keys().iter().copied().collect();
        let properties = section(&schema, place)["properties"].as_object().expect("the section has properties");
        let described: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
        assert_eq!(known, described, "{place:?}");
        assert_eq!(section(&schema, place)["additionalProperties"], Value::Bool(false), "{place:?}");
    }
}

#[test]
fn the_parser_takes_every_word_that_the_schema_offers() {
    let schema = schema();
    let limit = &section(&schema, Section::Limit)["properties"];
    let load = |fields: &str| {
        let text = format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{limit: 5, {fields}}}}}]");
        let defaults = Defaults { regions: Regions::new(2), ..Defaults::default() };
        Rules::parse_with(&[RulesFile { name: "d.yaml".into(), text }], defaults).map(|_| ())
    };
    let mut tried = 0;
    for (key, property) in limit.as_object().expect("the section has properties") {
        for word in property["enum"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let beside = match (key.as_str(), word) {
                ("unit", _) | ("algorithm", "concurrency") => "",
                _ => ", unit: minute",
            };
            assert!(load(&format!("{key}: {word}{beside}")).is_ok(), "{key}: {word}");
            tried += 1;
        }
    }
    assert!(tried > 25, "only {tried} words were tried");
}

#[test]
fn the_schema_has_every_name_of_an_algorithm() {
    let names: Vec<&str> = Algorithm::NAMES.iter().map(|(name, _)| *name).collect();
    let schema = schema();
    assert_eq!(section(&schema, Section::Limit)["properties"]["algorithm"]["enum"], Value::from(names));
}

#[test]
fn every_example_fits_the_schema() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut checked = 0;
    for entry in fs::read_dir(examples).expect("the folder of examples can be read") {
        let path = entry.expect("the example can be read").path();
        let text = fs::read_to_string(&path).expect("the example is UTF-8");
        let yaml = path.extension().is_some_and(|end| end == "yaml");
        if yaml && text.lines().any(|line| line.starts_with("domain:")) {
            assert_eq!(against_schema(&text), Vec::<String>::new(), "{}", path.display());
            checked += 1;
        }
    }
    assert!(checked >= 2, "only {checked} examples were checked");
}

#[test]
fn the_schema_refuses_what_the_parser_refuses() {
    for wrong in [
        "descriptors: []",
        "domain: d\nunit: second",
        "domain: d\ncompat: other",
        "domain: d\ndescriptors: {key: a}",
        "domain: d\ndescriptors: [{value: a}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: second}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minutes, limit: 1}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: second, limit: -1}}]",
        "domain: d\ndescriptors: [{key: a, rate_limits: []}]",
        "domain: d\ndescriptors: [{key: a, descriptors: [{key: b, shadow: true}]}]",
    ] {
        assert_ne!(against_schema(wrong), Vec::<String>::new(), "{wrong}");
        assert!(Rules::parse(&[RulesFile { name: "d.yaml".into(), text: wrong.into() }]).is_err(), "{wrong}");
    }
}
