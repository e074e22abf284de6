//! What stands for an image in a pool that is reached through libvirt alone, and what
//! its marker makes of it.

use std::path::PathBuf;

use virt::connect::Connect;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use super::connection::CallError;
use super::pace::busy;
use super::transfer::read_marker;
use super::volumes::{self, Facts};
use super::{host, users};
use crate::image::{
    self, ImageSource, Marker, MarkerState, Pending, Verdict, Volume, marker_file_name,
    pending_writer,
};
use crate::model::{Fault, FaultKind, Sha256Digest};
use crate::store::BaseRef;

/// What is to be done for a base.
pub(super) enum Finding {
    /// It is as it should be.
    Ready(BaseRef),
    /// It is, but its marker has to take note of something first.
    Outdated(BaseRef, Old),
    /// Its bytes have to be hashed before they may be trusted.
    Unproven(BaseRef, Old),
    /// It has to be fetched.
    Missing,
    /// The same, and its marker, which these bytes are, is in the way: what was begun
    /// and not completed. It has to have this digest if something backs onto it.
    Pending(Vec<u8>, Option<Sha256Digest>),
    /// It has gone and its marker, which these bytes are, is there: it has to be fetched,
    /// and to have this digest if something backs onto it.
    Lost(Vec<u8>, Option<Sha256Digest>),
}

/// A marker as it was read.
pub(super) struct Old {
    pub(super) marker: Marker,
    pub(super) bytes: Vec<u8>,
}

/// Looks at marker and base, and applies the rules in their order.
pub(super) fn examine(
    connection: &Connect,
    pool: &StoragePool,
    source: &ImageSource,
) -> Result<Finding, CallError> {
    let name = source.base_name();
    let (state, bytes) = read_marker(connection, pool, &name)?;
    let path = || -> Result<PathBuf, CallError> { Ok(host::pool_path(pool)?.join(&name)) };
    let is_missed = || -> Result<bool, CallError> {
        Ok(users::of_base(connection, pool, &path()?, &mut || Ok(()))?.is_named())
    };
    let marker = match state {
        MarkerState::Valid(marker) => *marker,
        MarkerState::Absent => return Ok(Finding::Missing),
        MarkerState::Garbage => {
            let held = Pending::of(&bytes).and_then(|by| by.held);
            let held = match held {
                Some(digest) if is_missed()? => Some(digest),
                _ => None,
            };
            return Ok(Finding::Pending(bytes, held));
        }
        MarkerState::Newer => {
            return Err(
                image::of_later_version(&path()?.with_file_name(marker_file_name(&name))).into()
            );
        }
    };
    let verdict = image::judge(&path()?, source, &marker)?;
    let Some((volume, facts)) = volumes::file(pool, &name)? else {
        let held = is_missed()?.then_some(marker.sha256);
        return Ok(Finding::Lost(bytes, held));
    };
    let base = reference(&volume, &marker)?;
    let same = marker.vouches_for(facts.identity);
    let old = Old { marker, bytes };
    Ok(match verdict {
        Verdict::Agrees if same => Finding::Ready(base),
        Verdict::Moved if same => Finding::Outdated(base, old),
        _ => Finding::Unproven(base, old),
    })
}

pub(super) fn reference(volume: &StorageVol, marker: &Marker) -> Result<BaseRef, CallError> {
    Ok(BaseRef {
        file: volume.name()?,
        path: volume.path()?.into(),
        digest: marker.sha256,
        format: marker.format,
        virtual_size: marker.virtual_size,
    })
}

/// Makes sure that `base` still is what it was when overlays were made from it.
///
/// # Errors
/// `BaseChanged`, with the evidence; `Busy` while somebody works on it.
pub(super) fn unchanged(
    connection: &Connect,
    pool: &StoragePool,
    base: &BaseRef,
) -> Result<(), CallError> {
    let (state, bytes) = read_marker(connection, pool, &base.file)?;
    let why = match state {
        MarkerState::Valid(marker) if marker.sha256 == base.digest => {
            match volumes::file(pool, &base.file)? {
                Some((_, facts)) if marker.vouches_for(facts.identity) => return Ok(()),
                Some(_) => "size or time of the file are not those in its marker".to_owned(),
                None => "it has gone".to_owned(),
            }
        }
        MarkerState::Valid(marker) => format!("its marker has {}", marker.sha256),
        // Whoever removes a base and dies in the middle leaves it so.
        MarkerState::Absent if volumes::file(pool, &base.file)?.is_some() => {
            let text = format!("{} has lost its marker: it has to be hashed", base.file);
            return Err(busy(&text).into());
        }
        MarkerState::Absent => "it has gone".to_owned(),
        MarkerState::Garbage | MarkerState::Newer => match pending_writer(&bytes) {
            Some(writer) => {
                return Err(busy(&format!("a proxyd ({writer}) works on {}", base.file)).into());
            }
            None => "its marker is not valid".to_owned(),
        },
    };
    let text = format!(
        "the base {} is no longer the one with the sha256 {}: {why}; restore it, or delete the \
         Proxy and create it again",
        base.path.display(),
        base.digest
    );
    Err(Fault::new(FaultKind::BaseChanged, text).into())
}

/// Writes `marker` in place of `old`, of the base `name`.
///
/// # Errors
/// `Busy` when another one is there meanwhile.
pub(super) fn rewrite(
    connection: &Connect,
    pool: &StoragePool,
    name: &str,
    old: &Old,
    marker: &Marker,
) -> Result<(), CallError> {
    let new = marker
        .render_over(&old.bytes)
        .map_err(|why| CallError::from(Fault::new(FaultKind::StateFailed, why)))?;
    let gone = || CallError::from(busy(&format!("the marker of {name} was changed meanwhile")));
    let volume = volumes::lookup(pool, &marker_file_name(name))?.ok_or_else(gone)?;
    // In this order: the upload is bound to a file, and then that is found to be the one.
    let stream = Stream::new(connection, 0)?;
    volume.upload(&stream, 0, new.len() as u64, 0)?;
    let (_, bytes) = read_marker(connection, pool, name)?;
    if bytes != old.bytes {
        let _ = stream.abort();
        return Err(gone());
    }
    volumes::send(&stream, &new)?;
    Ok(stream.finish()?)
}

/// Removes the marker of the base `name`, if it still is what `judged` was.
///
/// # Errors
/// `Busy` when another one is there meanwhile.
pub(super) fn remove(
    connection: &Connect,
    pool: &StoragePool,
    name: &str,
    judged: &[u8],
) -> Result<(), CallError> {
    let (_, now) = read_marker(connection, pool, name)?;
    if now != judged {
        return Err(busy(&format!("the marker of {name} was changed meanwhile")).into());
    }
    volumes::delete(pool, &marker_file_name(name))
}

/// Reads the marker of the base `name`, when it is valid.
pub(super) fn valid(
    connection: &Connect,
    pool: &StoragePool,
    name: &str,
) -> Result<Option<Old>, CallError> {
    let (state, bytes) = read_marker(connection, pool, name)?;
    Ok(match state {
        MarkerState::Valid(marker) => Some(Old { marker: *marker, bytes }),
        _ => None,
    })
}

/// What libvirt tells of the base's file now.
///
/// # Errors
/// `Busy` when it has gone meanwhile.
pub(super) fn require(pool: &StoragePool, name: &str) -> Result<(StorageVol, Volume), CallError> {
    let found: Option<(StorageVol, Facts)> = volumes::file(pool, name)?;
    let gone = || busy(&format!("the volume {name} has gone meanwhile"));
    found.map(|(volume, facts)| (volume, facts.identity)).ok_or_else(|| gone().into())
}
