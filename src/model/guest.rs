//! The identity of a guest: the names of all its parts follow from it.

use uuid::Uuid;

use super::{ProxyName, Sha256Digest, Slot};

/// A guest of a Proxy. A Proxy's name has no dot, so the names of one slot are never
/// those of the other slot of another Proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// The Proxy's name.
    pub name: ProxyName,
    /// The Proxy's UUID, which everything made for it carries.
    pub uuid: Uuid,
    /// Which of the Proxy's two places it has.
    pub slot: Slot,
}

impl Guest {
    /// The libvirt domain's name.
    pub fn domain_name(&self) -> String {
        self.named("proxy-", "")
    }

    /// The UUID of the domain: the Proxy's own in the first slot, and one derived from
    /// it in the other, since both may run at once.
    pub fn domain_uuid(&self) -> Uuid {
        match self.slot {
            Slot::A => self.uuid,
            Slot::B => {
                let hash = Sha256Digest::of(format!("{} b", self.uuid).as_bytes());
                let mut bytes = [0; 16];
                bytes.copy_from_slice(&hash.as_bytes()[..16]);
                uuid::Builder::from_custom_bytes(bytes).into_uuid()
            }
        }
    }

    /// The file name of its overlay.
    pub fn overlay(&self) -> String {
        self.named("proxy-", ".qcow2")
    }

    /// The file name of its seed.
    pub fn seed(&self) -> String {
        self.named("proxy-", "-seed.img")
    }

    /// The file name of its UEFI variables. With the UUID in it, it is never that of
    /// another domain of the name, of which libvirt would take over what it left.
    pub fn nvram(&self) -> String {
        format!("{}-{}_VARS.fd", self.domain_name(), self.domain_uuid())
    }

    /// The MAC of its interface: derived from the domain's UUID, so that a rebuilt
    /// guest keeps its DHCP lease. In QEMU's locally used range 52:54:00.
    pub fn mac(&self) -> String {
        let hash = Sha256Digest::of(self.domain_uuid().as_bytes());
        let [a, b, c, ..] = hash.as_bytes();
        format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
    }

    fn named(&self, before: &str, after: &str) -> String {
        let slot = match self.slot {
            Slot::A => "",
            Slot::B => ".b",
        };
        format!("{before}{}{slot}{after}", self.name)
    }
}

/// What a volume's name says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFile {
    /// The Proxy that it would belong to.
    pub proxy: ProxyName,
    /// The domain that it would belong to.
    pub domain: String,
}

impl GuestFile {
    /// Reads the name of an overlay or seed; nothing when it is neither.
    pub fn of_volume(name: &str) -> Option<Self> {
        let domain = name.strip_suffix("-seed.img").or_else(|| name.strip_suffix(".qcow2"))?;
        let proxy = domain.strip_prefix("proxy-")?;
        let proxy = proxy.strip_suffix(".b").unwrap_or(proxy);
        Some(Self { proxy: ProxyName::new(proxy).ok()?, domain: domain.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(slot: Slot) -> Guest {
        Guest { name: ProxyName::new("x").unwrap(), uuid: Uuid::from_u128(7), slot }
    }

    #[test]
    fn two_guests_of_a_proxy_share_nothing() {
        let (a, b) = (guest(Slot::A), guest(Slot::B));
        let names = |guest: &Guest| {
            [guest.domain_name(), guest.overlay(), guest.seed(), guest.nvram(), guest.mac()]
        };
        assert!(names(&a).iter().zip(names(&b)).all(|(a, b)| *a != b));
        assert_ne!(a.domain_uuid(), b.domain_uuid());
        assert_eq!(a.domain_uuid(), a.uuid);
        assert_eq!([b.overlay(), b.seed()], ["proxy-x.b.qcow2", "proxy-x.b-seed.img"]);
    }

    #[test]
    fn the_names_of_volumes_are_read_back() {
        for guest in [guest(Slot::A), guest(Slot::B)] {
            for volume in [guest.overlay(), guest.seed()] {
                let file = GuestFile::of_volume(&volume).unwrap();
                assert_eq!((file.proxy, file.domain), (guest.name.clone(), guest.domain_name()));
            }
        }
        for other in ["base-a-b.qcow2", "proxy-.qcow2", "proxy-x.img", "proxy-X.qcow2"] {
            assert_eq!(GuestFile::of_volume(other), None, "{other}");
        }
    }
}
