//! Taking a base out of the cache: never while anything uses it, the marker first.

use super::BaseUsers;
use super::marker::MarkerState;
use super::name::{base_file_name, marker_file_name, staged_file_name};
use super::pool::{DirectoryPool, ImageLock, PoolFence, Usage};
use super::rules::of_another;
use super::steps::{self, Step};
use crate::model::{EntryName, Fault, FaultKind, ImageFormat, ImageKey};

/// Removes the base of image `key` of `entry`, in whichever format it is there, and
/// tells the bytes that it had.
///
/// # Errors
/// `ImageInUse` naming the users, `NoSuchImage` when there is none, `Busy` while
/// somebody works on it, `ForeignFile` for what isn't its.
pub(super) fn evict(
    pool: &DirectoryPool,
    entry: &EntryName,
    key: &ImageKey,
    users: &dyn BaseUsers,
) -> Result<u64, Fault> {
    let mut bytes = None;
    for format in ImageFormat::ALL {
        let name = base_file_name(entry, key, format);
        // Without the lock: that alone would leave its file where no image ever was.
        if pool.stat(&name)?.is_none() && pool.stat(&marker_file_name(&name))?.is_none() {
            continue;
        }
        bytes = Some(bytes.unwrap_or(0) + evict_one(pool, &name, entry, key, users)?);
    }
    bytes.ok_or_else(|| {
        let text = format!(
            "{} holds no image {key} of provider entry {entry}: there is nothing to evict",
            pool.path().display()
        );
        Fault::new(FaultKind::NoSuchImage, text)
    })
}

fn evict_one(
    pool: &DirectoryPool,
    name: &str,
    entry: &EntryName,
    key: &ImageKey,
    users: &dyn BaseUsers,
) -> Result<u64, Fault> {
    let _lock = ImageLock::try_acquire(pool, name)?;
    let disks = users.disks()?;
    let fence = pool.fence()?;
    if let MarkerState::Valid(marker) = pool.marker(name)?
        && !marker.belongs_to(entry, key)
    {
        return Err(of_another(&pool.path_of(name), &marker));
    }
    let size = pool.regular(name)?.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    let users = Usage::survey(pool, &disks)?.of(name);
    if !users.is_empty() {
        return Err(in_use(pool, name, &users));
    }
    remove(&fence, name)?;
    Ok(size)
}

/// Removes marker and base, in that order: the marker never vouches for nothing.
pub(super) fn remove(fence: &PoolFence<'_>, name: &str) -> Result<(), Fault> {
    fence.unlink(&staged_file_name(name))?;
    fence.unlink(&marker_file_name(name))?;
    steps::passed(Step::EvictedMarker);
    fence.sync()?;
    steps::passed(Step::EvictedMarkerDurable);
    fence.unlink(name)?;
    steps::passed(Step::EvictedBase);
    fence.sync()
}

fn in_use(pool: &DirectoryPool, name: &str, users: &[String]) -> Fault {
    let text = format!(
        "{} is used by {}: delete that first",
        pool.path_of(name).display(),
        users.join(", ")
    );
    Fault::new(FaultKind::ImageInUse, text)
}
