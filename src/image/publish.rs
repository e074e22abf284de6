//! Giving a verified image its name: without clobbering, durable, the marker last.

use std::fs::File;

use super::BaseUsers;
use super::fetch::Verified;
use super::marker::Marker;
use super::name::{marker_file_name, staged_file_name};
use super::pool::{self, DirectoryPool, ImageLock, PoolFence, Usage};
use super::steps::{self, Step};
use super::{DomainDisk, ImageSource};
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
    pool: &DirectoryPool,
    _lock: &ImageLock,
    source: &ImageSource,
    verified: &Verified,
    debris: Debris,
    users: &dyn BaseUsers,
) -> Result<Marker, Fault> {
    let name = source.base_name();
    // Everything that takes time, or room, comes before the fence.
    let marker = identified(pool, &name, verified.marker(source), verified.file())?;
    let marker_file = pool.unnamed_marker(&name, &marker)?;
    steps::passed(Step::MarkerDurable);
    let disks = if debris.is_some() { users.disks()? } else { Vec::new() };
    let fence = pool.fence()?;
    clear(&fence, &name, debris, &disks)?;
    link(&fence, &name, verified.file(), &marker_file)?;
    Ok(marker)
}

/// `marker` with what tells `file` from others.
fn identified(
    pool: &DirectoryPool,
    name: &str,
    mut marker: Marker,
    file: &File,
) -> Result<Marker, Fault> {
    let stat = nix::sys::stat::fstat(file)
        .map_err(|error| pool.failed("published", name, error.into()))?;
    marker.identity = Some(pool::identity(&stat));
    Ok(marker)
}

/// Names base and marker, in that order, or neither.
fn link(fence: &PoolFence<'_>, name: &str, base: &File, marker: &File) -> Result<(), Fault> {
    fence.link(base, name)?;
    steps::passed(Step::Linked);
    let linked = fence.sync().and_then(|()| {
        steps::passed(Step::LinkDurable);
        fence.link(marker, &marker_file_name(name))
    });
    if linked.is_err() {
        // On a disk that is full, say. Nobody can have used it: the fence is ours.
        if let Err(fault) = fence.withdraw(base, name) {
            tracing::warn!("{fault}; it has no marker, and will be removed at the next attempt");
        }
    }
    linked?;
    steps::passed(Step::MarkerLinked);
    fence.sync()?;
    steps::passed(Step::Published);
    Ok(())
}

/// Removes an old marker and the debris, in that order: a marker never vouches for
/// what comes after.
fn clear(
    fence: &PoolFence<'_>,
    name: &str,
    debris: Debris,
    disks: &[DomainDisk],
) -> Result<(), Fault> {
    let pool = fence.pool();
    let found = pool.stat(name)?.map(|stat| stat.st_ino);
    if found != debris {
        return Err(pool::foreign_file(pool, name));
    }
    if debris.is_some() {
        let users = Usage::survey(pool, disks)?.of(name);
        if !users.is_empty() {
            return Err(in_use(pool, name, &users));
        }
    }
    fence.unlink(&staged_file_name(name))?;
    fence.unlink(&marker_file_name(name))?;
    fence.sync()?;
    steps::passed(Step::OldMarkerRemoved);
    if debris.is_some() {
        let path = pool.path_of(name);
        tracing::warn!("removing {}, which has no valid marker", path.display());
        fence.unlink(name)?;
        steps::passed(Step::DebrisRemoved);
    }
    Ok(())
}

/// The fault of a base that is not what it should be, and can't be replaced.
pub(super) fn in_use(pool: &DirectoryPool, name: &str, users: &[String]) -> Fault {
    let text = format!(
        "{} is not the image it should be, and {} backs onto it, so it is left alone: restore \
         the file, or delete what uses it",
        pool.path_of(name).display(),
        users.join(", ")
    );
    Fault::new(FaultKind::BaseChanged, text)
}
