//! Giving a verified image its name: without clobbering, durable, the marker last.

use nix::sys::stat::{Mode, SFlag};

use super::download::Verified;
use super::lock::ImageLock;
use super::marker::{Marker, MarkerState};
use super::name::marker_file_name;
use super::pool::{self, PoolFence};
use super::{BaseUsers, ImageSource, users};
use crate::model::{Fault, FaultKind};

/// What stood at the base's name when it was decided to replace it: debris of this
/// inode, or nothing.
pub(super) type Debris = Option<u64>;

/// Publishes `verified` as the base of `source`. `debris` is what may be removed for
/// it, unless something backs onto it; the lock is what makes that ours to say.
///
/// # Errors
/// `ForeignFile` when something else has appeared at the name; `BaseChanged` when
/// something backs onto the debris.
pub(super) fn publish(
    fence: &PoolFence<'_>,
    _lock: &ImageLock,
    source: &ImageSource,
    verified: &Verified,
    debris: Debris,
    domains: &dyn BaseUsers,
) -> Result<Marker, Fault> {
    let name = source.base_name();
    let marker_name = marker_file_name(&name);
    clear(fence, &name, debris, domains)?;
    let mode = Mode::S_IRUSR | Mode::S_IRGRP | Mode::S_IROTH;
    nix::sys::stat::fchmod(verified.file(), mode)
        .map_err(|error| fence.pool().failed("published", &name, error.into()))?;
    fence.link(verified.file(), &name)?;
    fence.sync()?;
    let mut marker = verified.marker(source);
    marker.identity = fence.pool().stat(&name)?.as_ref().map(pool::identity);
    fence.write_marker(&marker_name, &marker)?;
    Ok(marker)
}

/// Removes an old marker and the debris, in that order: a marker never vouches for
/// what comes after.
fn clear(
    fence: &PoolFence<'_>,
    name: &str,
    debris: Debris,
    domains: &dyn BaseUsers,
) -> Result<(), Fault> {
    let found = fence.pool().stat(name)?.map(|stat| stat.st_ino);
    if found != debris {
        return Err(pool::foreign_file(fence.pool(), name));
    }
    if debris.is_some() {
        let users = users::find(fence.pool(), name, domains)?;
        if !users.is_empty() {
            return Err(in_use(fence.pool(), name, &users));
        }
    }
    fence.unlink(&marker_file_name(name))?;
    fence.sync()?;
    if debris.is_some() {
        tracing::warn!(
            "removing {}, which has no valid marker",
            fence.pool().path_of(name).display()
        );
        fence.unlink(name)?;
    }
    Ok(())
}

/// The fault of a base that is not what it should be, and can't be replaced.
pub(super) fn in_use(pool: &pool::DirectoryPool, name: &str, users: &[String]) -> Fault {
    let text = format!(
        "{} is not the image it should be, and {} backs onto it, so it is left alone: restore \
         the file, or delete what uses it",
        pool.path_of(name).display(),
        users.join(", ")
    );
    Fault::new(FaultKind::BaseChanged, text)
}

/// The regular file at the base's name.
///
/// # Errors
/// `ForeignFile` for anything else there.
pub(super) fn regular(
    pool: &pool::DirectoryPool,
    name: &str,
) -> Result<Option<nix::sys::stat::FileStat>, Fault> {
    let Some(stat) = pool.stat(name)? else { return Ok(None) };
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    if kind == SFlag::S_IFREG { Ok(Some(stat)) } else { Err(pool::foreign_file(pool, name)) }
}

/// Whether the marker and the file identity of `marker` are those in the pool now.
pub(super) fn still_valid(
    pool: &pool::DirectoryPool,
    name: &str,
    marker: &Marker,
) -> Result<bool, Fault> {
    let MarkerState::Valid(found) = pool.marker(&marker_file_name(name))? else {
        return Ok(false);
    };
    let same = found.sha256 == marker.sha256 && found.is_same_image(marker);
    let identity = regular(pool, name)?.as_ref().map(pool::identity);
    Ok(same && identity.is_some() && found.identity == identity)
}
