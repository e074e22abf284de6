//! Typed access to the JSON value. Each reader returns `None` after it has reported
//! what is wrong, so that the caller reads on and every mistake is found at once.

use std::fmt::Display;
use std::ops::RangeInclusive;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::error::{Pointer, Report};
use super::json::{EMPTY, Value};
use super::shown::{described, shown};
use super::suggest;
use crate::model::Secret;

/// A value, where it stands, and where to report what is wrong with it.
#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    value: &'a Value,
    at: Pointer,
    report: &'a Report,
}

impl<'a> Node<'a> {
    /// The value that `at` points to.
    pub(super) fn new(value: &'a Value, at: Pointer, report: &'a Report) -> Self {
        Self { value, at, report }
    }

    /// Where it stands.
    pub(super) fn at(&self) -> &Pointer {
        &self.at
    }

    /// Where to report.
    pub(super) fn report(&self) -> &'a Report {
        self.report
    }

    /// Whether it is JSON's null.
    pub(super) fn is_null(&self) -> bool {
        *self.value == Value::Null
    }

    /// Reports `message` for this place.
    pub(super) fn refuse<T>(&self, message: impl Into<String>) -> Option<T> {
        self.report.add(&self.at, message);
        None
    }

    /// Reports the error of a failed check.
    pub(super) fn take<T>(&self, result: Result<T, impl Display>) -> Option<T> {
        result.map_or_else(|error| self.refuse(error.to_string()), Some)
    }

    fn expected<T>(&self, what: &str) -> Option<T> {
        self.refuse(format!("expected {what}, found {}", described(self.value)))
    }

    /// A string.
    pub(super) fn text(&self) -> Option<&'a str> {
        self.text_like("a string")
    }

    /// A string with a meaning that `what` explains.
    pub(super) fn text_like(&self, what: &str) -> Option<&'a str> {
        match self.value {
            Value::String(text) => Some(text),
            _ => self.expected(what),
        }
    }

    /// Bytes that no message repeats: a string, or `{"base64": TEXT}` for what JSON
    /// can't hold.
    pub(super) fn secret(&self) -> Option<Secret> {
        match self.value {
            Value::String(text) => Some(Secret::new(text.clone().into_bytes())),
            Value::Object(_) => {
                let encoded = self.section(&["base64"])?;
                encoded.required("base64", "the bytes in base64", Node::encoded)
            }
            other => self.refuse(format!(
                "expected a string or {{\"base64\": TEXT}}, found {}",
                other.kind()
            )),
        }
    }

    fn encoded(&self) -> Option<Secret> {
        let Value::String(text) = self.value else {
            return self.refuse(format!("expected a string, found {}", self.value.kind()));
        };
        let digits: String = text.split_ascii_whitespace().collect();
        // The decoder's own error would quote what it read.
        let decoded = STANDARD.decode(digits).map_err(|_| "it is not base64 (RFC 4648)");
        self.take(decoded.map(Secret::new))
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(*value),
            _ => self.expected("true or false"),
        }
    }

    /// A whole number within `range`.
    pub(super) fn whole<T>(&self, range: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<u64> + PartialOrd + Display,
    {
        let number = match self.value {
            Value::Number(number) if !number.is_f64() => number,
            _ => return self.expected("a whole number"),
        };
        let value = number.as_u64().and_then(|value| T::try_from(value).ok());
        value.filter(|value| range.contains(value)).or_else(|| {
            let [least, most] = [range.start(), range.end()];
            self.refuse(format!("{number} is out of range: give {least} to {most}"))
        })
    }

    /// One of the given words, as what it stands for.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        let text = self.text_like(&format!("one of {}", suggest::list(&names)))?;
        let found = words.iter().find(|(name, _)| *name == text).map(|(_, meaning)| *meaning);
        found.or_else(|| {
            let hint = suggest::hint_and_list(text, &names, "it is one of");
            self.refuse(format!("{} is not known: {hint}", shown(text)))
        })
    }

    /// The items of an array.
    pub(super) fn items(&self, what: &str) -> Option<Vec<Node<'a>>> {
        let Value::Array(items) = self.value else {
            return self.expected(&format!("an array of {what}"));
        };
        let numbered = items.iter().enumerate();
        let node = |(index, item)| self.child(&format!("{index}"), item);
        Some(numbered.map(node).collect())
    }

    /// The members of an object whose keys are names of the operator's choice.
    pub(super) fn members(&self, what: &str) -> Option<Vec<(&'a str, Node<'a>)>> {
        let Value::Object(members) = self.value else {
            return self.expected(&format!("an object of {what} by name"));
        };
        let node = |(key, value): &'a (String, Value)| (key.as_str(), self.child(key, value));
        Some(members.iter().map(node).collect())
    }

    /// An object with the keys `known`, none of them required yet.
    pub(super) fn section(&self, known: &[&str]) -> Option<Section<'a>> {
        let Value::Object(members) = self.value else {
            return self.expected(&format!("an object with the keys {}", suggest::list(known)));
        };
        for (key, _) in members.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            let hint = suggest::hint(key, known, "the known keys are");
            self.report.add(&self.at.child(key), format!("the key is not known: {hint}"));
        }
        Some(Section { node: self.clone(), members })
    }

    fn child(&self, token: &str, value: &'a Value) -> Self {
        Self { value, at: self.at.child(token), report: self.report }
    }
}

/// An object with known keys.
#[derive(Debug)]
pub(super) struct Section<'a> {
    node: Node<'a>,
    members: &'a [(String, Value)],
}

impl<'a> Section<'a> {
    /// The object itself.
    pub(super) fn node(&self) -> &Node<'a> {
        &self.node
    }

    /// The value of `key`, when there is one.
    pub(super) fn get(&self, key: &str) -> Option<Node<'a>> {
        let (_, value) = self.members.iter().find(|(name, _)| name == key)?;
        Some(self.node.child(key, value))
    }

    /// The value of `key`, an empty object when there is none.
    pub(super) fn get_or_empty(&self, key: &str) -> Node<'a> {
        self.get(key).unwrap_or_else(|| self.node.child(key, &EMPTY))
    }

    /// What `read` makes of `key`, or `default` without it.
    pub(super) fn read_or<T>(
        &self,
        key: &str,
        default: T,
        read: impl FnOnce(&Node<'a>) -> Option<T>,
    ) -> Option<T> {
        self.get(key).map_or(Some(default), |node| read(&node))
    }

    /// What `read` makes of `key`; `Some(None)` without it.
    pub(super) fn optional<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Node<'a>) -> Option<T>,
    ) -> Option<Option<T>> {
        self.read_or(key, None, |node| read(node).map(Some))
    }

    /// What `read` makes of `key`, which must be there: `what` says what to give.
    pub(super) fn required<T>(
        &self,
        key: &str,
        what: &str,
        read: impl FnOnce(&Node<'a>) -> Option<T>,
    ) -> Option<T> {
        match self.get(key) {
            Some(node) => read(&node),
            None => self.refuse(key, format!("it is missing: give {what}")),
        }
    }

    /// Reports `message` for `key`, whether it is there or not.
    pub(super) fn refuse<T>(&self, key: &str, message: impl Into<String>) -> Option<T> {
        self.node.report.add(&self.node.at.child(key), message);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::error::ConfigErrors;
    use crate::config::json;

    fn read<T>(text: &str, reader: impl FnOnce(&Node<'_>) -> Option<T>) -> Result<T, String> {
        let value = json::parse(text).unwrap();
        let report = Report::default();
        let result = reader(&Node::new(&value, Pointer::default().child("k"), &report));
        report.finish(result).map_err(|errors: ConfigErrors| errors.to_string())
    }

    #[test]
    fn wrong_types_name_both_types_and_the_value() {
        let cases = [
            (
                read("5", |node| node.text().map(str::to_owned)).err(),
                "/k: expected a string, found the number 5",
            ),
            (
                read("true", |node| node.text().map(str::to_owned)).err(),
                "/k: expected a string, found the boolean true",
            ),
            (
                read("[1]", |node| node.text().map(str::to_owned)).err(),
                "/k: expected a string, found an array",
            ),
            (
                read("\"yes\"", |node| node.boolean()).err(),
                "/k: expected true or false, found the string \"yes\"",
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(found.as_deref(), Some(expected));
        }
    }

    #[test]
    fn null_is_no_value_and_the_way_out_is_told() {
        let message = read("null", |node| node.text().map(str::to_owned)).unwrap_err();
        assert!(message.contains("leave the key out"), "{message}");
    }

    #[test]
    fn numbers_have_a_range() {
        let number = |text: &str| read(text, |node| node.whole::<u16>(1..=100));
        assert_eq!(number("100"), Ok(100));
        for text in ["0", "-1", "101", "70000", "18446744073709551615"] {
            let message = number(text).unwrap_err();
            assert_eq!(message, format!("/k: {text} is out of range: give 1 to 100"));
        }
        for text in ["1.5", "1.0", "\"1\"", "1e300"] {
            let message = number(text).unwrap_err();
            assert!(message.starts_with("/k: expected a whole number, found"), "{text}");
        }
    }

    #[test]
    fn words_are_listed() {
        let word = |text: &str| read(text, |node| node.word(&[("auto", 1), ("kvm", 2)]));
        assert_eq!(word("\"kvm\""), Ok(2));
        let message = word("\"KVM\"").unwrap_err();
        assert!(message.contains(r#"did you mean "kvm"? it is one of "auto", "kvm""#), "{message}");
        let message = word("1").unwrap_err();
        assert!(message.contains(r#"expected one of "auto", "kvm", found"#), "{message}");
    }

    #[test]
    fn unknown_keys_are_pointed_to() {
        let text = r#"{"pool": 1, "poool": 1, "a/b": 1}"#;
        let message = read(text, |node| node.section(&["pool"]).map(drop)).unwrap_err();
        let expected = "/k/poool: the key is not known: did you mean \"pool\"?\n\
                        /k/a~1b: the key is not known: the known keys are \"pool\"";
        assert_eq!(message, expected);
    }

    #[test]
    fn secrets_are_not_repeated() {
        let secret = read("\"s3cret\"", |node| node.secret()).unwrap();
        assert_eq!(secret.expose(), b"s3cret");
        assert_eq!(
            read("12345", |node| node.secret()).unwrap_err(),
            "/k: expected a string or {\"base64\": TEXT}, found a number"
        );
        let bytes = read(r#"{"base64": "H4sI\n/w=="}"#, |node| node.secret()).unwrap();
        assert_eq!(bytes.expose(), b"\x1f\x8b\x08\xff");
        let refusal = read(r#"{"base64": "s3cret!"}"#, |node| node.secret()).unwrap_err();
        assert_eq!(refusal, "/k/base64: it is not base64 (RFC 4648)");
        assert!(read("{}", |node| node.secret()).unwrap_err().contains("/k/base64: it is missing"));
    }

    #[test]
    fn absent_keys_take_their_default_and_broken_ones_do_not() {
        let section = |text: &str, reader: fn(&Section<'_>) -> Option<Option<bool>>| {
            read(text, |node| reader(&node.section(&["a"])?))
        };
        assert_eq!(section("{}", |s| s.optional("a", Node::boolean)), Ok(None));
        assert_eq!(section("{}", |s| s.read_or("a", Some(true), |_| None)), Ok(Some(true)));
        assert!(section(r#"{"a": 1}"#, |s| s.optional("a", Node::boolean)).is_err());
        let missing = section("{}", |s| s.required("a", "a boolean", |n| n.boolean().map(Some)));
        assert_eq!(missing.unwrap_err(), "/k/a: it is missing: give a boolean");
    }
}
