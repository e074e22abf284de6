//! A specification as it comes over the bus: `a{sv}`.

use std::collections::HashMap;

use zbus::{OwnedVariant, Variant};

use crate::model::{EntryName, Fault, FaultKind, ProxySpec, Secret, SpecInput, UrlOrigin};

/// Checks `values` whole and makes a specification of them.
///
/// # Errors
/// `InvalidArgument`, naming every key that is unknown, of the wrong type, or not
/// acceptable.
pub(super) fn parse(
    values: HashMap<String, OwnedVariant>,
    only_entry: Option<&EntryName>,
) -> Result<ProxySpec, Fault> {
    let mut input = SpecInput::default();
    let mut problems = Vec::new();
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(|a, b| a.0.cmp(&b.0));
    for (key, value) in values {
        if let Err(problem) = take(&mut input, &key, &value) {
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

fn take(input: &mut SpecInput, key: &str, value: &Variant<'_>) -> Result<(), String> {
    match key {
        "Provider" => put(&mut input.provider, text(value)),
        "Image" => put(&mut input.image, text(value)),
        "ImageSha256" => put(&mut input.image_sha256, text(value)),
        "ImageFormat" => put(&mut input.image_format, text(value)),
        "HealthUrl" => put(&mut input.health_url, text(value)),
        "UserData" => put(&mut input.user_data, secret(value)),
        "NetworkConfig" => put(&mut input.network_config, secret(value)),
        "AllowedClients" => put(&mut input.allowed_clients, texts(value)),
        "Vcpus" => put(
            &mut input.vcpus,
            typed(value, "u", |v| match v {
                Variant::U32(number) => Some(*number),
                _ => None,
            }),
        ),
        "MemoryMiB" => put(&mut input.memory_mib, long(value)),
        "DiskGiB" => put(&mut input.disk_gib, long(value)),
        "Port" => put(
            &mut input.port,
            typed(value, "q", |v| match v {
                Variant::U16(number) => Some(*number),
                _ => None,
            }),
        ),
        "Autostart" => put(
            &mut input.autostart,
            typed(value, "b", |v| match v {
                Variant::Bool(flag) => Some(*flag),
                _ => None,
            }),
        ),
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

fn typed<T>(
    value: &Variant<'_>,
    expected: &str,
    pick: impl Fn(&Variant<'_>) -> Option<T>,
) -> Result<T, String> {
    let inner = match value {
        // `busctl` users write a variant in a variant easily; it means the same.
        Variant::Variant(inner) => inner,
        other => other,
    };
    pick(inner).ok_or_else(|| {
        let found = inner.value_signature().to_string();
        format!("its type is {found:?}, and {expected:?} is expected")
    })
}

fn text(value: &Variant<'_>) -> Result<String, String> {
    typed(value, "s", |value| match value {
        Variant::Str(text) => Some(text.to_string()),
        _ => None,
    })
}

fn long(value: &Variant<'_>) -> Result<u64, String> {
    typed(value, "t", |value| match value {
        Variant::U64(number) => Some(*number),
        _ => None,
    })
}

fn texts(value: &Variant<'_>) -> Result<Vec<String>, String> {
    typed(value, "as", |value| match value {
        Variant::Array(array) => array
            .iter()
            .map(|item| match item {
                Variant::Str(text) => Some(text.to_string()),
                _ => None,
            })
            .collect(),
        _ => None,
    })
}

fn secret(value: &Variant<'_>) -> Result<Secret, String> {
    typed(value, "s or ay", |value| match value {
        Variant::Str(text) => Some(Secret::new(text.as_bytes().to_vec())),
        Variant::Array(array) => {
            let bytes = array.iter().map(|item| match item {
                Variant::U8(byte) => Some(*byte),
                _ => None,
            });
            bytes.collect::<Option<Vec<u8>>>().map(Secret::new)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(key: &str, value: Variant<'static>) -> String {
        let values = [
            ("Provider".to_owned(), Variant::from("home")),
            ("Image".to_owned(), Variant::from("debian-13")),
            (key.to_owned(), value),
        ];
        let values = values.map(|(key, value)| (key, OwnedVariant::try_from(value).unwrap()));
        let fault = parse(values.into(), None).unwrap_err();
        assert_eq!(fault.kind, FaultKind::InvalidArgument);
        fault.message
    }

    #[test]
    fn every_key_refuses_another_type_by_name() {
        for key in SpecInput::KEYS {
            let message = refused(key, Variant::from(-5_i64));
            assert!(message.starts_with(&format!("{key}: its type is \"x\"")), "{message}");
        }
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let message = refused("Memory", Variant::from(1_u64));
        assert!(message.contains("\"Memory\"") && message.contains("MemoryMiB"), "{message}");
    }

    #[test]
    fn user_data_as_text_and_as_bytes() {
        for value in [Variant::from("#!"), Variant::from(vec![b'#', b'!'])] {
            assert_eq!(secret(&value).unwrap().expose(), b"#!");
        }
    }

    #[test]
    fn a_file_url_is_refused() {
        let message = refused("HealthUrl", Variant::from("file:///etc/shadow"));
        assert!(message.starts_with("HealthUrl: "), "{message}");
    }
}
