//! Bases that are there without a valid marker and are just what they should be: they are
//! used as they are, and nothing is downloaded to find that out.

use std::sync::Arc;

use virt::connect::Connect;
use virt::storage_pool::StoragePool;

use super::connection::CallError;
use super::marked;
use super::pace::{Pace, busy};
use super::token::{Claim, Token};
use super::transfer::{Transfer, part};
use super::volumes;
use crate::image::{ImageSource, Marker, disk_size, is_half_made};
use crate::model::{Fault, FaultKind, Sha256Digest};
use crate::store::BaseRef;

/// Headers and all that they name, of any image.
const HEAD: u64 = 1 << 20;

/// Marks the base of `source`, in place of the marker that these bytes are, if it is
/// there and has this digest; tells nothing if it hasn't.
///
/// # Errors
/// `Busy` when somebody else is at it.
pub(super) fn adopt(
    (connection, pool): (&Connect, &StoragePool),
    source: &ImageSource,
    digest: Sha256Digest,
    replaced: Option<&[u8]>,
    (claim, pace): (&Claim, &Arc<Pace>),
    transfer: &Transfer,
) -> Result<Option<BaseRef>, CallError> {
    if replaced.is_some_and(is_half_made) {
        return Ok(None);
    }
    volumes::refresh(pool)?;
    let Some((volume, facts)) = volumes::file(pool, &claim.base)? else { return Ok(None) };
    if transfer.hash(connection, &volume, &mut |_| Ok(()))? != digest {
        return Ok(None);
    }
    let size = facts.identity.size;
    let head = part(connection, &volume, 0, HEAD.min(size))?;
    let virtual_size = disk_size(&head, size, source.format)
        .map_err(|why| Fault::new(FaultKind::ImageRejected, why))?;
    let mut marker = Marker::of_what_is_there(source, digest, size, virtual_size);
    marker.vouch_for(facts.identity);
    if let Some(judged) = replaced {
        marked::remove(connection, pool, &claim.base, judged)?;
    }
    let token = Token::take((connection, pool), claim, pace, claim.room(&marker)?)?;
    // With the token in hand, nobody else replaces it.
    if marked::require(pool, &claim.base)?.1 != facts.identity {
        token.release()?;
        return Err(busy(&format!("{} was written to while it was hashed", claim.base)).into());
    }
    token.commit(&marker)?;
    Ok(Some(marked::reference(&volume, &marker)?))
}
