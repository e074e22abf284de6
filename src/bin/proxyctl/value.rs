//! What the daemon tells, as JSON: the names of D-Bus with a small letter in front, and
//! its values as they are. This is what `--json` prints, and what tables are made of.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use zbus::{OwnedVariant, Variant};

/// Properties of an object.
pub(crate) type Properties = Map<String, Value>;

/// The properties of an object, by their names in JSON.
pub(crate) fn properties(of: HashMap<String, OwnedVariant>) -> Properties {
    let row = |(name, value): (String, OwnedVariant)| {
        let value = match name.as_str() {
            "Conditions" => conditions(&value),
            _ => json(&value),
        };
        (camel(&name), value)
    };
    of.into_iter().map(row).collect()
}

/// A name of D-Bus as JSON has it.
pub(crate) fn camel(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// The text at `key`.
pub(crate) fn text<'a>(of: &'a Properties, key: &str) -> &'a str {
    of.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The number at `key`.
pub(crate) fn number(of: &Properties, key: &str) -> u64 {
    of.get(key).and_then(Value::as_u64).unwrap_or_default()
}

/// Whether `key` is true.
pub(crate) fn flag(of: &Properties, key: &str) -> bool {
    of.get(key).and_then(Value::as_bool).unwrap_or_default()
}

/// A value of D-Bus as JSON. Of types that the daemon doesn't use nothing is told.
pub(crate) fn json(value: &Variant<'_>) -> Value {
    match value {
        Variant::U8(number) => json!(number),
        Variant::Bool(flag) => json!(flag),
        Variant::I16(number) => json!(number),
        Variant::U16(number) => json!(number),
        Variant::I32(number) => json!(number),
        Variant::U32(number) => json!(number),
        Variant::I64(number) => json!(number),
        Variant::U64(number) => json!(number),
        Variant::F64(number) => json!(number),
        Variant::Str(text) => json!(text.as_str()),
        Variant::ObjectPath(path) => json!(path.as_str()),
        Variant::Variant(inner) => json(inner),
        Variant::Array(items) => items.iter().map(json).collect(),
        Variant::Structure(fields) => fields.fields().iter().map(json).collect(),
        Variant::Dict(entries) => {
            let row = |(key, value): (&Variant<'_>, &Variant<'_>)| {
                let key = json(key);
                (key.as_str().map_or_else(|| key.to_string(), str::to_owned), json(value))
            };
            Value::Object(entries.iter().map(row).collect())
        }
        _ => Value::Null,
    }
}

fn conditions(value: &Variant<'_>) -> Value {
    let names = ["kind", "holds", "reason", "message", "since"];
    let row = |row: &Value| {
        let fields = row.as_array().into_iter().flatten().cloned();
        Value::Object(names.into_iter().map(str::to_owned).zip(fields).collect())
    };
    json(value).as_array().into_iter().flatten().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_told_by_name() {
        let conditions = Variant::from(vec![("Healthy", true, "Answering", "", 7_u64)]);
        let told = [
            ("UsedBy", Variant::from(vec!["a", "b"])),
            ("Size", Variant::from(5_u64)),
            ("Conditions", conditions),
        ];
        let told = told.map(|(name, value)| (name.to_owned(), value.try_to_owned().unwrap()));
        let expected = json!({
            "usedBy": ["a", "b"],
            "size": 5,
            "conditions": [
                {"kind": "Healthy", "holds": true, "reason": "Answering", "message": "", "since": 7}
            ]
        });
        assert_eq!(Value::Object(properties(told.into())), expected);
    }
}
