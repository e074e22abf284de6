//! What stands in the pool for an image, and what the rules make of it.

use super::marker::{Marker, MarkerState};
use super::pool::{DirectoryPool, PoolFence, Usage};
use super::publish::Debris;
use super::rules::{self, Verdict};
use super::steps::{self, Step};
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
    /// It has to be fetched, and to be what it was: something backs onto its name.
    Lost(Sha256Digest),
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
    let who = || Ok::<_, Fault>(Usage::survey(pool, &users.disks()?)?.of(&name));
    let Some(stat) = pool.regular(&name)? else { return missing(pool, source, &marker, &who()?) };
    let (MarkerState::Valid(marker), Some(verdict)) = (marker, verdict) else {
        return Ok(if who()?.is_empty() {
            Finding::Missing(Some(stat.st_ino))
        } else {
            Finding::Unproven(None)
        });
    };
    let same_file = pool.is_identical(&name, &marker)?;
    Ok(match verdict {
        Verdict::Agrees if same_file => Finding::Ready(marker),
        Verdict::Moved if same_file => Finding::Outdated(marker),
        _ => Finding::Unproven(Some(marker)),
    })
}

/// There is no base. What backs onto it all the same must not find other bytes there.
fn missing(
    pool: &DirectoryPool,
    source: &ImageSource,
    marker: &MarkerState,
    users: &[String],
) -> Result<Finding, Fault> {
    if users.is_empty() {
        return Ok(Finding::Missing(None));
    }
    let known = match marker {
        MarkerState::Valid(marker) => Some(marker.sha256),
        _ => source.pin.digest(),
    };
    known.map(Finding::Lost).ok_or_else(|| {
        let text = format!(
            "the base {} is missing, {} backs onto it, and nothing tells that the server has the \
             same one still: restore the file, give its sha256, or delete what uses it",
            pool.path_of(&source.base_name()).display(),
            users.join(", ")
        );
        Fault::new(FaultKind::BaseChanged, text)
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
        steps::passed(Step::Unchanged);
        return Ok(());
    }
    changed("size, inode or time of the file are not those in its marker")
}
