//! Which image a specification means, and how large its disk has to be.

use std::net::SocketAddr;

use crate::config::{HealthSettings, ImageSettings, Settings};
use crate::health::Target;
use crate::image::ImageSource;
use crate::model::{
    Address, EntryName, Fault, FaultKind, Firmware, ImageChoice, ImageKey, ProxySpec,
};

/// The image that `spec` names, as `settings` have it, and the firmware that boots it.
///
/// # Errors
/// `NoSuchImage` for a key that the entry doesn't offer.
pub(super) fn resolve(
    settings: &Settings,
    spec: &ProxySpec,
) -> Result<(ImageSource, Firmware), Fault> {
    match &spec.image {
        ImageChoice::Key(key) => settings
            .providers
            .get(&spec.provider)
            .and_then(|entry| entry.images.get(key))
            .map(|image| (keyed(&spec.provider, key, image), image.firmware))
            .ok_or_else(|| no_such_image(settings, &spec.provider, key)),
        ImageChoice::Url { url, sha256, format } => {
            let source = ImageSource {
                entry: spec.provider.clone(),
                key: ImageKey::of_url(url),
                url: url.clone(),
                pin: (*sha256).into(),
                format: *format,
            };
            Ok((source, Firmware::Uefi))
        }
    }
}

/// The image `key` of `entry`, as the configuration has it.
pub(super) fn keyed(entry: &EntryName, key: &ImageKey, image: &ImageSettings) -> ImageSource {
    ImageSource {
        entry: entry.clone(),
        key: key.clone(),
        url: image.url.clone(),
        pin: image.pin.clone(),
        format: image.format,
    }
}

/// The refusal for a key that `entry` doesn't offer.
pub(super) fn no_such_image(settings: &Settings, entry: &EntryName, key: &ImageKey) -> Fault {
    let offered = settings.providers.get(entry).into_iter().flat_map(|entry| entry.images.keys());
    let offered: Vec<_> = offered.map(ImageKey::as_str).collect();
    let has = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
    Fault::new(
        FaultKind::NoSuchImage,
        format!(
            "provider entry {entry} offers no image {key} (it has: {has}): add it under images in \
             the configuration, or create a Proxy with its URL"
        ),
    )
}

/// What is probed of a Proxy of `spec` whose guest has `address`.
pub(super) fn target(health: &HealthSettings, spec: &ProxySpec, address: Address) -> Target {
    Target {
        proxy: SocketAddr::new(address.ip, spec.port),
        url: spec.health_url.clone().unwrap_or_else(|| health.url.clone()),
        expect_status: health.expect_status,
        timeout: health.timeout,
        source: None,
    }
}

/// The overlay's size: what is asked for, but never less than the image `file`, which
/// presents a disk of `presented` bytes.
pub(super) fn disk_size(spec: &ProxySpec, file: &str, presented: u64) -> Result<u64, Fault> {
    let Some(gib) = spec.disk_gib else { return Ok(presented) };
    let wanted = gib << 30;
    if wanted >= presented {
        return Ok(wanted);
    }
    let least = presented.div_ceil(1 << 30);
    Err(Fault::new(
        FaultKind::InvalidArgument,
        format!(
            "DiskGiB {gib} is smaller than the image {file}, whose disk has {presented} bytes: \
             give at least {least}, or leave it out"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{SpecInput, UrlOrigin};

    fn spec(image: &str, disk_gib: Option<u64>) -> ProxySpec {
        let (provider, image) = (Some("home".into()), Some(image.into()));
        let input = SpecInput { provider, image, disk_gib, ..SpecInput::default() };
        input.validate(UrlOrigin::Api, None).unwrap()
    }

    #[test]
    fn a_disk_is_never_smaller_than_its_image() {
        let size = |gib| disk_size(&spec("a", gib), "base-home-a.qcow2", (2 << 30) + 1);
        assert_eq!(size(None), Ok((2 << 30) + 1));
        assert_eq!(size(Some(3)), Ok(3 << 30));
        let fault = size(Some(2)).unwrap_err();
        assert!(fault.is_permanent());
        for part in ["DiskGiB 2", "base-home-a.qcow2", "2147483649 bytes", "at least 3"] {
            assert!(fault.message.contains(part), "{fault}");
        }
    }

    #[test]
    fn an_image_given_as_a_url_boots_by_uefi() {
        let settings = crate::config::parse(r#"{"providers": {"home": {}}}"#).unwrap();
        let (source, firmware) = resolve(&settings, &spec("http://h/a.qcow2", None)).unwrap();
        assert_eq!(firmware, Firmware::Uefi);
        assert_eq!(source.key.as_str().len(), 16);
        assert_eq!(resolve(&settings, &spec("a", None)).unwrap_err().kind, FaultKind::NoSuchImage);
    }
}
