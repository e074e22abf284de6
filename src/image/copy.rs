//! One download serves many entries: a base is made from another entry's verified
//! base of the same bytes.

use std::fs::File;
use std::io;

use nix::fcntl::copy_file_range;
use tokio_util::sync::CancellationToken;

use super::fetch::{Verified, Written, verify};
use super::marker::{Marker, MarkerState, Validators};
use super::pool::{DirectoryPool, canceled};
use super::progress::{Progress, Stage};
use super::steps::{self, Step};
use super::{ImageSource, hash};
use crate::model::{Fault, FaultKind, Sha256Digest};

/// How much is copied between two looks at whether it is to go on.
const PORTION: usize = 64 << 20;

/// A verified copy of another entry's base with the digest that `source` is pinned
/// to; nothing when there is none, or none that can be used.
pub(super) fn copy(
    pool: &DirectoryPool,
    source: &ImageSource,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Option<Verified>, Fault> {
    let Some(wanted) = source.pin.digest() else { return Ok(None) };
    for name in pool.base_names()? {
        let Some(marker) = twin(pool, source, wanted, &name)? else { continue };
        match attempt(pool, source, &name, &marker, progress, cancel) {
            Ok(verified) => return Ok(Some(verified)),
            Err(fault) if cancel.is_cancelled() || fault.kind == FaultKind::NoSpace => {
                return Err(fault);
            }
            Err(fault) => tracing::warn!("{name} can't be copied, so it is downloaded: {fault}"),
        }
    }
    Ok(None)
}

/// The marker of `name`, when it has the same bytes as the base of `source` would.
fn twin(
    pool: &DirectoryPool,
    source: &ImageSource,
    wanted: Sha256Digest,
    name: &str,
) -> Result<Option<Marker>, Fault> {
    // One of a later version says nothing to us.
    let Ok(MarkerState::Valid(marker)) = pool.marker(name) else { return Ok(None) };
    let same = marker.sha256 == wanted && marker.format == source.format;
    let fits = same && !marker.is_of(source) && marker.base_name() == name;
    Ok((fits && pool.is_identical(name, &marker)?).then_some(*marker))
}

fn attempt(
    pool: &DirectoryPool,
    source: &ImageSource,
    name: &str,
    marker: &Marker,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Verified, Fault> {
    let failed = |error: io::Error| pool.failed("copied", name, error);
    let from = pool.open_file(name).map_err(failed)?;
    let base = source.base_name();
    let file = pool.unnamed(&base)?;
    tracing::info!("making {base} from {name}, which has the same sha256");
    progress.enter(Stage::Copying, marker.size);
    clone(&from, &file, progress, cancel).map_err(|error| match error {
        Some(error) => failed(error),
        None => canceled(),
    })?;
    steps::passed(Step::Copied);
    let content = hash::file(pool, &base, &file, progress, cancel)?;
    if content != marker.content() {
        return Err(failed(io::Error::other("its bytes are not those that its marker tells")));
    }
    let arrived = Written { file, size: marker.size, digests: marker.digests(), flaw: None };
    verify(pool, source, (arrived, Validators::default()), Some(name.to_owned()))
}

/// Copies all of `from`. The kernel shares the blocks where the file system can. No
/// error means that it was called off.
fn clone(
    from: &File,
    to: &File,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<(), Option<io::Error>> {
    loop {
        if cancel.is_cancelled() {
            return Err(None);
        }
        match copy_file_range(from, None, to, None, PORTION) {
            Ok(0) => return Ok(()),
            Ok(copied) => progress.advance(copied),
            Err(error) => return Err(Some(error.into())),
        }
    }
}
