//! Hashing a base that is there: what it is worth then.

use nix::sys::stat::FileStat;
use tokio_util::sync::CancellationToken;

use super::marker::Marker;
use super::pool::{self, DirectoryPool, ImageLock, Usage};
use super::progress::Progress;
use super::publish::in_use;
use super::steps::{self, Step};
use super::{BaseUsers, ImageSource, hash, inspect};
use crate::model::{Fault, FaultKind, Pin, Sha256Digest};

/// What came of it.
pub(super) enum Proof {
    /// It is what it should be, and its marker says so now.
    Good(Box<Marker>),
    /// It isn't, and nothing backs onto it.
    Debris(u64),
}

/// Hashes the base of `source`, and holds it against `marker`, or else against the
/// digest that is configured.
///
/// # Errors
/// `BaseChanged` when it is wrong and something backs onto it.
pub(super) fn prove(
    pool: &DirectoryPool,
    _lock: &ImageLock,
    source: &ImageSource,
    marker: Option<Box<Marker>>,
    users: &dyn BaseUsers,
    (progress, cancel): (&Progress, &CancellationToken),
) -> Result<Proof, Fault> {
    let name = source.base_name();
    let wanted = marker.as_ref().map(|marker| marker.content()).or(source.pin.digest());
    let (digest, stat, file) = measure(pool, &name, progress, cancel)?;
    if wanted != Some(digest) {
        let users = Usage::survey(pool, &users.disks()?)?.of(&name);
        return if users.is_empty() {
            Ok(Proof::Debris(stat.st_ino))
        } else {
            Err(in_use(pool, &name, &users))
        };
    }
    let good = match marker.clone() {
        Some(marker) => *marker,
        None => adopted(source, digest, &file, &stat)?,
    };
    let good = noted(good, source, &stat);
    let fence = pool.fence()?;
    still_there(pool, &name, &stat)?;
    fence.replace_marker(&name, marker.as_deref(), &good)?;
    Ok(Proof::Good(Box::new(good)))
}

/// Makes sure that the base `name` is the file that was hashed.
///
/// # Errors
/// `Busy` when it isn't.
pub(super) fn still_there(
    pool: &DirectoryPool,
    name: &str,
    hashed: &FileStat,
) -> Result<(), Fault> {
    if pool.stat(name)?.is_some_and(|found| found.st_ino == hashed.st_ino) {
        return Ok(());
    }
    let text = format!("{} was replaced while it was hashed", pool.path_of(name).display());
    Err(Fault::new(FaultKind::Busy, text))
}

/// Hashes the base `name`, all of it.
pub(super) fn measure(
    pool: &DirectoryPool,
    name: &str,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<(Sha256Digest, FileStat, std::fs::File), Fault> {
    let failed = |error: std::io::Error| pool.failed("read", name, error);
    let file = pool.open_file(name).map_err(failed)?;
    // From before: what is written meanwhile shows in the time.
    let stat = nix::sys::stat::fstat(&file).map_err(|error| failed(error.into()))?;
    let digest = hash::file(pool, name, &file, progress, cancel)?;
    steps::passed(Step::Hashed);
    Ok((digest, stat, file))
}

/// The marker of a base without one whose bytes were just found to be right.
fn adopted(
    source: &ImageSource,
    digest: Sha256Digest,
    file: &std::fs::File,
    stat: &FileStat,
) -> Result<Marker, Fault> {
    let virtual_size = inspect::virtual_size(file, source.format)
        .map_err(|why| Fault::new(FaultKind::ImageRejected, why))?;
    Ok(Marker::of_what_is_there(source, digest, pool::identity(stat).size, virtual_size))
}

/// `marker` with what it has to take note of.
fn noted(mut marker: Marker, source: &ImageSource, stat: &FileStat) -> Marker {
    marker.moved_to(&source.url);
    marker.pinned |= source.pin != Pin::None;
    marker.identity = Some(pool::identity(stat));
    marker
}
