//! What stands in the pool for an image, and what the rules make of it.

use super::marker::{Marker, MarkerState};
use super::pool::{DirectoryPool, PoolFence, Usage};
use super::publish::Debris;
use super::rules::{self, Verdict};
use super::{BaseUsers, ImageSource};
use crate::model::{Fault, FaultKind, Sha256Digest};

/// What is to be done for a base.
pub(super) enum Finding {
    /// It is as it should be.
    Ready(Box<Marker>),
    /// It is, but its marker has to take note of something first.
    Outdated(Box<Marker>),
    /// It has to be hashed before it may be trusted. The marker is what its bytes
    /// are to be held against, or none where only a configured digest can tell.
    Unproven(Option<Box<Marker>>),
    /// It has to be fetched, in place of the debris if there is some.
    Missing(Debris),
}

/// Looks at marker and base, and applies the rules in their order.
pub(super) fn examine(
    pool: &DirectoryPool,
    source: &ImageSource,
    users: &dyn BaseUsers,
) -> Result<Finding, Fault> {
    let name = source.base_name();
    let marker = pool.marker(&name)?;
    let verdict = match &marker {
        MarkerState::Valid(marker) => Some(rules::judge(&pool.path_of(&name), source, marker)?),
        _ => None,
    };
    let Some(stat) = pool.regular(&name)? else { return Ok(Finding::Missing(None)) };
    let (MarkerState::Valid(marker), Some(verdict)) = (marker, verdict) else {
        let used = !Usage::survey(pool, &users.disks()?)?.of(&name).is_empty();
        return Ok(if used {
            Finding::Unproven(None)
        } else {
            Finding::Missing(Some(stat.st_ino))
        });
    };
    let same_file = pool.is_identical(&name, &marker)?;
    Ok(match verdict {
        Verdict::Agrees if same_file => Finding::Ready(marker),
        Verdict::Moved if same_file => Finding::Outdated(marker),
        _ => Finding::Unproven(Some(marker)),
    })
}

/// Makes sure, with the fence in hand, that the base `name` still is the image
/// `digest`, as its marker says and as the file system tells.
///
/// # Errors
/// `BaseChanged`, with the evidence.
pub fn check_unchanged(
    fence: &PoolFence<'_>,
    name: &str,
    digest: Sha256Digest,
) -> Result<(), Fault> {
    let pool = fence.pool();
    let changed = |why: &str| {
        let text = format!(
            "the base {} is no longer the one with the sha256 {digest}: {why}; restore it, or \
             delete the Proxy and create it again",
            pool.path_of(name).display()
        );
        Err(Fault::new(FaultKind::BaseChanged, text))
    };
    let marker = match pool.marker(name)? {
        MarkerState::Valid(marker) => marker,
        MarkerState::Absent => return changed("it has no marker"),
        MarkerState::Garbage | MarkerState::Newer => return changed("its marker is not valid"),
    };
    if marker.sha256 != digest {
        return changed(&format!("its marker has {}", marker.sha256));
    }
    if pool.is_identical(name, &marker)? {
        return Ok(());
    }
    changed("size, inode or time of the file are not those in its marker")
}
