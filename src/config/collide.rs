//! No two images may share a file, nor one name stand for two images.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use super::error::{Pointer, Report};
use super::image::DeclaredImage;
use super::provider::Entries;
use super::proxy::Proxies;
use super::settings::DeclaredProxy;
use crate::image::base_file_name;
use crate::model::{EntryName, ImageChoice, ImageFormat, ImageKey, ResourceUrl, Sha256Digest};

/// An image and the name under which its entry keeps it.
#[derive(Debug)]
struct Claim<'a> {
    entry: &'a EntryName,
    key: ImageKey,
    url: &'a ResourceUrl,
    sha256: Option<Sha256Digest>,
    format: ImageFormat,
    at: Pointer,
}

impl Claim<'_> {
    /// Two digests contradict each other; one and none don't.
    fn same_image(&self, other: &Self) -> bool {
        let contradict = self.sha256.zip(other.sha256).is_some_and(|(one, two)| one != two);
        self.url == other.url && self.format == other.format && !contradict
    }

    fn described(&self) -> String {
        let digest = self.sha256.map(|sha256| format!(" with sha256 {sha256}"));
        format!("{} as {}{} ({})", self.url, self.format, digest.unwrap_or_default(), self.at)
    }
}

/// Reports images that can't both be kept.
pub(super) fn check(entries: &Entries, proxies: &Proxies, report: &Report) {
    let mut images = BTreeMap::new();
    for claim in offered(entries).chain(declared(proxies)) {
        match images.entry((claim.entry, claim.key.clone())) {
            Slot::Vacant(slot) => drop(slot.insert(claim)),
            Slot::Occupied(mut slot) => check_image(slot.get_mut(), claim, report),
        }
    }
    let mut files = BTreeMap::new();
    for claim in images.into_values() {
        match files.entry(base_file_name(claim.entry, &claim.key, claim.format)) {
            Slot::Vacant(slot) => drop(slot.insert(claim)),
            Slot::Occupied(slot) => report_file(&claim, slot.get(), slot.key(), report),
        }
    }
}

fn offered(entries: &Entries) -> impl Iterator<Item = Claim<'_>> {
    entries.iter().flat_map(|(entry, declared)| {
        declared.images.iter().filter_map(move |(key, image)| offer(entry, key, image))
    })
}

fn offer<'a>(entry: &'a EntryName, key: &ImageKey, image: &'a DeclaredImage) -> Option<Claim<'a>> {
    let settings = image.settings.as_ref()?;
    Some(Claim {
        entry,
        key: key.clone(),
        url: &settings.url,
        sha256: settings.pin.digest(),
        format: settings.format,
        at: image.at.clone(),
    })
}

fn declared(proxies: &Proxies) -> impl Iterator<Item = Claim<'_>> {
    proxies.iter().filter_map(|(name, DeclaredProxy { spec, .. })| match &spec.image {
        ImageChoice::Key(_) => None,
        ImageChoice::Url { url, sha256, format } => Some(Claim {
            entry: &spec.provider,
            key: ImageKey::of_url(url),
            url,
            sha256: *sha256,
            format: *format,
            at: ["proxies", name.as_str(), "image"]
                .iter()
                .fold(Pointer::default(), |at, token| at.child(token)),
        }),
    })
}

fn check_image<'a>(kept: &mut Claim<'a>, claim: Claim<'a>, report: &Report) {
    if kept.same_image(&claim) {
        // The digest counts for whatever comes next, too.
        kept.sha256 = kept.sha256.or(claim.sha256);
        return;
    }
    let message = format!(
        "the key {:?} of entry {:?} stands for two images, {} and {}: give one of them another \
         key, or make them the same",
        claim.key,
        claim.entry.as_str(),
        kept.described(),
        claim.described()
    );
    report.add(&claim.at, message);
}

fn report_file(claim: &Claim<'_>, other: &Claim<'_>, file: &str, report: &Report) {
    let message = format!(
        "image {:?} of entry {:?} ({}) and image {:?} of entry {:?} ({}) would share the file \
         {file:?}: rename one of these keys or entries",
        other.key,
        other.entry.as_str(),
        other.at,
        claim.key,
        claim.entry.as_str(),
        claim.at
    );
    report.add(&claim.at, message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{errors, ok};

    const URL: &str = "http://h/a.qcow2";

    fn key() -> String {
        ImageKey::of_url(&ResourceUrl::parse(URL, crate::model::UrlOrigin::Api).unwrap())
            .to_string()
    }

    /// One entry `e` with `images`, and Proxies `p0`, `p1`, … of these keys.
    fn file(images: &str, proxies: &[&str]) -> String {
        let numbered = proxies.iter().enumerate();
        let proxies: Vec<_> = numbered.map(|(n, keys)| format!(r#""p{n}": {{{keys}}}"#)).collect();
        format!(
            r#"{{"providers": {{"e": {{"images": {{{images}}}}}}}, "proxies": {{{}}}}}"#,
            proxies.join(", ")
        )
    }

    #[test]
    fn two_images_of_one_file_are_refused_naming_both() {
        let found = errors(
            r#"{"providers": {
                "a": {"images": {"b-c": {"url": "http://h/1"}}},
                "a-b": {"images": {"c": {"url": "http://h/2"}}}}}"#,
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pointer, "/providers/a-b/images/c");
        for part in ["\"b-c\"", "/providers/a/images/b-c", "\"a-b\"", "base-a-b-c.qcow2"] {
            assert!(found[0].message.contains(part), "{}", found[0]);
        }
    }

    #[test]
    fn inherited_images_collide_too() {
        let found = errors(
            r#"{"images": {"c": {"url": "http://h/1"}, "b-c": {"url": "http://h/2"}},
                "providers": {"a": {}, "a-b": {}}}"#,
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pointer, "/images/c");
        assert!(found[0].message.contains("/images/b-c"), "{}", found[0]);
    }

    #[test]
    fn another_format_is_another_file() {
        ok(r#"{"providers": {
            "a": {"images": {"b-c": {"url": "http://h/1", "format": "raw"}}},
            "a-b": {"images": {"c": {"url": "http://h/2"}}}}}"#);
    }

    #[test]
    fn a_url_image_has_a_file_as_well() {
        let key = key();
        let found = errors(&format!(
            r#"{{"providers": {{"a": {{"images": {{"b-{key}": {{"url": "http://h/1"}}}}}}, "a-b": {{}}}},
                "proxies": {{"p": {{"provider": "a-b", "image": "{URL}"}}}}}}"#
        ));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pointer, "/proxies/p/image");
    }

    #[test]
    fn a_key_that_equals_a_url_key_is_refused_naming_both() {
        let images = format!(r#""{}": {{"url": "http://h/other"}}"#, key());
        let found = errors(&file(&images, &[&format!(r#""image": "{URL}""#)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pointer, "/proxies/p0/image");
        for part in ["http://h/other", URL, "/providers/e/images/"] {
            assert!(found[0].message.contains(part), "{}", found[0]);
        }
    }

    #[test]
    fn a_key_that_equals_the_key_of_its_own_url_is_fine() {
        let images = format!(r#""{}": {{"url": "{URL}"}}"#, key());
        ok(&file(&images, &[&format!(r#""image": "{URL}""#)]));
    }

    #[test]
    fn one_url_may_be_used_often_but_pinned_once() {
        let plain = format!(r#""image": "{URL}""#);
        let [one, two] =
            ["11", "22"].map(|byte| format!(r#"{plain}, "imageSha256": "{}""#, byte.repeat(32)));
        ok(&file("", &[&plain, &plain]));
        ok(&file("", &[&one, &plain, &one]));
        let found = errors(&file("", &[&plain, &one, &two]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pointer, "/proxies/p2/image");
        let raw = format!(r#"{plain}, "imageFormat": "raw""#);
        assert_eq!(errors(&file("", &[&plain, &raw]))[0].pointer, "/proxies/p1/image");
    }
}
