//! Checks JSON against the schemas of an OpenAPI file.
//!
//! Only the keywords that the file uses are known. An unknown keyword is an error, so that no part of a schema is
//! ignored.

use serde_json::Value;

/// Keywords that describe a value and restrict nothing.
const NOTES: [&str; 2] = ["description", "default"];

/// Checks `value` against `schema`, which is a part of `file`. `place` names the value in errors.
pub(crate) fn check(file: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let keywords = schema.as_object().ok_or_else(|| format!("{place}: the schema is not an object: {schema}"))?;
    for (keyword, rule) in keywords {
        if !NOTES.contains(&keyword.as_str()) {
            keyword_holds(file, schema, (keyword, rule), value, place)?;
        }
    }
    Ok(())
}

fn keyword_holds(
    file: &Value,
    schema: &Value,
    (keyword, rule): (&str, &Value),
    value: &Value,
    place: &str,
) -> Result<(), String> {
    let wrong = || Err(format!("{place}: {value} breaks {keyword}: {rule}"));
    let list = || rule.as_array().map_or_else(|| std::slice::from_ref(rule), Vec::as_slice);
    let items = || value.as_array().map_or(&[][..], Vec::as_slice);
    let holds = match keyword {
        "$ref" => {
            let target = target(file, rule).ok_or_else(|| format!("{place}: {rule} does not exist"))?;
            return check(file, target, value, place);
        }
        "allOf" => return list().iter().try_for_each(|schema| check(file, schema, value, place)),
        "anyOf" => list().iter().any(|schema| check(file, schema, value, place).is_ok()),
        "type" => list().iter().any(|kind| is_of(kind, value)),
        "enum" => list().contains(value),
        "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap_or(f64::MAX)),
        "minItems" => !value.is_array() || items().len() as u64 >= rule.as_u64().unwrap_or(u64::MAX),
        "maxItems" => !value.is_array() || items().len() as u64 <= rule.as_u64().unwrap_or(0),
        "items" => {
            let mut each = items().iter().enumerate();
            return each.try_for_each(|(at, item)| check(file, rule, item, &format!("{place}[{at}]")));
        }
        "required" => {
            let has = |name: &Value| name.as_str().is_some_and(|name| value.get(name).is_some());
            !value.is_object() || list().iter().all(has)
        }
        "properties" | "additionalProperties" => return members_hold(file, schema, value, place),
        "unevaluatedProperties" => {
            let every = schema["allOf"].as_array().into_iter().flatten();
            let parts: Vec<_> = every.filter_map(|part| target(file, &part["$ref"])).chain([schema]).collect();
            let is_known = |name: &String| parts.iter().any(|part| part["properties"].get(name).is_some());
            *rule == Value::Bool(false) && value.as_object().is_none_or(|members| members.keys().all(is_known))
        }
        _ => return Err(format!("{place}: the keyword {keyword} is unknown")),
    };
    if holds { Ok(()) } else { wrong() }
}

/// Returns the schema to which a reference points.
fn target<'f>(file: &'f Value, reference: &Value) -> Option<&'f Value> {
    file.pointer(reference.as_str()?.strip_prefix('#')?)
}

/// Checks the members of an object.
fn members_hold(file: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let further = &schema["additionalProperties"];
    for (name, member) in value.as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        match (schema["properties"].get(name), further) {
            (Some(schema), _) => check(file, schema, member, &place)?,
            (None, Value::Bool(false)) => return Err(format!("{place} is not in the schema")),
            (None, Value::Object(_)) => check(file, further, member, &place)?,
            (None, _) => {}
        }
    }
    Ok(())
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    }
}

#[test]
fn values_that_break_a_schema_are_found() {
    use serde_json::json;
    let file = json!({"a": {"type": "integer", "minimum": 0}});
    let object = json!({
        "type": "object", "properties": {"n": {"$ref": "#/a"}, "l": {"type": ["array", "null"], "items": {"enum": [1, 2]}, "maxItems": 2}},
        "required": ["n"], "additionalProperties": false,
    });
    for good in [json!({"n": 1}), json!({"n": 0, "l": [1, 2]}), json!({"n": 0, "l": null})] {
        assert_eq!(check(&file, &object, &good, ""), Ok(()));
    }
    let bad = [
        json!({}),
        json!([]),
        json!({"n": -1}),
        json!({"n": 1.5}),
        json!({"n": "1"}),
        json!({"n": 1, "m": 1}),
        json!({"n": 1, "l": [3]}),
        json!({"n": 1, "l": [1, 1, 1]}),
        json!({"n": 1, "l": {}}),
    ];
    for bad in bad {
        assert!(check(&file, &object, &bad, "").is_err(), "{bad}");
    }
    assert!(check(&file, &json!({"$ref": "#/b"}), &json!(1), "").is_err());
    assert!(check(&file, &json!({"pattern": "a"}), &json!("a"), "").is_err());
    let more = json!({"b": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}});
    let both =
        json!({"allOf": [{"$ref": "#/b"}], "properties": {"m": {"type": "string"}}, "unevaluatedProperties": false});
    assert_eq!(check(&more, &both, &json!({"n": 1, "m": "a"}), ""), Ok(()));
    for bad in [json!({"m": "a"}), json!({"n": "a"}), json!({"n": 1, "m": 1}), json!({"n": 1, "l": 1})] {
        assert!(check(&more, &both, &bad, "").is_err(), "{bad}");
    }
    let either = json!({"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]});
    assert!(
        check(&file, &either, &json!({"a": "b"}), "").is_ok() && check(&file, &either, &json!({"a": 1}), "").is_err()
    );
}
