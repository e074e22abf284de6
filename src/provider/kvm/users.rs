//! Which domains of a connection use a file, as their XML tells.

use std::path::{Path, PathBuf};

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::ErrorNumber;
use virt::sys;

use super::connection::{CallError, Link, found, is};
use super::volumes;
use crate::image::{BaseUsers, DomainDisk};
use crate::model::Fault;

/// The domains of one connection, running and defined, other owners' included.
pub(super) struct Domains(pub(super) Link);

impl BaseUsers for Domains {
    fn disks(&self) -> Result<Vec<DomainDisk>, Fault> {
        self.0.run_blocking(disks)
    }
}

/// The names of the domains that name `file` as a disk, or as part of a disk's backing
/// chain.
pub(super) fn find(connection: &Connect, file: &Path) -> Result<Vec<String>, CallError> {
    let disks = disks(connection)?;
    let mut users: Vec<_> = disks
        .into_iter()
        .filter(|disk| disk.file == file)
        .map(|disk| format!("domain {}", disk.domain))
        .collect();
    users.dedup();
    Ok(users)
}

/// The disks of all domains, with as much of their backing chains as their XML tells.
fn disks(connection: &Connect) -> Result<Vec<DomainDisk>, CallError> {
    let mut disks = Vec::new();
    for domain in connection.list_all_domains(0)? {
        match disks_of(connection, &domain) {
            Ok(found) => disks.extend(found),
            // It went away meanwhile.
            Err(CallError::Libvirt(error)) if is(&error, ErrorNumber::NoDomain) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(disks)
}

/// The disks of a domain, as it runs and as it is defined.
fn disks_of(connection: &Connect, domain: &Domain) -> Result<Vec<DomainDisk>, CallError> {
    let name = domain.name()?;
    let mut named = sources(&domain.xml_desc(0)?);
    named.extend(sources(&domain.xml_desc(sys::VIR_DOMAIN_XML_INACTIVE)?));
    named.sort();
    named.dedup();
    let mut disks = Vec::new();
    for source in named {
        let file = match source {
            Source::File(file) => Some(file),
            Source::Volume { pool, volume } => volume_path(connection, &pool, &volume)?,
        };
        disks.extend(file.map(|file| DomainDisk { domain: name.clone(), file }));
    }
    Ok(disks)
}

/// Where a volume is; nothing when pool or volume are gone, or not there just now.
fn volume_path(
    connection: &Connect,
    pool: &str,
    volume: &str,
) -> Result<Option<PathBuf>, CallError> {
    let lookup = connection.lookup_storage_pool_by_name(pool);
    let Some(pool) = found(lookup, ErrorNumber::NoStoragePool)? else { return Ok(None) };
    match volumes::lookup(&pool, volume) {
        // The pool is not active.
        Err(CallError::Libvirt(error)) if is(&error, ErrorNumber::OperationInvalid) => Ok(None),
        found => Ok(found?.map(|volume| volume.path()).transpose()?.map(PathBuf::from)),
    }
}

/// What a `<source>` names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    File(PathBuf),
    Volume { pool: String, volume: String },
}

/// Every file and volume that a `<source>` in `xml` names.
fn sources(xml: &str) -> Vec<Source> {
    let mut reader = Reader::from_str(xml);
    let mut found = Vec::new();
    while let Ok(event) = reader.read_event() {
        match event {
            Event::Eof => break,
            Event::Empty(element) | Event::Start(element)
                if element.local_name().as_ref() == "source" =>
            {
                found.extend(source(&element));
            }
            _ => {}
        }
    }
    found
}

fn source(element: &BytesStart<'_>) -> Option<Source> {
    let attribute = |name: &str| {
        let found = element.try_get_attribute(name).ok().flatten()?;
        let value = found.normalized_value(quick_xml::XmlVersion::Explicit1_0).ok()?;
        Some(value.into_owned())
    };
    if let Some(file) = attribute("file") {
        return Some(Source::File(file.into()));
    }
    Some(Source::Volume { pool: attribute("pool")?, volume: attribute("volume")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_and_backing_chains_are_seen() {
        let xml = "<domain><devices><disk type='file'><source file='/p/a&amp;b'/><backingStore>\
            <source file='/p/base'><x/></source></backingStore></disk><disk type='volume'>\
            <source pool='p' volume='v'/></disk><interface><source \
            network='default'/></interface></devices></domain>";
        let expected = [
            Source::File("/p/a&b".into()),
            Source::File("/p/base".into()),
            Source::Volume { pool: "p".into(), volume: "v".into() },
        ];
        assert_eq!(sources(xml), expected);
    }
}
