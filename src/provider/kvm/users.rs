//! Which domains of a connection use a file, as their XML tells.

use std::path::{Path, PathBuf};

use quick_xml::Reader;
use quick_xml::events::Event;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::ErrorNumber;
use virt::sys;

use super::connection::{CallError, Link, is};
use crate::image::BaseUsers;
use crate::model::Fault;

/// The domains of one connection, running and defined, other owners' included.
pub(super) struct Domains(pub(super) Link);

impl BaseUsers for Domains {
    fn users_of(&self, base: &Path) -> Result<Vec<String>, Fault> {
        self.0.run_blocking(|connection| find(connection, base))
    }
}

/// The names of the domains that use `file`.
pub(super) fn find(connection: &Connect, file: &Path) -> Result<Vec<String>, CallError> {
    let mut users = Vec::new();
    for domain in connection.list_all_domains(0)? {
        match uses(&domain, file) {
            Ok(true) => users.push(format!("domain {}", domain.name()?)),
            Ok(false) => {}
            // It went away meanwhile.
            Err(CallError::Libvirt(error)) if is(&error, ErrorNumber::NoDomain) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(users)
}

/// Whether the domain, as it runs or as it is defined, names `file` as a disk or as
/// part of a disk's backing chain.
fn uses(domain: &Domain, file: &Path) -> Result<bool, CallError> {
    let live = sources(&domain.xml_desc(0)?);
    let defined = sources(&domain.xml_desc(sys::VIR_DOMAIN_XML_INACTIVE)?);
    Ok(live.iter().chain(&defined).any(|source| source == file))
}

/// Every `file` of a `<source>` in `xml`.
fn sources(xml: &str) -> Vec<PathBuf> {
    let mut reader = Reader::from_str(xml);
    let mut files = Vec::new();
    while let Ok(event) = reader.read_event() {
        match event {
            Event::Eof => break,
            Event::Empty(element) | Event::Start(element)
                if element.local_name().as_ref() == "source" =>
            {
                let file = element.try_get_attribute("file").ok().flatten();
                if let Some(Ok(path)) =
                    file.map(|file| file.normalized_value(quick_xml::XmlVersion::Explicit1_0))
                {
                    files.push(PathBuf::from(path.into_owned()));
                }
            }
            _ => {}
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_and_backing_chains_are_seen() {
        let xml = "<domain><devices><disk type='file'><source file='/p/a&amp;b'/><backingStore>\
            <source file='/p/base'><x/></source></backingStore></disk><interface><source \
            network='default'/></interface></devices></domain>";
        assert_eq!(sources(xml), [PathBuf::from("/p/a&b"), PathBuf::from("/p/base")]);
    }
}
