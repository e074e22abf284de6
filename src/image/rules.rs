//! What a valid marker means for the image that is configured now.

use std::path::Path;

use super::ImageSource;
use super::marker::Marker;
use crate::model::{Fault, FaultKind};

/// How a marker and the configuration go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They agree.
    Agrees,
    /// The bytes are the same, by their digest, and come from another URL now.
    Moved,
    /// A digest is configured now that was not when the base was hashed: it is hashed
    /// once more before it is trusted.
    NewlyPinned,
}

/// Holds `marker`, of the base at `path`, against `source`.
///
/// # Errors
/// `ForeignFile` for the base of another image, `DigestMismatch`, `UrlMismatch`.
pub fn judge(path: &Path, source: &ImageSource, marker: &Marker) -> Result<Verdict, Fault> {
    if !marker.is_of(source) {
        return Err(of_another(path, marker));
    }
    match source.sha256 {
        Some(wanted) if wanted != marker.sha256 => Err(digest_mismatch(path, wanted, marker)),
        Some(_) if !marker.pinned => Ok(Verdict::NewlyPinned),
        Some(_) if !marker.is_from(&source.url) => Ok(Verdict::Moved),
        None if !marker.is_from(&source.url) => Err(url_mismatch(path, source, marker)),
        _ => Ok(Verdict::Agrees),
    }
}

fn digest_mismatch(path: &Path, wanted: crate::model::Sha256Digest, marker: &Marker) -> Fault {
    let text = format!(
        "the base {} has the sha256 {}, and {wanted} is configured: restore the old digest, or \
         add the new image under a new key; nothing was removed or fetched",
        path.display(),
        marker.sha256
    );
    Fault::new(FaultKind::DigestMismatch, text)
}

fn url_mismatch(path: &Path, source: &ImageSource, marker: &Marker) -> Fault {
    let text = format!(
        "the base {} came from {}, and {} is configured without a sha256 that would tell that \
         they are the same: restore the old URL, configure sha256 {} if they are, or add the new \
         image under a new key",
        path.display(),
        marker.url,
        source.url,
        marker.sha256
    );
    Fault::new(FaultKind::UrlMismatch, text)
}

fn of_another(path: &Path, marker: &Marker) -> Fault {
    let text = format!(
        "{} belongs to image {:?} of provider entry {:?}, whose names give the same file name: \
         it stays untouched; use another key or entry name",
        path.display(),
        marker.key.as_str(),
        marker.entry.as_str()
    );
    Fault::new(FaultKind::ForeignFile, text)
}
