//! A specification as it comes over the bus: `a{sv}`.

use std::collections::HashMap;

use super::value::SpecValue;
use crate::model::{EntryName, Fault, FaultKind, ProxySpec, Secret, SpecInput, UrlOrigin};

/// Checks `values` whole and makes a specification of them.
///
/// # Errors
/// `InvalidArgument`, naming every key that is unknown, of the wrong type, or not
/// acceptable.
pub(super) fn parse(
    values: HashMap<String, SpecValue>,
    only_entry: Option<&EntryName>,
) -> Result<ProxySpec, Fault> {
    checked(SpecInput::default(), values, only_entry)
}

/// Checks `values` whole and puts them in place of what `before` has. What was said of
/// another image's bytes is not kept.
///
/// # Errors
/// As for [`parse`].
pub(super) fn merge(
    values: HashMap<String, SpecValue>,
    before: &ProxySpec,
) -> Result<ProxySpec, Fault> {
    let mut input = SpecInput::of(before);
    if values.contains_key("Image") {
        (input.image_sha256, input.image_format) = (None, None);
    }
    checked(input, values, None)
}

fn checked(
    mut input: SpecInput,
    values: HashMap<String, SpecValue>,
    only_entry: Option<&EntryName>,
) -> Result<ProxySpec, Fault> {
    let mut problems = Vec::new();
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(|a, b| a.0.cmp(&b.0));
    for (key, value) in values {
        if let Err(problem) = take(&mut input, &key, value) {
            problems.push(problem);
        }
    }
    if problems.is_empty() {
        match input.validate(UrlOrigin::Api, only_entry) {
            Ok(spec) => return Ok(spec),
            Err(found) => problems.extend(found.iter().map(ToString::to_string)),
        }
    }
    Err(Fault::new(FaultKind::InvalidArgument, problems.join("; ")))
}

/// What a value of just one type holds.
macro_rules! only {
    ($value:ident, $kind:ident, $signature:literal) => {
        match $value {
            SpecValue::$kind(held) => Ok(held),
            other => mistaken(&other, $signature),
        }
    };
}

fn take(input: &mut SpecInput, key: &str, value: SpecValue) -> Result<(), String> {
    match key {
        "Provider" => put(&mut input.provider, text(value)),
        "Image" => put(&mut input.image, text(value)),
        "ImageSha256" => put(&mut input.image_sha256, text(value)),
        "ImageFormat" => put(&mut input.image_format, text(value)),
        "HealthUrl" => put(&mut input.health_url, text(value)),
        "UserData" => put(&mut input.user_data, secret(value)),
        "NetworkConfig" => put(&mut input.network_config, secret(value)),
        "AllowedClients" => put(&mut input.allowed_clients, only!(value, Texts, "as")),
        "Vcpus" => put(&mut input.vcpus, only!(value, U32, "u")),
        "MemoryMiB" => put(&mut input.memory_mib, long(value)),
        "DiskGiB" => put(&mut input.disk_gib, long(value)),
        "Port" => put(&mut input.port, only!(value, U16, "q")),
        "Autostart" => put(&mut input.autostart, only!(value, Flag, "b")),
        _ => {
            let shown: String = key.chars().take(80).collect();
            return Err(format!(
                "{shown:?} is no key of a Proxy: use {}",
                SpecInput::KEYS.join(", ")
            ));
        }
    }
    .map_err(|error| format!("{key}: {error}"))
}

fn put<T>(slot: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *slot = Some(value?);
    Ok(())
}

fn mistaken<T>(value: &SpecValue, expected: &str) -> Result<T, String> {
    Err(format!("its type is {:?}, and {expected:?} is expected", value.signature()))
}

fn text(value: SpecValue) -> Result<String, String> {
    only!(value, Text, "s")
}

fn long(value: SpecValue) -> Result<u64, String> {
    only!(value, U64, "t")
}

fn secret(value: SpecValue) -> Result<Secret, String> {
    match value {
        SpecValue::Text(text) => Ok(Secret::new(text.into_bytes())),
        SpecValue::Bytes(bytes) => Ok(Secret::new(bytes)),
        other => mistaken(&other, "s or ay"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(key: &str, value: SpecValue) -> String {
        let text = |text: &str| SpecValue::Text(text.into());
        let values = [("Provider", text("home")), ("Image", text("debian-13")), (key, value)];
        let values = values.map(|(key, value)| (key.to_owned(), value));
        let fault = parse(values.into(), None).unwrap_err();
        assert_eq!(fault.kind, FaultKind::InvalidArgument);
        fault.message
    }

    #[test]
    fn every_key_refuses_another_type_by_name() {
        for key in SpecInput::KEYS {
            let message = refused(key, SpecValue::Other("x".into()));
            assert!(message.starts_with(&format!("{key}: its type is \"x\"")), "{message}");
        }
    }

    #[test]
    fn an_update_changes_what_it_names_and_nothing_else() {
        let text = |text: &str| SpecValue::Text(text.into());
        let of = |values: &[(&str, SpecValue)]| {
            values.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
        };
        let sha256 = "0".repeat(64);
        let before = parse(
            of(&[
                ("Provider", text("home")),
                ("Image", text("http://u:p@h/a.raw")),
                ("ImageSha256", text(&sha256)),
                ("ImageFormat", text("raw")),
                ("UserData", SpecValue::Bytes(vec![0, 255])),
                ("AllowedClients", SpecValue::Texts(vec!["192.0.2.0/24".into()])),
                ("DiskGiB", SpecValue::U64(9)),
                ("HealthUrl", text("http://h/204")),
                ("Autostart", SpecValue::Flag(false)),
            ]),
            None,
        )
        .unwrap();
        assert_eq!(merge(HashMap::new(), &before).unwrap(), before);
        let after = merge(of(&[("Vcpus", SpecValue::U32(3))]), &before).unwrap();
        assert_eq!(after, ProxySpec { vcpus: 3, ..before.clone() });
        // What vouched for the old image does not vouch for another.
        let after = merge(of(&[("Image", text("debian-13"))]), &before).unwrap();
        assert_eq!(after.image.shown(), "debian-13");
        let fault = merge(of(&[("Vcpu", SpecValue::U32(3))]), &before).unwrap_err();
        assert_eq!(fault.kind, FaultKind::InvalidArgument);
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let message = refused("Memory", SpecValue::U64(1));
        assert!(message.contains("\"Memory\"") && message.contains("MemoryMiB"), "{message}");
    }

    #[test]
    fn user_data_as_text_and_as_bytes() {
        for value in [SpecValue::Text("#!".into()), SpecValue::Bytes(b"#!".to_vec())] {
            assert_eq!(secret(value).unwrap().expose(), b"#!");
        }
    }

    #[test]
    fn a_file_url_is_refused() {
        let message = refused("HealthUrl", SpecValue::Text("file:///etc/shadow".into()));
        assert!(message.starts_with("HealthUrl: "), "{message}");
    }
}
