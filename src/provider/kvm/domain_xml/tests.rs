//! Golden files of every combination of options; the lab has them validated by
//! libvirt's own schema. `BLESS=1` writes them anew.

use std::path::Path;

use uuid::Uuid;

use super::*;
use crate::model::{ImageFormat, ProxyName, Sha256Digest};
use crate::provider::Size;
use crate::store::BaseRef;

const ARCHES: [&str; 2] = ["x86_64", "aarch64"];
const TYPES: [&str; 2] = ["kvm", "qemu"];
const FIRMWARES: [(&str, Firmware); 2] = [("uefi", Firmware::Uefi), ("bios", Firmware::Bios)];

fn networks() -> [(&'static str, NetworkAttachment); 2] {
    [
        ("network", NetworkAttachment::Network("default".into())),
        ("bridge", NetworkAttachment::Bridge("br0".into())),
    ]
}

fn shape(firmware: Firmware) -> Shape {
    Shape {
        size: Size { vcpus: 2, memory_mib: 768, autostart: true },
        firmware,
        generation: 3,
        base: BaseRef {
            file: "base-home-debian-13.qcow2".into(),
            path: "/pool/base-home-debian-13.qcow2".into(),
            digest: Sha256Digest::of(b""),
            format: ImageFormat::Qcow2,
            virtual_size: 3 << 30,
        },
    }
}

fn xml(host: &Virtualisation, firmware: Firmware, network: &NetworkAttachment) -> String {
    let guest =
        Guest { name: ProxyName::new("web").unwrap(), uuid: Uuid::from_u128(7), slot: Slot::A };
    let nvram = Path::new("/var/lib/libvirt/qemu/nvram").join(guest.nvram());
    DomainXml {
        nvram: Some(nvram),
        guest: &guest,
        shape: &shape(firmware),
        entry: &EntryName::new("home").unwrap(),
        host,
        network,
        overlay: "/pool/proxy-web.qcow2".into(),
        seed: "/pool/proxy-web-seed.img".into(),
        console: "/var/log/libvirt/qemu/proxy-web.console.log".into(),
    }
    .render()
    .unwrap()
}

/// Every combination that a host can be asked for: only x86 has a BIOS.
fn combinations() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for arch in ARCHES {
        for domain_type in TYPES {
            let host = Virtualisation::new(domain_type, arch, &["efi"]);
            for (firmware_name, firmware) in FIRMWARES {
                for (network_name, network) in &networks() {
                    if crate::provider::kvm::host::firmware(&host, firmware).is_ok() {
                        let name = format!("{arch}-{domain_type}-{firmware_name}-{network_name}");
                        all.push((name, xml(&host, firmware, network)));
                    }
                }
            }
        }
    }
    all
}

#[test]
fn every_combination_is_as_its_golden_file_has_it() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/domain");
    let combinations = combinations();
    assert_eq!(combinations.len(), 12);
    for (name, xml) in &combinations {
        let path = directory.join(format!("{name}.xml"));
        // A program's own version is no news.
        let xml = format!("{}\n", xml.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &xml).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(xml, golden, "{}: BLESS=1 writes it anew", path.display());
    }
    let files = std::fs::read_dir(directory).unwrap().count();
    assert_eq!(files, combinations.len(), "a golden file of no combination");
}
