//! What an image looks like in its pool, for whoever only looks: nothing is hashed,
//! locked or fetched for it.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use super::marker::{Marker, MarkerState};
use super::name::{base_file_name, base_of_marker};
use super::pool::DirectoryPool;
use super::{ImageSource, rules};
use crate::model::{EntryName, Fault, ImageKey, Sha256Digest, Timestamp};

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

/// An image as it was seen in its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// Its key.
    pub key: ImageKey,
    /// Where its base is, or would be.
    pub path: PathBuf,
    /// How it stands.
    pub standing: Standing,
    /// What a valid marker of it says.
    pub seen: Option<Seen>,
    /// Why it stands so, when that is not as it should be.
    pub message: String,
}

/// What the marker of an image says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Where it came from, without credentials.
    pub url: String,
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
            url: marker.url.clone(),
            digest: marker.sha256,
            size: marker.size,
            virtual_size: marker.virtual_size,
            fetched_at: since.map(Timestamp::since_epoch),
        }
    }
}

impl Sighting {
    /// What `marker` and base mean for the image `key`, which is `source` when it is
    /// still offered or used. `base` tells, of a base that is there, whether it is the
    /// file that its marker vouches for.
    pub fn new(
        path: PathBuf,
        key: &ImageKey,
        source: Option<&ImageSource>,
        marker: &MarkerState,
        base: Option<bool>,
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
            (_, MarkerState::Absent, None) => (Standing::Absent, String::new()),
            (_, MarkerState::Valid(_), None) => (Standing::Absent, GONE.into()),
            (_, MarkerState::Valid(_), Some(true)) => (Standing::Ready, String::new()),
            (_, MarkerState::Valid(_), Some(false)) => (Standing::Conflict, CHANGED.into()),
            _ => (Standing::Debris, UNVOUCHED.into()),
        };
        let seen = match marker {
            MarkerState::Valid(marker) => Some(Seen::from(&**marker)),
            _ => None,
        };
        Self { key: key.clone(), path, standing, seen, message }
    }

    /// One that could not be looked at.
    fn unreadable(path: PathBuf, key: &ImageKey, fault: Fault) -> Self {
        let (standing, message) = (Standing::Conflict, fault.message);
        Self { key: key.clone(), path, standing, seen: None, message }
    }
}

const GONE: &str = "its base has gone, and only the marker is there";
const CHANGED: &str =
    "size, inode or time of the file are not those in its marker: it is hashed before it is used";
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

/// Whether the base `name`, if it is there, is the file that its marker vouches for.
fn stands(pool: &DirectoryPool, name: &str, marker: &MarkerState) -> Result<Option<bool>, Fault> {
    match (pool.regular(name)?, marker) {
        (None, _) => Ok(None),
        (Some(_), MarkerState::Valid(marker)) => pool.is_identical(name, marker).map(Some),
        (Some(_), _) => Ok(Some(false)),
    }
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
