//! Taking bases out of a pool that is reached through libvirt alone: never while
//! anything uses one.
//!
//! The marker goes first, and a pending one takes its place: from then on no overlay is
//! made over the base. Those that were made by then are seen, and the marker is put back.

use std::path::PathBuf;
use std::sync::Arc;

use uuid::Uuid;
use virt::connect::Connect;
use virt::storage_pool::StoragePool;

use super::connection::CallError;
use super::pace::{Pace, Sightings, Step};
use super::token::{Claim, Token};
use super::transfer::read_marker;
use super::volumes;
use super::{host, marked, users};
use crate::image::{
    self, ImageSource, Leftover, MARKER_VOLUME_SIZE, MarkerState, Pending, Spool, base_file_name,
    base_of_marker, can_be_of, marker_file_name,
};
use crate::model::{EntryName, Fault, FaultKind, ImageFormat, ImageKey};

/// Who removes.
pub(super) struct Removal {
    pub(super) entry: EntryName,
    pub(super) writer: String,
    pub(super) pace: Arc<Pace>,
    pub(super) sightings: Arc<Sightings>,
    pub(super) spool: Spool,
}

type Place<'a> = (&'a Connect, &'a StoragePool);

/// What is there of an image.
struct Found {
    marker: MarkerState,
    bytes: Vec<u8>,
    size: Option<u64>,
    path: PathBuf,
}

impl Removal {
    /// Removes the base of image `key`, in whichever format it is there, and tells the
    /// bytes that it had.
    ///
    /// # Errors
    /// `ImageInUse` naming the users, `NoSuchImage` when there is none, `Busy` while
    /// somebody works on it, `ForeignFile` for what isn't its.
    pub(super) fn evict(&self, place: Place<'_>, key: &ImageKey) -> Result<u64, CallError> {
        let mut bytes = None;
        for name in ImageFormat::ALL.map(|format| base_file_name(&self.entry, key, format)) {
            let found = look(place, &name)?;
            if found.size.is_none() && found.marker == MarkerState::Absent {
                continue;
            }
            match &found.marker {
                MarkerState::Valid(marker) if !marker.belongs_to(&self.entry, key) => {
                    return Err(image::of_another(&found.path, marker).into());
                }
                MarkerState::Newer => return Err(image::of_later_version(&found.path).into()),
                _ => {}
            }
            bytes = Some(bytes.unwrap_or(0) + found.size.unwrap_or(0));
            self.remove(place, &name, &found)?;
        }
        bytes.ok_or_else(|| {
            let text = format!(
                "the pool {} holds no image {key} of provider entry {}: there is nothing to evict",
                place.1.name().unwrap_or_default(),
                self.entry
            );
            Fault::new(FaultKind::NoSuchImage, text).into()
        })
    }

    /// Lists the bases and leftovers of the entry that nothing uses, and removes them
    /// unless `dry_run`. What somebody works on, and what isn't ours, is passed over.
    pub(super) fn prune(
        &self,
        place: Place<'_>,
        offered: &[ImageSource],
        dry_run: bool,
    ) -> Result<Vec<Leftover>, CallError> {
        volumes::refresh(place.1)?;
        let mut names = place.1.list_volumes()?;
        names.sort();
        let mut leftovers = Vec::new();
        for base in names.iter().filter_map(|name| base_of_marker(name)) {
            let found = match look(place, base) {
                // A directory, say: not ours.
                Err(CallError::Fault(fault)) if fault.kind == FaultKind::ForeignFile => continue,
                found => found?,
            };
            let Some(reason) = self.reason(base, &found, offered)? else { continue };
            if !users::of_base(place.0, place.1, &found.path, &mut || Ok(()))?.is_empty() {
                continue;
            }
            if !dry_run {
                match self.remove(place, base, &found) {
                    Err(CallError::Fault(fault))
                        if matches!(fault.kind, FaultKind::Busy | FaultKind::ImageInUse) =>
                    {
                        continue;
                    }
                    removed => removed?,
                }
            }
            let leftover = |path: PathBuf, bytes| Leftover { path, bytes, reason: reason.into() };
            leftovers.extend(found.size.map(|bytes| leftover(found.path.clone(), bytes)));
            let marker = found.path.with_file_name(marker_file_name(base));
            leftovers.push(leftover(marker, found.bytes.len() as u64));
        }
        Ok(leftovers)
    }

    /// Why the base can go; nothing when it is not ours to judge.
    fn reason(
        &self,
        base: &str,
        found: &Found,
        offered: &[ImageSource],
    ) -> Result<Option<&'static str>, Fault> {
        let offered = offered.iter().any(|source| source.base_name() == base);
        Ok(match &found.marker {
            // A copy under another name is somebody's own.
            MarkerState::Valid(marker) if !marker.is_at(base) => None,
            MarkerState::Valid(marker) if marker.entry != self.entry => None,
            MarkerState::Valid(_) if offered => Some("nothing uses it"),
            MarkerState::Valid(_) => {
                Some("nothing uses it, and the configuration doesn't offer it")
            }
            // Without a marker, only the name says whose it is; and a file that was never
            // a marker may be anybody's.
            MarkerState::Garbage
                if can_be_of(base, &self.entry) && Pending::of(&found.bytes).is_some() =>
            {
                match self.sightings.check(base, &found.bytes, &self.spool, &self.pace) {
                    Ok(()) => Some(
                        "its marker is missing or not valid: an interrupted publication left it",
                    ),
                    Err(fault) if fault.kind == FaultKind::Busy => None,
                    Err(fault) => return Err(fault),
                }
            }
            _ => None,
        })
    }

    /// Removes marker and base, unless anything uses it.
    fn remove(&self, place: Place<'_>, base: &str, found: &Found) -> Result<(), CallError> {
        let (connection, pool) = place;
        refuse_if_used(place, found, &mut || Ok(()))?;
        if found.marker == MarkerState::Garbage {
            self.sightings.check(base, &found.bytes, &self.spool, &self.pace)?;
        }
        // Before its marker goes, which gives a block or two back: without one, it could
        // not be told from debris.
        let needed = MARKER_VOLUME_SIZE.saturating_sub(found.bytes.len().next_multiple_of(4096));
        volumes::check_room(pool, &marker_file_name(base), needed as u64)?;
        if found.marker != MarkerState::Absent {
            marked::remove(connection, pool, base, &found.bytes)?;
            self.pace.passed(Step::Unmarked);
        }
        let nonce = Uuid::new_v4().to_string();
        let alive = self.spool.begin(&nonce);
        let by = Pending { nonce, writer: self.writer.clone(), held: None };
        let removed = self.remove_unmarked(place, &Claim { base: base.to_owned(), by }, found);
        if removed.is_err() && !connection.is_alive().unwrap_or(false) {
            alive.linger(self.pace.lease);
        }
        removed
    }

    fn remove_unmarked(
        &self,
        place: Place<'_>,
        claim: &Claim,
        found: &Found,
    ) -> Result<(), CallError> {
        let room = match &found.marker {
            MarkerState::Valid(marker) => claim.room(marker)?,
            _ => 0,
        };
        let mut token = Token::take(place, claim, &self.pace, room)?;
        let unused = refuse_if_used(place, found, &mut || token.beat());
        match (unused, &found.marker) {
            (Ok(()), _) => {
                token.delete_base()?;
                token.release()
            }
            (Err(used), MarkerState::Valid(marker)) => token.commit(marker).and(Err(used)),
            (Err(used), _) => token.release().and(Err(used)),
        }
    }
}

fn look((connection, pool): Place<'_>, base: &str) -> Result<Found, CallError> {
    let (marker, bytes) = read_marker(connection, pool, base)?;
    let size = volumes::file(pool, base)?.map(|(_, facts)| facts.identity.size);
    Ok(Found { marker, bytes, size, path: host::pool_path(pool)?.join(base) })
}

fn refuse_if_used(
    (connection, pool): Place<'_>,
    found: &Found,
    beat: users::Beat<'_>,
) -> Result<(), CallError> {
    let users = users::of_base(connection, pool, &found.path, beat)?;
    if users.is_empty() {
        return Ok(());
    }
    let text = format!("{} is used by {users}: delete that first", found.path.display());
    Err(Fault::new(FaultKind::ImageInUse, text).into())
}
