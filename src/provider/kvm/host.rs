//! What a host offers: read from libvirt's pool, network and capability XML.

use std::path::PathBuf;

use serde::Deserialize;
use virt::connect::Connect;
use virt::error::ErrorNumber;
use virt::network::Network;
use virt::storage_pool::StoragePool;

use super::connection::{CallError, found};
use crate::config::{NetworkAttachment, ProviderSettings, VirtType};
use crate::model::{Fault, FaultKind, Firmware};

/// How a guest's processors are run on this host, and on which architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Virtualisation {
    /// The `type` of the domain: `kvm`, `qemu`, or `test` for libvirt's test driver.
    pub(super) domain_type: &'static str,
    /// Such as `x86_64`.
    pub(super) arch: String,
    /// Firmware kinds that libvirt can choose from.
    firmware: Vec<String>,
}

#[cfg(test)]
impl Virtualisation {
    pub(super) fn new(domain_type: &'static str, arch: &str, firmware: &[&str]) -> Self {
        let firmware = firmware.iter().map(|&kind| kind.to_owned()).collect();
        Self { domain_type, arch: arch.to_owned(), firmware }
    }
}

#[derive(Debug, Deserialize)]
struct DomainCapabilities {
    arch: String,
    os: OsCapabilities,
}

#[derive(Debug, Deserialize)]
struct OsCapabilities {
    #[serde(rename = "enum", default)]
    enums: Vec<EnumCapability>,
}

#[derive(Debug, Deserialize)]
struct EnumCapability {
    #[serde(rename = "@name")]
    name: String,
    #[serde(rename = "value", default)]
    values: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct PoolXml {
    target: Option<PoolTarget>,
}

#[derive(Debug, Deserialize)]
struct PoolTarget {
    path: Option<PathBuf>,
}

/// The entry's pool, active.
///
/// # Errors
/// `PoolUnavailable`, with the command that cures it.
pub(super) fn pool(
    connection: &Connect,
    settings: &ProviderSettings,
) -> Result<StoragePool, CallError> {
    let name = &settings.pool;
    let unavailable = |text: String| CallError::from(Fault::new(FaultKind::PoolUnavailable, text));
    let lookup = connection.lookup_storage_pool_by_name(name);
    let Some(pool) = found(lookup, ErrorNumber::NoStoragePool)? else {
        return Err(unavailable(format!(
            "libvirt at {} has no storage pool {name:?}: define it with `virsh pool-define-as \
             {name} dir --target DIRECTORY`, or name another one in provider entry {}",
            settings.uri, settings.name
        )));
    };
    if !pool.is_active()? {
        return Err(unavailable(format!(
            "the storage pool {name:?} is not active: start it with `virsh pool-start {name}` \
             (and `virsh pool-autostart {name}`)"
        )));
    }
    Ok(pool)
}

/// The directory of `pool`.
///
/// # Errors
/// `PoolUnavailable` when it has none.
pub(super) fn pool_path(pool: &StoragePool) -> Result<PathBuf, CallError> {
    let xml = pool.xml_desc(0)?;
    let parsed: PoolXml = parse(&xml, "storage pool")?;
    parsed.target.and_then(|target| target.path).ok_or_else(|| {
        let text = "the storage pool has no directory: use a pool of type dir";
        Fault::new(FaultKind::PoolUnavailable, text).into()
    })
}

/// Makes sure that the network or bridge of the entry is there and up.
///
/// # Errors
/// `NetworkUnavailable`, with the command that cures it.
pub(super) fn network(connection: &Connect, settings: &ProviderSettings) -> Result<(), CallError> {
    let unavailable = |text| CallError::from(Fault::new(FaultKind::NetworkUnavailable, text));
    let name = match &settings.network {
        NetworkAttachment::Network(name) => name,
        // Only the host itself knows its bridges, and says so at the start of a domain.
        NetworkAttachment::Bridge(_) => return Ok(()),
    };
    let lookup = connection.lookup_network_by_name(name);
    let network: Network = found(lookup, ErrorNumber::NoNetwork)?.ok_or_else(|| {
        unavailable(format!(
            "libvirt at {} has no network {name:?}: define it with `virsh net-define FILE`, or \
             name another one in provider entry {}",
            settings.uri, settings.name
        ))
    })?;
    if network.is_active()? {
        return Ok(());
    }
    Err(unavailable(format!(
        "the network {name:?} is not active: start it with `virsh net-start {name}` (and `virsh \
         net-autostart {name}`)"
    )))
}

#[derive(Debug, Deserialize)]
struct NetworkXml {
    #[serde(rename = "ip", default)]
    ips: Vec<NetworkIp>,
}

#[derive(Debug, Deserialize)]
struct NetworkIp {
    dhcp: Option<Dhcp>,
}

/// Its content does not matter.
#[derive(Debug, Deserialize)]
struct Dhcp {}

/// Whether libvirt runs a DHCP server on the network `name`, and so knows its leases.
pub(super) fn serves_dhcp(connection: &Connect, name: &str) -> Result<bool, CallError> {
    let lookup = connection.lookup_network_by_name(name);
    let Some(network) = found(lookup, ErrorNumber::NoNetwork)? else { return Ok(false) };
    let parsed: NetworkXml = parse(&network.xml_desc(0)?, "network")?;
    Ok(parsed.ips.iter().any(|ip| ip.dhcp.is_some()))
}

/// Whether this is libvirt's test driver, whose guests and volumes are names alone.
pub(super) fn is_test(connection: &Connect) -> Result<bool, CallError> {
    Ok(connection.driver_type()?.eq_ignore_ascii_case("test"))
}

/// How guests are run here.
///
/// # Errors
/// `ProviderUnavailable` when KVM is demanded and not offered.
pub(super) fn virtualisation(
    connection: &Connect,
    settings: &ProviderSettings,
) -> Result<Virtualisation, CallError> {
    if is_test(connection)? {
        let (arch, firmware) = ("i686".to_owned(), vec!["efi".to_owned()]);
        return Ok(Virtualisation { domain_type: "test", arch, firmware });
    }
    match settings.virt_type {
        VirtType::Qemu => capabilities(connection, "qemu"),
        VirtType::Kvm => capabilities(connection, "kvm").map_err(|error| no_kvm(settings, error)),
        VirtType::Auto => {
            capabilities(connection, "kvm").or_else(|_| capabilities(connection, "qemu"))
        }
    }
}

fn no_kvm(settings: &ProviderSettings, error: CallError) -> CallError {
    let CallError::Libvirt(error) = error else { return error };
    let text = format!(
        "the host of provider entry {} does not offer KVM ({}): enable virtualisation in its \
         firmware and load the kvm module, or set virtType to \"qemu\" for software emulation",
        settings.name,
        error.message()
    );
    Fault::new(FaultKind::ProviderUnavailable, text).into()
}

fn capabilities(
    connection: &Connect,
    domain_type: &'static str,
) -> Result<Virtualisation, CallError> {
    let machine = None;
    let xml = connection.domain_capabilities(None, None, machine, Some(domain_type), 0)?;
    let parsed: DomainCapabilities = parse(&xml, "domain capabilities")?;
    let firmware = parsed.os.enums.into_iter().find(|found| found.name == "firmware");
    Ok(Virtualisation {
        domain_type,
        arch: parsed.arch,
        firmware: firmware.map(|found| found.values).unwrap_or_default(),
    })
}

/// Makes sure that libvirt can choose `wanted` for a guest.
///
/// # Errors
/// `FirmwareUnavailable`, naming the packages.
pub(super) fn firmware(virtualisation: &Virtualisation, wanted: Firmware) -> Result<(), CallError> {
    let unavailable = |text: String| Err(Fault::new(FaultKind::FirmwareUnavailable, text).into());
    if wanted == Firmware::Bios {
        // SeaBIOS comes with QEMU; libvirt lists it under another heading, if at all.
        let arch = &*virtualisation.arch;
        return if matches!(arch, "x86_64" | "i686") {
            Ok(())
        } else {
            unavailable(format!(
                "a host of architecture {arch} has no BIOS: set the image's firmware to \"uefi\""
            ))
        };
    }
    if virtualisation.firmware.iter().any(|kind| kind == "efi") {
        return Ok(());
    }
    let text = "the host has no UEFI firmware that libvirt can choose: install OVMF (Debian and \
                Ubuntu: package ovmf; Fedora: edk2-ovmf; NixOS: virtualisation.libvirtd.qemu.ovmf), \
                or set the image's firmware to \"bios\"";
    unavailable(text.into())
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(xml: &str, what: &str) -> Result<T, CallError> {
    quick_xml::de::from_str(xml).map_err(|error| {
        let text = format!("libvirt's {what} XML can't be read: {error}");
        Fault::new(FaultKind::ProviderUnavailable, text).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_is_read_from_the_domain_capabilities() {
        let xml = "<domainCapabilities><path>/q</path><domain>qemu</domain><arch>x86_64</arch>\
            <os supported='yes'><enum name='firmware'><value>bios</value><value>efi</value></enum>\
            <loader supported='yes'><value>/x</value><enum name='type'><value>rom</value></enum>\
            </loader></os><cpu/></domainCapabilities>";
        let parsed: DomainCapabilities = parse(xml, "test").unwrap();
        assert_eq!(parsed.arch, "x86_64");
        assert_eq!(parsed.os.enums[0].values, ["bios", "efi"]);
    }

    #[test]
    fn a_dhcp_server_is_read_from_the_network() {
        let serves = |inner: &str| {
            let xml = format!("<network><name>n</name><bridge name='b'/>{inner}</network>");
            let parsed: NetworkXml = parse(&xml, "network").unwrap();
            parsed.ips.iter().any(|ip| ip.dhcp.is_some())
        };
        let range = "<dhcp><range start='192.0.2.2' end='192.0.2.9'/></dhcp>";
        assert!(serves(&format!("<ip address='192.0.2.1' prefix='24'>{range}</ip><ip/>")));
        assert!(!serves("<ip address='192.0.2.1' prefix='24'/>"));
        assert!(!serves(""));
    }

    #[test]
    fn without_ovmf_the_error_names_the_package() {
        let host = Virtualisation::new("qemu", "x86_64", &[]);
        assert!(firmware(&host, Firmware::Bios).is_ok());
        let Err(CallError::Fault(fault)) = firmware(&host, Firmware::Uefi) else {
            panic!("a guest was promised firmware that isn't there");
        };
        assert_eq!(fault.kind, FaultKind::FirmwareUnavailable);
        assert!(fault.message.contains("package ovmf"), "{fault}");
        let Err(CallError::Fault(fault)) =
            firmware(&Virtualisation::new("kvm", "aarch64", &["efi"]), Firmware::Bios)
        else {
            panic!("a guest was promised a BIOS where there is none");
        };
        assert!(fault.message.contains("aarch64"), "{fault}");
    }

    #[test]
    fn the_test_driver_answers() {
        let connection = Connect::open(Some("test:///default")).unwrap();
        let settings = crate::provider::kvm::tests::settings("default-pool");
        let pool = pool(&connection, &settings).map_err(|_| "no pool").unwrap();
        assert!(pool_path(&pool).is_ok());
        let missing = crate::provider::kvm::tests::settings("nowhere");
        let Err(CallError::Fault(fault)) = super::pool(&connection, &missing) else {
            panic!("a missing pool was found");
        };
        assert_eq!(fault.kind, FaultKind::PoolUnavailable);
        assert!(fault.message.contains("nowhere"), "{fault}");
    }
}
