//! What a valid marker means for the image that is configured now.

use std::path::Path;

use super::ImageSource;
use super::marker::Marker;
use crate::model::{Fault, FaultKind, Pin, Sha256Digest};

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

/// Holds `marker`, of the base at `path`, against `source`. A digest that is listed
/// elsewhere is not asked for: `Agrees` holds without it, and the other verdicts only
/// once it is resolved.
///
/// # Errors
/// `ForeignFile` for the base of another image, `DigestMismatch`, `UrlMismatch`.
pub fn judge(path: &Path, source: &ImageSource, marker: &Marker) -> Result<Verdict, Fault> {
    if !marker.is_of(source) {
        return Err(of_another(path, marker));
    }
    let moved = !marker.is_from(&source.url);
    match source.pin {
        Pin::Digest(wanted) if wanted != marker.sha256 => {
            Err(digest_mismatch(path, wanted, marker))
        }
        Pin::Digest(_) | Pin::Listed(_) if !marker.pinned => Ok(Verdict::NewlyPinned),
        Pin::Digest(_) | Pin::Listed(_) if moved => Ok(Verdict::Moved),
        Pin::None if moved => Err(url_mismatch(path, source, marker)),
        _ => Ok(Verdict::Agrees),
    }
}

fn digest_mismatch(path: &Path, wanted: Sha256Digest, marker: &Marker) -> Fault {
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

/// The fault of a base that isn't that of the image whose name it has.
pub fn of_another(path: &Path, marker: &Marker) -> Fault {
    let text = format!(
        "{} belongs to image {:?} of provider entry {:?}, whose names give the same file name: \
         it stays untouched; use another key or entry name",
        path.display(),
        marker.key.as_str(),
        marker.entry.as_str()
    );
    Fault::new(FaultKind::ForeignFile, text)
}

/// The fault of a marker that can't be judged.
pub fn of_later_version(path: &Path) -> Fault {
    let text = format!(
        "{} was written by a later version of proxyd: update this one, or use another image key",
        path.display()
    );
    Fault::new(FaultKind::ForeignFile, text)
}
