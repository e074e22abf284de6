//! What of an entry's images is in a pool that is reached through libvirt only.

use virt::connect::Connect;
use virt::storage_pool::StoragePool;

use super::connection::CallError;
use super::transfer::{Transfer, read_marker};
use super::volumes;
use super::{host, marked};
use crate::image::{
    Found, ImageSource, MarkerState, Sighting, base_file_name, base_of_marker, unasked,
};
use crate::model::{EntryName, Fault, FaultKind, ImageFormat, ImageKey, Sha256Digest};

/// Looks for the images `wanted` of `entry`, and for others of it.
pub(super) fn survey(
    connection: &Connect,
    pool: &StoragePool,
    entry: &EntryName,
    wanted: &[ImageSource],
) -> Result<Vec<Sighting>, CallError> {
    let directory = host::pool_path(pool)?;
    let mut found = Vec::new();
    for source in wanted {
        let name = source.base_name();
        let path = directory.join(&name);
        found.push(match look(connection, pool, &name) {
            Ok((marker, base)) => Sighting::new(path, &source.key, Some(source), &marker, base),
            Err(CallError::Fault(fault)) => Sighting::unreadable(path, &source.key, fault),
            Err(error) => return Err(error),
        });
    }
    for volume in pool.list_all_volumes(0)? {
        let name = volume.name()?;
        let Some(base) = base_of_marker(&name) else { continue };
        if wanted.iter().any(|source| source.base_name() == base) {
            continue;
        }
        // A directory, say: not ours.
        let (state, there) = match look(connection, pool, base) {
            Err(CallError::Fault(_)) => continue,
            seen => seen?,
        };
        if let MarkerState::Valid(marker) = &state
            && let Some(key) = unasked(marker, entry, base, wanted)
        {
            found.push(Sighting::new(directory.join(base), &key, None, &state, there));
        }
    }
    Ok(found)
}

fn look(
    connection: &Connect,
    pool: &StoragePool,
    name: &str,
) -> Result<(MarkerState, Found), CallError> {
    let (marker, _) = read_marker(connection, pool, name)?;
    let base = found_of(pool, name, &marker)?;
    Ok((marker, base))
}

fn found_of(pool: &StoragePool, name: &str, marker: &MarkerState) -> Result<Found, CallError> {
    Ok(match (volumes::file(pool, name)?, marker) {
        (None, _) => Found::Nothing,
        (Some((_, facts)), MarkerState::Valid(marker)) => marker.found(facts.identity),
        (Some(_), _) => Found::Other,
    })
}

/// Hashes the base of image `key` of `entry`. When it is damaged its marker no longer
/// vouches for it.
///
/// # Errors
/// `BaseChanged` with both digests; `NoSuchImage` when there is none.
pub(super) fn verify(
    connection: &Connect,
    pool: &StoragePool,
    (entry, key): (&EntryName, &ImageKey),
    transfer: &Transfer,
) -> Result<Sha256Digest, CallError> {
    for name in ImageFormat::ALL.map(|format| base_file_name(entry, key, format)) {
        let Some(old) = marked::valid(connection, pool, &name)? else { continue };
        if !old.marker.belongs_to(entry, key) {
            continue;
        }
        let Some((volume, facts)) = volumes::file(pool, &name)? else { continue };
        let found = transfer.hash(connection, &volume, &mut |_| Ok(()))?;
        let good = found == old.marker.content();
        let mut noted = old.marker.clone();
        if good {
            noted.vouch_for(facts.identity);
        } else {
            noted.renounce();
        }
        if !old.marker.vouches_for(facts.identity) || !good {
            marked::rewrite(connection, pool, &name, &old, &noted)?;
        }
        if good {
            return Ok(old.marker.sha256);
        }
        let text = format!(
            "the base {} is damaged: it has the sha256 {found}, and should have {}; no guest is \
             started on it any more: restore the file, or delete the Proxies that use it and \
             evict it",
            volume.path()?,
            old.marker.content()
        );
        return Err(Fault::new(FaultKind::BaseChanged, text).into());
    }
    let text = format!(
        "the pool {} holds no verified image {key} of provider entry {entry}",
        pool.name().unwrap_or_default()
    );
    Err(Fault::new(FaultKind::NoSuchImage, text).into())
}
