//! Giving a verified image its name: without clobbering, durable, the marker last.

use std::fs::File;

use super::BaseUsers;
use super::fetch::Verified;
use super::marker::{Marker, MarkerState};
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
    let marker = identified(pool, &name, verified.marker(source), &verified.file)?;
    let marker_file = pool.unnamed_marker(&name, &marker)?;
    steps::passed(Step::MarkerDurable);
    let disks = if debris.is_some() { users.disks()? } else { Vec::new() };
    let fence = pool.fence()?;
    let old = clear(&fence, &name, debris, &disks)?;
    if let Err(fault) = fence.link(&verified.file, &name) {
        // Who begins through libvirt does not ask for the fence.
        return pool.marker(&name).and(Err(fault));
    }
    steps::passed(Step::Linked);
    let marked = mark(&fence, &name, &old, &marker, &marker_file);
    if marked.is_err() {
        // On a disk that is full, say. Nobody can have used it: the fence is ours.
        if let Err(fault) = fence.withdraw(&verified.file, &name) {
            tracing::warn!("{fault}; it has no marker, and will be removed at the next attempt");
        }
    }
    marked?;
    fence.sync()?;
    steps::passed(Step::Published);
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

/// Gives the base that has just got its name its marker.
fn mark(
    fence: &PoolFence<'_>,
    name: &str,
    old: &OldMarker,
    marker: &Marker,
    marker_file: &File,
) -> Result<(), Fault> {
    fence.sync()?;
    steps::passed(Step::LinkDurable);
    if let OldMarker::Kept(old) = old {
        return fence.replace_marker(name, Some(old), marker);
    }
    if let Err(fault) = fence.link(marker_file, &marker_file_name(name)) {
        // Who begins through libvirt does not ask for the fence.
        return fence.pool().marker(name).and(Err(fault));
    }
    steps::passed(Step::MarkerLinked);
    Ok(())
}

/// What became of the marker that was there.
enum OldMarker {
    Gone,
    Kept(Box<Marker>),
}

/// Removes the debris, and before that its marker: that never vouches for what comes
/// after. The valid marker of a base that is lost stays, since nothing else tells what
/// its overlays were made over; it doesn't fit the new file and has it hashed.
fn clear(
    fence: &PoolFence<'_>,
    name: &str,
    debris: Debris,
    disks: &[DomainDisk],
) -> Result<OldMarker, Fault> {
    let pool = fence.pool();
    let marker = pool.marker(name)?;
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
    match marker {
        MarkerState::Valid(marker) if debris.is_none() => return Ok(OldMarker::Kept(marker)),
        // One that has come since was not judged, and stays.
        MarkerState::Absent => {}
        _ => fence.unlink(&marker_file_name(name))?,
    }
    fence.sync()?;
    steps::passed(Step::OldMarkerRemoved);
    if debris.is_some() {
        let path = pool.path_of(name);
        tracing::warn!("removing {}, which has no valid marker", path.display());
        fence.unlink(name)?;
        steps::passed(Step::DebrisRemoved);
    }
    Ok(OldMarker::Gone)
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
