//! `images`: what an entry offers.

use std::collections::BTreeMap;

use super::error::Pointer;
use super::section::{Node, Section};
use super::settings::ImageSettings;
use super::shown::shown;
use crate::model::{Firmware, ImageFormat, ImageKey, Pin, ResourceUrl, UrlOrigin};

const KEYS: [&str; 5] = ["url", "sha256", "sha256Url", "format", "firmware"];

/// An image that is declared, whether or not all is well with it: a Proxy that names
/// it must not be told that there is no such image.
#[derive(Debug, Clone)]
pub(super) struct DeclaredImage {
    pub(super) at: Pointer,
    pub(super) settings: Option<ImageSettings>,
}

/// Images by key.
pub(super) type Images = BTreeMap<ImageKey, DeclaredImage>;

/// Reads an `images` object.
pub(super) fn read_all(node: &Node<'_>) -> Option<Images> {
    let mut images = Images::new();
    for (key, node) in node.members("images")? {
        let key = node.take(ImageKey::new(key));
        let declared = DeclaredImage { at: node.at().clone(), settings: read(&node) };
        images.extend(key.map(|key| (key, declared)));
    }
    Some(images)
}

fn read(node: &Node<'_>) -> Option<ImageSettings> {
    let section = node.section(&KEYS)?;
    let url = section.required("url", "the image's http://, https:// or file:/// URL", url);
    let pin = pin(&section);
    let format = section.read_or("format", ImageFormat::default(), |node| {
        node.word(&ImageFormat::ALL.map(|format| (format.as_str(), format)))
    });
    let firmware = section.read_or("firmware", Firmware::default(), |node| {
        node.word(&[("uefi", Firmware::Uefi), ("bios", Firmware::Bios)])
    });
    Some(ImageSettings { url: url?, pin: pin?, format: format?, firmware: firmware? })
}

/// `sha256` or `sha256Url`, or neither.
fn pin(section: &Section<'_>) -> Option<Pin> {
    let sha256 = section.optional("sha256", |node| node.take(node.text()?.parse()));
    let listed = section.optional("sha256Url", url);
    match (sha256?, listed?) {
        (Some(_), Some(_)) => section.refuse(
            "sha256Url",
            "sha256 says already what the image must hash to: give one of the two",
        ),
        (sha256, None) => Some(sha256.into()),
        (None, Some(url)) => Some(Pin::Listed(url)),
    }
}

fn url(node: &Node<'_>) -> Option<ResourceUrl> {
    let text = node.text()?;
    absolute_if_file(node, text)?;
    let parsed = ResourceUrl::parse(text, UrlOrigin::Configuration);
    node.take(parsed.map_err(|error| format!("{} is no image URL: {error}", shown(text))))
}

/// Refuses `file:x`, which the URL standard reads as `file:///x`.
pub(super) fn absolute_if_file(node: &Node<'_>, text: &str) -> Option<()> {
    let starts_with = |prefix: &str| {
        text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    if !starts_with("file:") || starts_with("file:///") {
        return Some(());
    }
    node.refuse(format!("{} is not absolute: give file:///absolute/path", shown(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{errors_at, ok};

    #[test]
    fn defaults() {
        let settings = ok(r#"{"images": {"a": {"url": "https://h/a"}}}"#);
        let image = settings.providers.values().next().unwrap().images.values().next().unwrap();
        assert_eq!((image.format, image.firmware), (ImageFormat::Qcow2, Firmware::Uefi));
        assert_eq!(image.pin, Pin::None);
    }

    #[test]
    fn all_keys() {
        let digest = "ab".repeat(32);
        let settings = ok(&format!(
            r#"{{"images": {{"a": {{"url": "file:///srv/a.raw", "sha256": "{digest}",
                "format": "raw", "firmware": "bios"}}}}}}"#
        ));
        let image = settings.providers.values().next().unwrap().images.values().next().unwrap();
        assert_eq!((image.format, image.firmware), (ImageFormat::Raw, Firmware::Bios));
        assert_eq!(image.pin.digest().map(|sha256| sha256.to_string()), Some(digest));
    }

    #[test]
    fn a_digest_is_given_or_listed_and_not_both() {
        let settings =
            ok(r#"{"images": {"a": {"url": "https://h/a", "sha256Url": "https://h/S"}}}"#);
        let image = settings.providers.values().next().unwrap().images.values().next().unwrap();
        assert!(matches!(&image.pin, Pin::Listed(url) if url.to_string() == "https://h/S"));
        let digest = "ab".repeat(32);
        let both = format!(
            r#"{{"images": {{"a": {{"url": "https://h/a", "sha256": "{digest}",
                "sha256Url": "https://h/S"}},
                "b": {{"url": "https://h/a", "sha256Url": "ftp://h/S"}}}}}}"#
        );
        assert_eq!(errors_at(&both), ["/images/a/sha256Url", "/images/b/sha256Url"]);
    }

    #[test]
    fn every_mistake_is_pointed_to() {
        let text = r#"{"images": {
            "A_b": {"url": "http://h/x"},
            "b": {"sha256": "12", "format": "vmdk", "firmware": "efi", "sha": ""},
            "c": {"url": "ftp://h/x", "sha256": null},
            "d": "http://h/x"
        }}"#;
        let expected = [
            "/images/A_b",
            "/images/b/sha",
            "/images/b/url",
            "/images/b/sha256",
            "/images/b/format",
            "/images/b/firmware",
            "/images/c/url",
            "/images/c/sha256",
            "/images/d",
        ];
        assert_eq!(errors_at(text), expected);
    }

    #[test]
    fn files_are_absolute() {
        for url in ["file:x", "file://x/y", "file:/x", "FILE:x", "x"] {
            let text = format!(r#"{{"images": {{"a": {{"url": "{url}"}}}}}}"#);
            assert_eq!(errors_at(&text), ["/images/a/url"], "{url}");
        }
    }
}
