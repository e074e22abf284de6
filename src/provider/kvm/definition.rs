//! What a domain's XML tells of it: its size, and whose it is.

use serde::Deserialize;
use uuid::Uuid;
use virt::domain::Domain;
use virt::sys;

use super::connection::CallError;
use super::host;
use crate::model::{ProxyName, Sha256Digest, Slot};
use crate::provider::Size;

#[derive(Debug, Deserialize)]
struct DomainXml {
    memory: Amount,
    #[serde(rename = "currentMemory")]
    current_memory: Option<Amount>,
    vcpu: Vcpu,
}

/// libvirt always tells KiB, whatever it was given.
#[derive(Debug, Deserialize)]
struct Amount {
    #[serde(rename = "$text")]
    kib: u64,
}

#[derive(Debug, Deserialize)]
struct Vcpu {
    #[serde(rename = "@current")]
    current: Option<u32>,
    #[serde(rename = "$text")]
    most: u32,
}

/// What `domain` has on file for its next start; nothing for a transient one.
pub(super) fn defined(domain: &Domain) -> Result<Option<Size>, CallError> {
    if !domain.is_persistent()? {
        return Ok(None);
    }
    let xml = domain.xml_desc(sys::VIR_DOMAIN_XML_INACTIVE)?;
    Ok(Some(size(&xml, domain.autostart()?)?))
}

/// What `domain` runs with.
pub(super) fn running(domain: &Domain) -> Result<Size, CallError> {
    let autostart = domain.is_persistent()? && domain.autostart()?;
    let mut size = size(&domain.xml_desc(0)?, autostart)?;
    size.autostart = autostart;
    Ok(size)
}

/// What is hot-unplugged by hand counts as gone.
fn size(xml: &str, autostart: bool) -> Result<Size, CallError> {
    let parsed: DomainXml = host::parse(xml, "domain")?;
    let kib = parsed.current_memory.map_or(parsed.memory.kib, |now| now.kib.min(parsed.memory.kib));
    let vcpus = parsed.vcpu.current.unwrap_or(parsed.vcpu.most);
    Ok(Size { vcpus, memory_mib: kib >> 10, autostart })
}

#[derive(Debug, Deserialize)]
struct Owned {
    metadata: Option<Metadata>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    // The prefix is always ours: libvirt keeps the one that it was given.
    #[serde(rename = "proxy", alias = "proxyd:proxy")]
    proxy: Option<OwnerXml>,
}

#[derive(Debug, Deserialize)]
struct OwnerXml {
    #[serde(rename = "@name")]
    name: String,
    #[serde(rename = "@uuid")]
    uuid: Option<Uuid>,
    #[serde(rename = "@slot")]
    slot: Option<Slot>,
    #[serde(rename = "@base")]
    base: String,
    #[serde(rename = "@sha256")]
    sha256: Option<String>,
}

/// For which Proxy a domain was made, as its metadata tells.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) proxy: ProxyName,
    /// Absent in domains of the first version, whose own UUID it is.
    pub(super) uuid: Option<Uuid>,
    pub(super) slot: Slot,
    /// The file name of its base.
    pub(super) base: String,
    /// The digest of its base.
    pub(super) digest: Option<Sha256Digest>,
}

/// Reads the owner from a domain's XML; nothing when it isn't ours.
pub(super) fn owner(xml: &str) -> Option<Owner> {
    let parsed: Owned = quick_xml::de::from_str(xml).ok()?;
    let OwnerXml { name, uuid, slot, base, sha256 } = parsed.metadata?.proxy?;
    let digest = sha256.and_then(|hex| hex.parse().ok());
    let (proxy, slot) = (ProxyName::new(&name).ok()?, slot.unwrap_or_default());
    Some(Owner { proxy, uuid, slot, base, digest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(inner: &str) -> Size {
        let xml = format!("<domain><name>x</name>{inner}</domain>");
        size(&xml, true).map_err(|_| "unreadable").unwrap()
    }

    #[test]
    fn the_size_is_read_with_what_was_changed_by_hand() {
        let whole = of("<memory unit='KiB'>262144</memory><currentMemory unit='KiB'>262144\
            </currentMemory><vcpu placement='static'>2</vcpu>");
        assert_eq!(whole, Size { vcpus: 2, memory_mib: 256, autostart: true });
        let less = of("<memory unit='KiB'>262144</memory><currentMemory unit='KiB'>131072\
            </currentMemory><vcpu placement='static' current='1'>2</vcpu>");
        assert_eq!(less, Size { vcpus: 1, memory_mib: 128, autostart: true });
    }

    #[test]
    fn the_owner_is_read_from_the_metadata() {
        let uuid = Uuid::from_u128(7);
        let xml = |attributes: &str| {
            format!(
                "<domain><metadata><proxyd:proxy xmlns:proxyd='urn:org.proxyd1:domain' name='x' \
                 base='base-a-b.qcow2' {attributes}/></metadata></domain>"
            )
        };
        let found = owner(&xml(&format!("uuid='{uuid}' slot='b'"))).unwrap();
        assert_eq!((found.proxy.as_str(), found.uuid, found.slot), ("x", Some(uuid), Slot::B));
        let first = owner(&xml("generation='1'")).unwrap();
        assert_eq!((first.uuid, first.slot), (None, Slot::A));
        assert_eq!(owner("<domain><metadata><a:proxy xmlns:a='urn:a'/></metadata></domain>"), None);
        assert_eq!(owner("<domain/>"), None);
    }
}
