//! The domain of a guest as libvirt XML.
//! Format: <https://libvirt.org/formatdomain.html>.

use std::io;
use std::path::PathBuf;

use quick_xml::Writer;
use quick_xml::events::BytesText;

use super::host::Virtualisation;
use crate::config::NetworkAttachment;
use crate::model::{EntryName, Firmware, Guest, Slot};
use crate::provider::Shape;

/// The namespace of our metadata in a domain.
const NAMESPACE: &str = "urn:org.proxyd1:domain";

/// Everything the XML is made of.
pub(super) struct DomainXml<'a> {
    pub(super) guest: &'a Guest,
    pub(super) shape: &'a Shape,
    pub(super) entry: &'a EntryName,
    pub(super) host: &'a Virtualisation,
    pub(super) network: &'a NetworkAttachment,
    pub(super) overlay: PathBuf,
    pub(super) seed: PathBuf,
    pub(super) console: PathBuf,
    /// Where its UEFI variables are kept; libvirt's choice when absent.
    pub(super) nvram: Option<PathBuf>,
}

type Xml = Writer<Vec<u8>>;

impl DomainXml<'_> {
    /// The XML.
    ///
    /// # Errors
    /// None in practice: it is written to memory.
    pub(super) fn render(&self) -> io::Result<String> {
        let mut xml = Writer::new_with_indent(Vec::new(), b' ', 2);
        xml.create_element("domain")
            .with_attribute(("type", self.host.domain_type))
            .write_inner_content(|xml| {
                text(xml, "name", &self.guest.domain_name())?;
                text(xml, "uuid", &self.guest.domain_uuid().to_string())?;
                text(xml, "title", &format!("forward proxy {}", self.guest.name))?;
                self.metadata(xml)?;
                sized(xml, "memory", self.shape.size.memory_mib)?;
                text(xml, "vcpu", &self.shape.size.vcpus.to_string())?;
                self.os(xml)?;
                self.platform(xml)?;
                self.devices(xml)
            })?;
        String::from_utf8(xml.into_inner()).map_err(io::Error::other)
    }

    /// Whose it is and what it was made from, for people and for recovery.
    fn metadata(&self, xml: &mut Xml) -> io::Result<()> {
        let base = &self.shape.base;
        xml.create_element("metadata").write_inner_content(|xml| {
            xml.create_element("proxyd:proxy")
                .with_attributes([
                    ("xmlns:proxyd", NAMESPACE),
                    ("name", self.guest.name.as_str()),
                    ("uuid", &self.guest.uuid.to_string()),
                    ("slot", if self.guest.slot == Slot::A { "a" } else { "b" }),
                    ("provider", self.entry.as_str()),
                    ("generation", &self.shape.generation.to_string()),
                    ("base", &base.file),
                    ("sha256", &base.digest.to_string()),
                    ("version", env!("CARGO_PKG_VERSION")),
                ])
                .write_empty()?;
            Ok(())
        })?;
        Ok(())
    }

    fn os(&self, xml: &mut Xml) -> io::Result<()> {
        let uefi = self.shape.firmware == Firmware::Uefi && !self.is_test();
        let os = xml.create_element("os");
        let os = if uefi { os.with_attribute(("firmware", "efi")) } else { os };
        os.write_inner_content(|xml| {
            let kind = xml.create_element("type").with_attribute(("arch", &*self.host.arch));
            let kind = match self.machine() {
                Some(machine) => kind.with_attribute(("machine", machine)),
                None => kind,
            };
            kind.write_text_content(BytesText::new("hvm"))?;
            if uefi {
                // Left open, libvirt prefers a build with secure boot, under which
                // not every cloud image starts.
                xml.create_element("firmware").write_inner_content(|xml| {
                    empty(xml, "feature", &[("enabled", "no"), ("name", "secure-boot")])
                })?;
                if let Some(nvram) = &self.nvram {
                    // The file only: its template is libvirt's choice at each start.
                    text(xml, "nvram", &nvram.to_string_lossy())?;
                }
            }
            empty(xml, "boot", &[("dev", "hd")])
        })?;
        Ok(())
    }

    fn machine(&self) -> Option<&'static str> {
        match &*self.host.arch {
            "x86_64" => Some("q35"),
            "aarch64" => Some("virt"),
            _ => None,
        }
    }

    fn is_test(&self) -> bool {
        self.host.domain_type == "test"
    }

    fn platform(&self, xml: &mut Xml) -> io::Result<()> {
        if self.is_test() {
            return Ok(());
        }
        xml.create_element("features").write_inner_content(|xml| {
            empty(xml, "acpi", &[])?;
            if self.host.arch == "x86_64" { empty(xml, "apic", &[]) } else { Ok(()) }
        })?;
        // The best that each can do: nothing here is ever migrated.
        let mode = if self.host.domain_type == "kvm" { "host-passthrough" } else { "maximum" };
        empty(xml, "cpu", &[("mode", mode)])?;
        empty(xml, "clock", &[("offset", "utc")])?;
        text(xml, "on_poweroff", "destroy")?;
        // shim resets once when it finds an empty NVRAM.
        text(xml, "on_reboot", "restart")?;
        text(xml, "on_crash", "destroy")
    }

    fn devices(&self, xml: &mut Xml) -> io::Result<()> {
        xml.create_element("devices").write_inner_content(|xml| {
            self.disk(xml, &self.overlay, "qcow2", "vda", false)?;
            // virtio-blk: some cloud kernels have no AHCI for a CD-ROM.
            self.disk(xml, &self.seed, "raw", "vdb", true)?;
            self.interface(xml)?;
            self.console(xml)?;
            if self.is_test() {
                return Ok(());
            }
            channel(xml)?;
            if self.host.arch == "x86_64" {
                // Without it GRUB's gfxterm hangs under SeaBIOS; nothing displays it.
                xml.create_element("video")
                    .write_inner_content(|xml| empty(xml, "model", &[("type", "vga")]))?;
            }
            xml.create_element("rng").with_attribute(("model", "virtio")).write_inner_content(
                |xml| {
                    xml.create_element("backend")
                        .with_attribute(("model", "random"))
                        .write_text_content(BytesText::new("/dev/urandom"))?;
                    Ok(())
                },
            )?;
            empty(xml, "memballoon", &[("model", "virtio")])
        })?;
        Ok(())
    }

    fn disk(
        &self,
        xml: &mut Xml,
        path: &std::path::Path,
        format: &str,
        target: &str,
        readonly: bool,
    ) -> io::Result<()> {
        // type='file' rather than 'volume': only for that does AppArmor's helper
        // follow the backing chain.
        xml.create_element("disk")
            .with_attributes([("type", "file"), ("device", "disk")])
            .write_inner_content(|xml| {
                if readonly {
                    empty(xml, "driver", &[("name", "qemu"), ("type", format)])?;
                } else {
                    let driver = [("name", "qemu"), ("type", format), ("discard", "unmap")];
                    empty(xml, "driver", &driver)?;
                }
                empty(xml, "source", &[("file", &path.to_string_lossy())])?;
                empty(xml, "target", &[("dev", target), ("bus", "virtio")])?;
                if readonly { empty(xml, "readonly", &[]) } else { Ok(()) }
            })?;
        Ok(())
    }

    fn interface(&self, xml: &mut Xml) -> io::Result<()> {
        let (kind, attribute, name) = match self.network {
            NetworkAttachment::Network(name) => ("network", "network", name),
            NetworkAttachment::Bridge(name) => ("bridge", "bridge", name),
        };
        xml.create_element("interface").with_attribute(("type", kind)).write_inner_content(
            |xml| {
                empty(xml, "mac", &[("address", &self.guest.mac())])?;
                empty(xml, "source", &[(attribute, name)])?;
                empty(xml, "model", &[("type", "virtio")])
            },
        )?;
        Ok(())
    }

    fn console(&self, xml: &mut Xml) -> io::Result<()> {
        let log = self.console.to_string_lossy();
        xml.create_element("serial").with_attribute(("type", "pty")).write_inner_content(
            |xml| {
                empty(xml, "log", &[("file", &log), ("append", "on")])?;
                empty(xml, "target", &[("port", "0")])
            },
        )?;
        Ok(())
    }
}

fn channel(xml: &mut Xml) -> io::Result<()> {
    xml.create_element("channel").with_attribute(("type", "unix")).write_inner_content(|xml| {
        empty(xml, "target", &[("type", "virtio"), ("name", super::clues::AGENT_CHANNEL)])
    })?;
    Ok(())
}

fn text(xml: &mut Xml, name: &str, content: &str) -> io::Result<()> {
    xml.create_element(name).write_text_content(BytesText::new(content))?;
    Ok(())
}

fn sized(xml: &mut Xml, name: &str, mib: u64) -> io::Result<()> {
    xml.create_element(name)
        .with_attribute(("unit", "MiB"))
        .write_text_content(BytesText::new(&mib.to_string()))?;
    Ok(())
}

fn empty(xml: &mut Xml, name: &str, attributes: &[(&str, &str)]) -> io::Result<()> {
    xml.create_element(name).with_attributes(attributes.iter().copied()).write_empty()?;
    Ok(())
}

#[cfg(test)]
mod tests;
