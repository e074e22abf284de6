//! Finding what nothing uses any more, and removing it.

use std::path::PathBuf;

use super::evict;
use super::marker::MarkerState;
use super::name::{base_of_lock, can_be_of, marker_file_name, staged_file_name};
use super::pool::{DirectoryPool, ImageLock, Usage};
use super::{BaseUsers, ImageSource};
use crate::model::{EntryName, Fault, FaultKind};

/// Something that is ours, and that nothing uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Where it is, or was.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// Why it can go.
    pub reason: String,
}

/// Lists the bases and leftovers of `entry` in `pool` that nothing uses, and removes
/// them unless `dry_run`. `offered` are the images that the entry offers now. What
/// somebody works on, and what isn't ours, is passed over.
///
/// # Errors
/// When it can't be told what is used.
pub(super) fn prune(
    pool: &DirectoryPool,
    entry: &EntryName,
    offered: &[ImageSource],
    users: &dyn BaseUsers,
    dry_run: bool,
) -> Result<Vec<Leftover>, Fault> {
    let disks = users.disks()?;
    // Before anything is removed: a header that can't be read stops all of it.
    Usage::survey(pool, &disks)?;
    let mut leftovers = Vec::new();
    for name in ours(pool)? {
        let lock = match ImageLock::try_acquire(pool, &name) {
            Err(fault) if matches!(fault.kind, FaultKind::Busy | FaultKind::ForeignFile) => {
                continue;
            }
            lock => lock?,
        };
        let fence = pool.fence()?;
        if !Usage::survey(pool, &disks)?.of(&name).is_empty() {
            continue;
        }
        let found = judge(pool, &name, entry, offered)?;
        if !found.is_empty() && !dry_run {
            evict::remove(&fence, &name)?;
        }
        leftovers.extend(found);
        drop((fence, lock));
    }
    Ok(leftovers)
}

/// The bases that proxyd has worked on: each of them has its lock beside it.
fn ours(pool: &DirectoryPool) -> Result<Vec<String>, Fault> {
    let names = pool.names()?;
    let mut bases: Vec<_> =
        names.iter().filter_map(|name| base_of_lock(name.to_str()?)).map(str::to_owned).collect();
    bases.sort();
    Ok(bases)
}

/// What of the base `name` can go, and why.
fn judge(
    pool: &DirectoryPool,
    name: &str,
    entry: &EntryName,
    offered: &[ImageSource],
) -> Result<Vec<Leftover>, Fault> {
    let offered = offered.iter().any(|source| source.base_name() == name);
    // One of a later version is not ours to judge.
    let Ok(state) = pool.marker(name) else { return Ok(Vec::new()) };
    let reason = match &state {
        MarkerState::Valid(marker) if marker.entry != *entry => return Ok(Vec::new()),
        MarkerState::Valid(_) if offered => "nothing uses it",
        MarkerState::Valid(_) => "nothing uses it, and the configuration doesn't offer it",
        // Without a marker, only the name says whose it is.
        _ if !can_be_of(name, entry) => return Ok(Vec::new()),
        _ => "its marker is missing or not valid: an interrupted publication left it",
    };
    let parts = [
        (name.to_owned(), reason),
        (marker_file_name(name), reason),
        (staged_file_name(name), "an interrupted change of the marker left it"),
    ];
    let mut leftovers = Vec::new();
    for (part, reason) in parts {
        let Ok(stat) = pool.regular(&part) else { return Ok(Vec::new()) };
        let leftover = stat.map(|stat| Leftover {
            path: pool.path_of(&part),
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            reason: reason.to_owned(),
        });
        leftovers.extend(leftover);
    }
    Ok(leftovers)
}
