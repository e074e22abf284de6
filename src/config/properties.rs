//! Properties of the reader as a whole: it never panics, never refuses without a
//! reason, and never lets a duplicate key pass.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::error::Pointer;
use super::json::Value;
use super::parse;

/// Keys and words that lead deep into the checks, and some that don't.
const WORDS: [&str; 49] = [
    "images",
    "providers",
    "proxies",
    "health",
    "url",
    "sha256",
    "sha256Url",
    "format",
    "firmware",
    "type",
    "uri",
    "pool",
    "network",
    "bridge",
    "virtType",
    "installGuestAgent",
    "vendorData",
    "ssh",
    "keyCredential",
    "knownHosts",
    "provider",
    "image",
    "imageSha256",
    "imageFormat",
    "userData",
    "allowedClients",
    "vcpus",
    "memoryMiB",
    "diskGiB",
    "port",
    "healthUrl",
    "autostart",
    "onRemoval",
    "interval",
    "timeout",
    "unhealthyAfter",
    "e",
    "a-b",
    "kvm",
    "raw",
    "auto",
    "http://u:p@h/x?y",
    "file:///x",
    "qemu:///system",
    "qemu+ssh://u@h/system",
    "10.0.0.0/8",
    "30s",
    "x/y~z",
    "PRIVATE KEY",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![8 => select(WORDS.as_slice()).prop_map(str::to_owned), 1 => any::<String>()]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|number| Value::Number(number.into())),
        (0_u64..1000).prop_map(|number| Value::Number(number.into())),
        any::<f64>().prop_filter_map("finite", |number| {
            serde_json::Number::from_f64(number).map(Value::Number)
        }),
        word().prop_map(Value::String),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            1 => vec(inner.clone(), 0..4).prop_map(Value::Array),
            4 => object(inner),
        ]
    })
}

fn object(member: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    vec((word(), member), 0..8).prop_map(|mut members| {
        let mut seen = std::collections::BTreeSet::new();
        members.retain(|(key, _)| seen.insert(key.clone()));
        Value::Object(members)
    })
}

/// A file with the right shape at the top, so that the checks are reached.
fn file() -> impl Strategy<Value = Value> {
    let names = || object(value());
    let top =
        (names(), names(), names(), value()).prop_map(|(images, providers, proxies, health)| {
            let members = [images, providers, proxies, health];
            let keys = ["images", "providers", "proxies", "health"].map(str::to_owned);
            Value::Object(keys.into_iter().zip(members).collect())
        });
    prop_oneof![4 => top, 1 => value()]
}

fn text(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(text).collect())),
        Value::Object(members) => {
            let member =
                |(key, value): &(String, Value)| format!("{}: {}", quoted(key), text(value));
            format!("{{{}}}", joined(members.iter().map(member).collect()))
        }
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// How many members all the objects in `value` have.
fn members(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(members).sum(),
        Value::Object(inner) => {
            inner.len() + inner.iter().map(|(_, value)| members(value)).sum::<usize>()
        }
        _ => 0,
    }
}

/// Repeats the key of member number `left`, with another value, somewhere behind it;
/// returns where.
fn duplicate(value: &mut Value, left: &mut usize, at: &Pointer) -> Option<Pointer> {
    match value {
        Value::Array(items) => items
            .iter_mut()
            .enumerate()
            .find_map(|(index, item)| duplicate(item, left, &at.child(&index.to_string()))),
        Value::Object(members) => {
            if let Some((key, _)) = members.get(*left) {
                let key = key.clone();
                let place = at.child(&key);
                members.push((key, Value::String("again".to_owned())));
                return Some(place);
            }
            *left -= members.len();
            members.iter_mut().find_map(|(key, value)| duplicate(value, left, &at.child(key)))
        }
        _ => None,
    }
}

proptest! {
    #[test]
    fn a_password_in_a_uri_is_never_repeated(
        scheme in select(["qemu+ssh://", "qemu://", "test://", "xen://", "qemu:", ""].as_slice()),
        before in any::<String>(),
        after in any::<String>(),
    ) {
        let uri = quoted(&format!("{scheme}{before}:hunter2@{after}"));
        let text = format!(r#"{{"providers": {{"e": {{"uri": {uri}, "ssh": {{}}}}}}}}"#);
        let errors = parse(&text).unwrap_err().to_string();
        prop_assert!(!errors.contains("hunter2"), "{}", errors);
    }

    #[test]
    fn any_text_is_accepted_or_refused_with_a_reason(text in any::<String>()) {
        if let Err(errors) = parse(&text) {
            prop_assert!(!errors.errors().is_empty());
        }
    }

    #[test]
    fn any_json_is_accepted_or_refused_with_a_reason(value in file()) {
        if let Err(errors) = parse(&text(&value)) {
            prop_assert!(!errors.errors().is_empty());
            prop_assert_eq!(errors.to_string().lines().count(), errors.errors().len());
        }
    }

    #[test]
    fn a_duplicate_key_is_always_reported(mut value in file(), index in any::<Index>()) {
        if members(&value) == 0 {
            value = Value::Object(vec![("images".to_owned(), value)]);
        }
        let mut left = index.index(members(&value));
        let place = duplicate(&mut value, &mut left, &Pointer::default()).unwrap().to_string();
        let errors = parse(&text(&value)).unwrap_err();
        let reported = errors.errors().iter().any(|error| {
            error.pointer == place && error.message.contains("given 2 times")
        });
        prop_assert!(reported, "{} is not in\n{}", place, errors);
    }
}
