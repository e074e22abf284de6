//! Which image a specification means, and how large its disk has to be.

use crate::config::{ImageSettings, Settings};
use crate::image::ImageSource;
use crate::model::{EntryName, Fault, FaultKind, Firmware, ImageChoice, ImageKey, ProxySpec};
use crate::store::BaseRef;

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
            .ok_or_else(|| no_such_image(&spec.provider, key)),
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
pub(super) fn no_such_image(entry: &EntryName, key: &ImageKey) -> Fault {
    Fault::new(
        FaultKind::NoSuchImage,
        format!(
            "provider entry {entry} offers no image {key}: add it under images in the \
             configuration, or give a URL"
        ),
    )
}

/// The overlay's size: what is asked for, but never less than the image presents.
pub(super) fn disk_size(spec: &ProxySpec, base: &BaseRef) -> Result<u64, Fault> {
    let Some(gib) = spec.disk_gib else { return Ok(base.virtual_size) };
    let wanted = gib << 30;
    if wanted >= base.virtual_size {
        return Ok(wanted);
    }
    let least = base.virtual_size.div_ceil(1 << 30);
    Err(Fault::new(
        FaultKind::InvalidArgument,
        format!(
            "DiskGiB {gib} is smaller than the image {}, whose disk has {} bytes: give at least \
             {least}, or leave it out",
            base.file, base.virtual_size
        ),
    ))
}
