//! Hashing a base that is in use, to find damage that size and time don't show.

use tokio_util::sync::CancellationToken;

use super::marker::MarkerState;
use super::name::base_file_name;
use super::pool::{self, DirectoryPool, ImageLock};
use super::progress::Progress;
use super::prove::{measure, still_there};
use crate::model::{EntryName, Fault, FaultKind, ImageFormat, ImageKey, Sha256Digest};

/// The base of image `key` of `entry`.
///
/// # Errors
/// `NoSuchImage` when there is none with a valid marker.
pub(super) fn find(
    pool: &DirectoryPool,
    entry: &EntryName,
    key: &ImageKey,
) -> Result<String, Fault> {
    for format in ImageFormat::ALL {
        let name = base_file_name(entry, key, format);
        if let MarkerState::Valid(marker) = pool.marker(&name)?
            && marker.belongs_to(entry, key)
        {
            return Ok(name);
        }
    }
    let text = format!(
        "{} holds no verified image {key} of provider entry {entry}",
        pool.path().display()
    );
    Err(Fault::new(FaultKind::NoSuchImage, text))
}

/// Hashes the base `name`. When it is damaged its marker no longer vouches for it: no
/// overlay is made from it and no guest started on it until it is restored.
///
/// # Errors
/// `BaseChanged` with both digests.
pub(super) fn verify(
    pool: &DirectoryPool,
    _lock: &ImageLock,
    name: &str,
    (progress, cancel): (&Progress, &CancellationToken),
) -> Result<Sha256Digest, Fault> {
    let MarkerState::Valid(marker) = pool.marker(name)? else {
        let text = format!("the base {} went away meanwhile", pool.path_of(name).display());
        return Err(Fault::new(FaultKind::NoSuchImage, text));
    };
    if pool.regular(name)?.is_none() {
        let text = format!("the base {} has gone: fetch it", pool.path_of(name).display());
        return Err(Fault::new(FaultKind::NoSuchImage, text));
    }
    let (digest, stat, _) = measure(pool, name, progress, cancel)?;
    let good = digest == marker.content();
    let mut noted = marker.clone();
    if good {
        noted.identity = Some(pool::identity(&stat));
    } else {
        noted.renounce();
    }
    if noted != marker {
        let fence = pool.fence()?;
        still_there(pool, name, &stat)?;
        fence.replace_marker(name, Some(&marker), &noted)?;
    }
    if good {
        return Ok(marker.sha256);
    }
    let text = format!(
        "the base {} is damaged: it has the sha256 {digest}, and should have {}; no guest is \
         started on it any more: restore the file, or delete the Proxies that use it and evict it",
        pool.path_of(name).display(),
        marker.content()
    );
    Err(Fault::new(FaultKind::BaseChanged, text))
}
