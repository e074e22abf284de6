//! Domains and volumes that look like parts of our guests, and what a domain tells of
//! the base that it was made from.

use virt::connect::Connect;
use virt::error::ErrorNumber;
use virt::sys;

use super::connection::{CallError, is};
use super::definition::{Owner, owner};
use super::{domain, host, volumes};
use crate::config::ProviderSettings;
use crate::model::{Fault, FaultKind, Guest, GuestFile, ImageFormat};
use crate::provider::{Stray, StrayPart};
use crate::store::BaseRef;

/// All of them, those with a Proxy included.
pub(super) fn all(
    connection: &Connect,
    settings: &ProviderSettings,
) -> Result<Vec<Stray>, CallError> {
    let mut strays = Vec::new();
    for found in connection.list_all_domains(0)? {
        match domain_of_ours(&found) {
            Ok(stray) => strays.extend(stray),
            // It went away meanwhile.
            Err(CallError::Libvirt(error)) if is(&error, ErrorNumber::NoDomain) => {}
            Err(error) => return Err(error),
        }
    }
    let pool = host::pool(connection, settings)?;
    let volume = |name: String| {
        let proxy = GuestFile::of_volume(&name)?.proxy;
        Some(Stray { proxy, part: StrayPart::Volume { name } })
    };
    strays.extend(pool.list_volumes()?.into_iter().filter_map(volume));
    Ok(strays)
}

fn domain_of_ours(found: &virt::domain::Domain) -> Result<Option<Stray>, CallError> {
    let Some(Owner { proxy, uuid, slot, .. }) = owner(&found.xml_desc(0)?) else {
        return Ok(None);
    };
    let uuid = match uuid {
        Some(uuid) => uuid,
        None => domain::uuid(found)?,
    };
    Ok(Some(Stray { proxy, part: StrayPart::Domain { name: found.name()?, uuid, slot } }))
}

/// The base of the guest's domain.
pub(super) fn base_of(
    connection: &Connect,
    settings: &ProviderSettings,
    guest: &Guest,
) -> Result<BaseRef, CallError> {
    let missing = |what: String| CallError::from(Fault::new(FaultKind::NoSuchProxy, what));
    let name = guest.domain_name();
    let domain = domain::lookup(connection, guest)?
        .ok_or_else(|| missing(format!("there is no domain {name} of ours")))?;
    let xml = domain.xml_desc(sys::VIR_DOMAIN_XML_INACTIVE)?;
    let owner = owner(&xml).ok_or_else(|| missing(format!("the domain {name} isn't ours")))?;
    let pool = host::pool(connection, settings)?;
    let volume = volumes::lookup(&pool, &owner.base)?
        .ok_or_else(|| missing(format!("{} is not in the pool {}", owner.base, settings.pool)))?;
    let format = ImageFormat::ALL.into_iter().find(|format| owner.base.ends_with(format.as_str()));
    let digest = owner.digest.ok_or_else(|| missing(format!("{name} names no sha256")))?;
    Ok(BaseRef {
        path: volume.path()?.into(),
        virtual_size: volume.info()?.capacity,
        format: format.unwrap_or(ImageFormat::Raw),
        file: owner.base,
        digest,
    })
}
