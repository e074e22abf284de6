//! JSON as it stands in the file: members in their order, and all of them, so that
//! a key that is given twice is found instead of the last one winning.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::error::{ConfigErrors, Pointer, Report};

/// Any JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Value>),
    Object(Vec<(String, Value)>),
}

/// An object without members: what an absent section amounts to.
pub(super) static EMPTY: Value = Value::Object(Vec::new());

impl Value {
    /// Its type with an article.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }
}

/// Reads `text`; nested deeper than 128 levels is an error.
pub(super) fn parse(text: &str) -> Result<Value, ConfigErrors> {
    if text.starts_with('\u{feff}') {
        let message = "the file begins with a byte order mark: save it as UTF-8 without one";
        return Err(ConfigErrors::of_file(message));
    }
    if text.trim().is_empty() {
        let message = "the file is empty: write {} for the defaults";
        return Err(ConfigErrors::of_file(message));
    }
    serde_json::from_str(text)
        .map_err(|error| ConfigErrors::of_file(format!("the file is not valid JSON: {error}")))
}

/// Reports every key that an object has more than once, and keeps its first value
/// so that the rest can be checked.
pub(super) fn drop_duplicates(value: &mut Value, report: &Report) {
    visit(value, &mut Pointer::default(), report);
}

fn visit(value: &mut Value, at: &mut Pointer, report: &Report) {
    match value {
        Value::Object(members) => {
            drop_repeated(members, at, report);
            members.iter_mut().for_each(|(key, member)| descend(key, member, at, report));
        }
        Value::Array(items) => {
            let numbered = items.iter_mut().enumerate();
            numbered.for_each(|(index, item)| descend(&index.to_string(), item, at, report));
        }
        _ => {}
    }
}

fn descend(token: &str, child: &mut Value, at: &mut Pointer, report: &Report) {
    let before = at.push(token);
    visit(child, at, report);
    at.pop(before);
}

fn drop_repeated(members: &mut Vec<(String, Value)>, at: &Pointer, report: &Report) {
    let mut counts = BTreeMap::<String, usize>::new();
    let mut repeated = Vec::new();
    members.retain_mut(|(key, value)| {
        let count = counts.entry(key.clone()).or_default();
        *count += 1;
        if *count > 1 {
            // What only a dropped value holds is still worth a look.
            repeated.push((key.clone(), std::mem::replace(value, Value::Null)));
        }
        *count == 1
    });
    for (key, mut value) in repeated {
        let place = at.child(&key);
        if let Some(count) = counts.remove(&key) {
            report.add(&place, format!("the key is given {count} times: keep one of them"));
        }
        visit(&mut value, &mut place.clone(), report);
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value);
        number.map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = access.next_entry()? {
            members.push(member);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn duplicates(text: &str) -> Vec<String> {
        let report = Report::default();
        drop_duplicates(&mut parse(text).unwrap(), &report);
        let errors = report.finish(Some(())).err();
        let errors = errors.iter().flat_map(ConfigErrors::errors);
        errors.map(|error| error.pointer.clone()).collect()
    }

    #[test]
    fn every_value_is_read_in_order() {
        let text = r#"{"b": [null, true, -1, 2, 1.5, "x\u00e9"], "a": {}}"#;
        let items = vec![
            Value::Null,
            Value::Bool(true),
            Value::Number((-1_i64).into()),
            Value::Number(2_u64.into()),
            Value::Number(Number::from_f64(1.5).unwrap()),
            Value::String("xé".into()),
        ];
        let members = vec![("b".into(), Value::Array(items)), ("a".into(), EMPTY.clone())];
        assert_eq!(parse(text).unwrap(), Value::Object(members));
    }

    #[test]
    fn a_syntax_error_has_line_and_column() {
        let message = parse("{\n  \"a\": 1,\n}").unwrap_err().to_string();
        assert!(message.ends_with("at line 3 column 1"), "{message}");
        for text in ["{} x", "{'a': 1}", "{\"a\": 1e999}", "{\"a\"}", "// no\n{}"] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains("at line "), "{text}: {message}");
        }
    }

    #[test]
    fn an_empty_file_and_a_byte_order_mark_are_named() {
        assert!(parse(" \n").unwrap_err().to_string().contains("write {}"));
        assert!(parse("\u{feff}{}").unwrap_err().to_string().contains("byte order mark"));
    }

    #[test]
    fn too_deep_is_an_error_and_no_overflow() {
        let message = parse(&"[".repeat(1_000_000)).unwrap_err().to_string();
        assert!(message.contains("recursion limit"), "{message}");
    }

    #[test]
    fn duplicates_are_found_at_any_depth() {
        assert!(duplicates(r#"{"a": {"c": 1}, "b": {"c": 1}}"#).is_empty());
        assert_eq!(duplicates(r#"{"a": 1, "b": 2, "a": 1, "a": 3}"#), ["/a"]);
        assert_eq!(duplicates(r#"{"x/y": [0, {"k": [], "k": []}]}"#), ["/x~1y/1/k"]);
        assert_eq!(duplicates(r#"{"a": 1, "\u0061": 1}"#), ["/a"]);
    }

    #[test]
    fn duplicates_inside_a_duplicate_are_found_too() {
        assert_eq!(duplicates(r#"{"a": {}, "a": {"b": 1, "b": 1}}"#), ["/a", "/a/b"]);
    }

    #[test]
    fn the_first_of_a_repeated_key_stays() {
        let mut value = parse(r#"{"a": 1, "b": 2, "a": 3}"#).unwrap();
        drop_duplicates(&mut value, &Report::default());
        assert_eq!(value, parse(r#"{"a": 1, "b": 2}"#).unwrap());
    }
}
