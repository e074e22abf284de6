//! What an image looks like in its pool, for whoever only looks: nothing is hashed,
//! locked or fetched for it.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use super::marker::{Marker, MarkerState};
use super::name::{base_file_name, base_of_marker};
use super::pool::DirectoryPool;
use super::{ImageSource, rules};
use crate::model::{EntryName, Fault, FaultKind, ImageKey, Sha256Digest, Timestamp};

/// How an image stands in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is no base.
    Absent,
    /// There is a verified base.
    Ready,
    /// What is there contradicts its marker or the configuration.
    Conflict,
    /// There is something without a valid marker.
    Debris,
}

/// What is found where a base belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// The file that its marker vouches for, as far as can be seen.
    Vouched,
    /// Another file than the one that its marker vouches for.
    Other,
    /// A file, and a marker that vouches for none: it was found damaged, or was
    /// published through libvirt.
    Unproven,
}

/// An image as it was seen in its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// Its key.
    pub key: ImageKey,
    /// Where its base is, or would be.
    pub path: PathBuf,
    /// How it stands.
    pub standing: Standing,
    /// Where a valid marker says that it came from, without credentials.
    pub url: Option<String>,
    /// What its marker says of a base that is the one it vouches for.
    pub seen: Option<Seen>,
    /// Why it stands so, when that is not as it should be.
    pub message: String,
}

/// What the marker of an image says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// sha256 of the download.
    pub digest: Sha256Digest,
    /// Size of the base in bytes.
    pub size: u64,
    /// Size of the disk it presents, in bytes.
    pub virtual_size: u64,
    /// When it was fetched.
    pub fetched_at: Option<Timestamp>,
}

impl From<&Marker> for Seen {
    fn from(marker: &Marker) -> Self {
        let fetched = humantime::parse_rfc3339(&marker.fetched_at).ok();
        let since = fetched.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Self {
            digest: marker.sha256,
            size: marker.size,
            virtual_size: marker.virtual_size,
            fetched_at: since.map(Timestamp::since_epoch),
        }
    }
}

impl Sighting {
    /// What `marker` and base mean for the image `key`, which is `source` when it is
    /// still offered or used.
    pub fn new(
        path: PathBuf,
        key: &ImageKey,
        source: Option<&ImageSource>,
        marker: &MarkerState,
        base: Found,
    ) -> Self {
        let judged = match (marker, source) {
            (MarkerState::Valid(marker), Some(source)) => {
                rules::judge(&path, source, marker).map(drop)
            }
            (MarkerState::Newer, _) => Err(rules::of_later_version(&path)),
            _ => Ok(()),
        };
        let (standing, message) = match (judged, marker, base) {
            (Err(fault), ..) => (Standing::Conflict, fault.message),
            (_, MarkerState::Absent, Found::Nothing) => (Standing::Absent, String::new()),
            (_, MarkerState::Valid(_), Found::Nothing) => (Standing::Absent, GONE.into()),
            (_, MarkerState::Valid(_), Found::Vouched) => (Standing::Ready, String::new()),
            (_, MarkerState::Valid(_), Found::Other) => (Standing::Conflict, CHANGED.into()),
            (_, MarkerState::Valid(_), Found::Unproven) => (Standing::Conflict, UNPROVEN.into()),
            _ => (Standing::Debris, UNVOUCHED.into()),
        };
        let marker = match marker {
            MarkerState::Valid(marker) => Some(&**marker),
            _ => None,
        };
        let seen = marker.filter(|_| base == Found::Vouched).map(Seen::from);
        let url = marker.map(|marker| marker.url.clone());
        Self { key: key.clone(), path, standing, url, seen, message }
    }

    /// One that could not be looked at, or not yet.
    pub fn unreadable(path: PathBuf, key: &ImageKey, fault: Fault) -> Self {
        let busy = fault.kind == FaultKind::Busy;
        let standing = if busy { Standing::Absent } else { Standing::Conflict };
        let message = fault.message;
        Self { key: key.clone(), path, standing, url: None, seen: None, message }
    }
}

const GONE: &str = "its base has gone, and only the marker is there";
const CHANGED: &str =
    "size, inode or time of the file are not those in its marker: it is hashed before it is used";
const UNPROVEN: &str = "it was found damaged, or was published through libvirt: it is hashed before \
                        it is used; if it is damaged, restore the file, or delete the Proxies \
                        that use it and evict it";
const UNVOUCHED: &str = "no valid marker vouches for it: it is fetched anew when it is needed";

/// Looks for the images `wanted` of `entry` in `pool`, and for others whose marker
/// says that they are of `entry`.
///
/// # Errors
/// `PoolUnavailable` when the directory can't be read.
pub(super) fn survey(
    pool: &DirectoryPool,
    entry: &EntryName,
    wanted: &[ImageSource],
) -> Result<Vec<Sighting>, Fault> {
    let mut found: Vec<_> = wanted.iter().map(|source| look(pool, source)).collect();
    for name in pool.names()? {
        let Some(base) = name.to_str().and_then(base_of_marker) else { continue };
        if wanted.iter().any(|source| source.base_name() == base) {
            continue;
        }
        let Ok(state) = pool.marker(base) else { continue };
        if let MarkerState::Valid(marker) = &state
            && let Some(key) = unasked(marker, entry, base, wanted)
        {
            found.push(match stands(pool, base, &state) {
                Ok(there) => Sighting::new(pool.path_of(base), &key, None, &state, there),
                Err(fault) => Sighting::unreadable(pool.path_of(base), &key, fault),
            });
        }
    }
    Ok(found)
}

fn look(pool: &DirectoryPool, source: &ImageSource) -> Sighting {
    let (name, key) = (source.base_name(), &source.key);
    let seen = pool.marker(&name).and_then(|state| {
        let there = stands(pool, &name, &state)?;
        Ok((state, there))
    });
    match seen {
        Ok((state, there)) => Sighting::new(pool.path_of(&name), key, Some(source), &state, there),
        Err(fault) => Sighting::unreadable(pool.path_of(&name), key, fault),
    }
}

fn stands(pool: &DirectoryPool, name: &str, marker: &MarkerState) -> Result<Found, Fault> {
    Ok(match (pool.regular(name)?, marker) {
        (None, _) => Found::Nothing,
        (Some(_), MarkerState::Valid(marker))
            if marker.identity.is_none() || marker.is_renounced() =>
        {
            Found::Unproven
        }
        (Some(_), MarkerState::Valid(marker)) if pool.is_identical(name, marker)? => Found::Vouched,
        (Some(_), _) => Found::Other,
    })
}

/// The key of the base `name` of `entry`, if `marker` says that it is one, and if it is
/// none of those `wanted`.
pub fn unasked(
    marker: &Marker,
    entry: &EntryName,
    name: &str,
    wanted: &[ImageSource],
) -> Option<ImageKey> {
    let ours = marker.entry == *entry && name == base_file_name(entry, &marker.key, marker.format);
    let known = wanted.iter().any(|source| source.key == marker.key);
    (ours && !known).then(|| marker.key.clone())
}
