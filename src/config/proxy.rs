//! `proxies`: Proxies that the file declares.

use std::collections::BTreeMap;

use super::health;
use super::image::absolute_if_file;
use super::provider::Entries;
use super::section::{Node, Section};
use super::settings::{DeclaredProxy, OnRemoval};
use super::shown::shown;
use super::suggest;
use crate::model::{EntryName, ImageKey, ProxyName, ProxySpec, SpecInput, SpecProblem, UrlOrigin};

/// The keys of a specification in camelCase, and `onRemoval`.
const KEYS: [&str; 14] = [
    "provider",
    "image",
    "imageSha256",
    "imageFormat",
    "userData",
    "networkConfig",
    "allowedClients",
    "vcpus",
    "memoryMiB",
    "diskGiB",
    "port",
    "healthUrl",
    "autostart",
    "onRemoval",
];

/// Proxies by name.
pub(super) type Proxies = BTreeMap<ProxyName, DeclaredProxy>;

/// Reads `proxies`. Without `entries`, which are broken then, what a Proxy refers to
/// can't be checked.
pub(super) fn read_all(node: &Node<'_>, entries: Option<&Entries>) -> Option<Proxies> {
    let mut proxies = Proxies::new();
    for (name, node) in node.members("proxies")? {
        let name = node.take(ProxyName::new(name));
        proxies.extend(name.zip(read(&node, entries)));
    }
    Some(proxies)
}

fn read(node: &Node<'_>, entries: Option<&Entries>) -> Option<DeclaredProxy> {
    let section = node.section(&KEYS)?;
    let on_removal = section.read_or("onRemoval", OnRemoval::default(), |node| {
        node.word(&[("delete", OnRemoval::Delete), ("keep", OnRemoval::Keep)])
    });
    let input = input(&section);
    if let Some(entries) = entries {
        check_references(&section, &input, entries);
    }
    let spec = validated(&section, input, entries);
    Some(DeclaredProxy { spec: spec?, on_removal: on_removal? })
}

fn only_entry(entries: &Entries) -> Option<&EntryName> {
    entries.keys().next().filter(|_| entries.len() == 1)
}

fn input(section: &Section<'_>) -> SpecInput {
    let text = |key| section.get(key).and_then(|node| node.text().map(str::to_owned));
    let secret = |key| section.get(key).and_then(|node| node.secret());
    let size = |key| section.get(key).and_then(|node| node.whole(1..=u64::MAX));
    SpecInput {
        provider: text("provider"),
        image: section.get("image").and_then(|node| image(&node)),
        image_sha256: text("imageSha256"),
        image_format: text("imageFormat"),
        user_data: secret("userData"),
        network_config: secret("networkConfig"),
        allowed_clients: section.get("allowedClients").and_then(|node| texts(&node)),
        vcpus: section.get("vcpus").and_then(|node| node.whole(1..=u32::MAX)),
        memory_mib: size("memoryMiB"),
        disk_gib: size("diskGiB"),
        port: section.get("port").and_then(|node| node.whole(1..=u16::MAX)),
        health_url: section.get("healthUrl").and_then(|node| health_url(&node)),
        autostart: section.get("autostart").and_then(|node| node.boolean()),
    }
}

fn image(node: &Node<'_>) -> Option<String> {
    let text = node.text_like("an image key or URL as a string")?;
    absolute_if_file(node, text)?;
    Some(text.to_owned())
}

fn texts(node: &Node<'_>) -> Option<Vec<String>> {
    let items = node.items("networks")?;
    Some(items.iter().filter_map(|item| item.text().map(str::to_owned)).collect())
}

/// Refused here, for the specification's own message is made for D-Bus callers.
fn health_url(node: &Node<'_>) -> Option<String> {
    health::http_url(node).map(String::from)
}

fn validated(
    section: &Section<'_>,
    input: SpecInput,
    entries: Option<&Entries>,
) -> Option<ProxySpec> {
    // With entries that can't be read, whether one must be named is not known.
    let open = input.provider.is_none() && entries.is_none_or(BTreeMap::is_empty);
    let only = entries.and_then(only_entry);
    let problems = input.validate(UrlOrigin::Configuration, only).map_err(|mut problems| {
        problems.retain(|problem| !open || problem.key != "Provider");
        problems
    });
    problems.map_err(|problems| report_all(section, problems)).ok()
}

fn report_all(section: &Section<'_>, problems: Vec<SpecProblem>) {
    let node = section.node();
    for SpecProblem { key, message } in problems {
        let key = camel_case(key);
        // A value of the wrong type is no missing one.
        if !node.report().mentions(node.at(), &key) {
            section.refuse::<()>(&key, message);
        }
    }
}

fn camel_case(key: &str) -> String {
    let mut letters = key.chars();
    let first = letters.next().map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// That the entry is there and offers the image.
fn check_references(section: &Section<'_>, input: &SpecInput, entries: &Entries) -> Option<()> {
    let entry = match (&input.provider, section.get("provider")) {
        // What is no identifier at all is refused with the specification.
        (Some(name), Some(node)) => known_entry(&node, EntryName::new(name).ok()?, entries)?,
        (None, Some(_)) => return None,
        _ => only_entry(entries)?.clone(),
    };
    let node = section.get("image")?;
    let image = input.image.as_deref().filter(|text| !text.contains(':'))?;
    known_image(&node, &ImageKey::new(image).ok()?, &entry, entries)
}

fn known_entry(node: &Node<'_>, name: EntryName, entries: &Entries) -> Option<EntryName> {
    if entries.contains_key(&name) {
        return Some(name);
    }
    let known: Vec<_> = entries.keys().map(EntryName::as_str).collect();
    let hint = suggest::hint_and_list(name.as_str(), &known, "there is");
    node.refuse(format!("there is no provider entry {:?}: {hint}", name.as_str()))
}

fn known_image(
    node: &Node<'_>,
    key: &ImageKey,
    entry: &EntryName,
    entries: &Entries,
) -> Option<()> {
    let declared = entries.get(entry)?;
    let images = &declared.images;
    if images.contains_key(key) || !declared.complete {
        return Some(());
    }
    let known: Vec<_> = images.keys().map(ImageKey::as_str).collect();
    let hint = match known.as_slice() {
        [] => "it offers none: add one under images, or give a URL".to_owned(),
        known => suggest::hint_and_list(key.as_str(), known, "it offers"),
    };
    let [entry, key] = [entry.as_str(), key.as_str()].map(shown);
    node.refuse(format!("the entry {entry} offers no image {key}: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{errors, errors_at, ok};
    use crate::model::ImageChoice;

    const BEFORE: &str = r#"{"images": {"debian-13": {"url": "http://h/d"}}"#;

    fn one(proxy: &str) -> DeclaredProxy {
        let settings = ok(&format!(r#"{BEFORE}, "proxies": {{"p": {proxy}}}}}"#));
        settings.proxies.into_values().next().unwrap()
    }

    fn refused(proxy: &str) -> Vec<String> {
        errors_at(&format!(r#"{BEFORE}, "proxies": {{"p": {proxy}}}}}"#))
    }

    fn refusal(proxy: &str) -> String {
        errors(&format!(r#"{BEFORE}, "proxies": {{"p": {proxy}}}}}"#)).remove(0).to_string()
    }

    #[test]
    fn keys_are_those_of_a_specification() {
        let expected = SpecInput::KEYS.map(camel_case);
        assert_eq!(KEYS[..expected.len()], expected);
    }

    #[test]
    fn defaults() {
        let proxy = one(r#"{"image": "debian-13"}"#);
        assert_eq!(proxy.spec.provider.as_str(), "local");
        assert_eq!(proxy.on_removal, OnRemoval::Delete);
    }

    #[test]
    fn all_keys() {
        let digest = "ab".repeat(32);
        let proxy = one(&format!(
            r##"{{"provider": "local", "image": "file:///srv/a", "imageSha256": "{digest}",
                "imageFormat": "raw", "userData": "#cloud-config\n", "networkConfig": "version: 2",
                "allowedClients": ["192.0.2.0/24"], "vcpus": 2, "memoryMiB": 512, "diskGiB": 8,
                "port": 8080, "healthUrl": "https://h/x", "autostart": false, "onRemoval": "keep"}}"##
        ));
        assert_eq!(proxy.on_removal, OnRemoval::Keep);
        let spec = proxy.spec;
        assert!(matches!(spec.image, ImageChoice::Url { sha256: Some(_), .. }));
        assert_eq!(spec.user_data.unwrap().expose(), b"#cloud-config\n");
        assert_eq!(spec.network_config.unwrap().expose(), b"version: 2");
        assert_eq!((spec.vcpus, spec.memory_mib, spec.disk_gib), (2, 512, Some(8)));
        assert_eq!((spec.port, spec.autostart), (8080, false));
        assert_eq!(spec.allowed_clients.len(), 1);
        assert_eq!(spec.health_url.unwrap().expose().as_str(), "https://h/x");
    }

    #[test]
    fn wrong_types_are_reported_once() {
        let mut keys = KEYS.to_vec();
        let members: Vec<_> = keys.iter().map(|key| format!(r#""{key}": 7.5"#)).collect();
        let mut found = refused(&format!("{{{}}}", members.join(", ")));
        found.sort();
        keys.sort_unstable();
        let expected: Vec<_> = keys.iter().map(|key| format!("/proxies/p/{key}")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn problems_of_the_specification_are_pointed_to() {
        let proxy = r#"{"provider": "local", "image": "debian-13", "imageFormat": "raw",
            "memoryMiB": 1, "diskGiB": 99999999, "vcpus": 9999, "allowedClients": ["10.0.0.1/8"],
            "healthUrl": "file:///x"}"#;
        let keys = ["healthUrl", "imageFormat", "allowedClients", "vcpus", "memoryMiB", "diskGiB"];
        assert_eq!(refused(proxy), keys.map(|key| format!("/proxies/p/{key}")));
        let found = refused(r#"{"image": "debian-13", "allowedClients": ["::/0", 5], "port": 0}"#);
        assert_eq!(found, ["/proxies/p/allowedClients/1", "/proxies/p/port"]);
    }

    #[test]
    fn secrets_are_not_repeated() {
        let message = refusal(r#"{"image": "debian-13", "userData": 12345}"#);
        assert!(!message.contains("12345"), "{message}");
    }

    #[test]
    fn an_unknown_key_is_suggested() {
        let message = refusal(r#"{"image": "debian-13", "memoryMb": 5}"#);
        assert!(message.contains(r#"did you mean "memoryMiB"?"#), "{message}");
    }

    #[test]
    fn an_unknown_entry_is_refused_with_what_there_is() {
        let message = refusal(r#"{"provider": "locla", "image": "debian-13"}"#);
        assert!(message.starts_with("/proxies/p/provider: "), "{message}");
        assert!(message.contains(r#"did you mean "local"? there is "local""#), "{message}");
    }

    #[test]
    fn an_image_that_is_not_offered_is_refused_with_what_is() {
        let message = refusal(r#"{"image": "debian-12"}"#);
        assert!(message.starts_with("/proxies/p/image: "), "{message}");
        assert!(message.contains(r#"it offers "debian-13""#), "{message}");
        let found = errors(r#"{"proxies": {"p": {"image": "x"}}}"#);
        assert!(found[0].message.contains("it offers none"), "{}", found[0]);
    }

    #[test]
    fn references_are_checked_beside_other_mistakes() {
        let found = refused(r#"{"image": "debian-12", "memoryMiB": 1}"#);
        assert_eq!(found, ["/proxies/p/image", "/proxies/p/memoryMiB"]);
    }

    #[test]
    fn what_is_broken_elsewhere_is_not_reported_as_missing_here() {
        let text = r#"{"images": {"a": {"url": 5}}, "proxies": {"p": {"image": "a"}}}"#;
        assert_eq!(errors_at(text), ["/images/a/url"]);
        let text = r#"{"providers": {"e": []}, "proxies": {"p": {"provider": "e", "image": "http://h/x"}}}"#;
        assert_eq!(errors_at(text), ["/providers/e"]);
        for providers in ["[]", "{}"] {
            let text =
                format!(r#"{{"providers": {providers}, "proxies": {{"p": {{"image": "x"}}}}}}"#);
            assert_eq!(errors_at(&text), ["/providers"]);
        }
        let text = r#"{"providers": {"e": {"images": 1}}, "proxies": {"p": {"image": "x"}}}"#;
        assert_eq!(errors_at(text), ["/providers/e/images"]);
        let text = r#"{"images": [], "proxies": {"p": {"image": "x"}}}"#;
        assert_eq!(errors_at(text), ["/images"]);
        let text = r#"{"providers": {"E": {}}, "proxies": {"p": {"image": "http://h/x"}}}"#;
        assert_eq!(errors_at(text), ["/providers/E"]);
    }

    #[test]
    fn with_two_entries_one_must_be_named() {
        let text =
            r#"{"providers": {"a": {}, "b": {}}, "proxies": {"p": {"image": "http://h/x"}}}"#;
        assert_eq!(errors_at(text), ["/proxies/p/provider"]);
    }

    #[test]
    fn names_and_removal_are_checked() {
        let text = format!(r#"{BEFORE}, "proxies": {{"P": {{"image": "debian-13"}}}}}}"#);
        assert_eq!(errors_at(&text), ["/proxies/P"]);
        let message = refusal(r#"{"image": "debian-13", "onRemoval": "remove"}"#);
        assert!(message.contains(r#""delete", "keep""#), "{message}");
        assert_eq!(refused(r#"{"image": "file:x"}"#), ["/proxies/p/image"]);
    }
}
