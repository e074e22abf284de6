//! The configuration after validation. Nothing downstream checks it again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{
    EntryName, Firmware, ImageFormat, ImageKey, Pin, ProxyName, ProxySpec, ResourceUrl,
};
use crate::seed::VendorData;

/// Everything the configuration file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Provider entries by name; at least one.
    pub providers: BTreeMap<EntryName, ProviderSettings>,
    /// Proxies declared in the file.
    pub proxies: BTreeMap<ProxyName, DeclaredProxy>,
    /// How proxies are probed.
    pub health: HealthSettings,
    /// Where Prometheus may ask; nowhere when absent.
    pub metrics: Option<MetricsListen>,
}

/// Where the metrics are served: never to other hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsListen {
    /// A loopback address.
    Tcp(std::net::SocketAddr),
    /// A Unix socket.
    Unix(std::path::PathBuf),
}

impl Settings {
    /// What it amounts to, for whoever checks a file.
    pub fn summary(&self) -> String {
        format!("valid: {} providers, {} proxies", self.providers.len(), self.proxies.len())
    }

    /// The entry that a specification without `Provider` means: the only one.
    pub fn only_entry(&self) -> Option<&EntryName> {
        let mut names = self.providers.keys();
        names.next().filter(|_| names.next().is_none())
    }
}

/// One provider entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderSettings {
    /// Its name.
    pub name: EntryName,
    /// Which built-in drives it.
    pub kind: ProviderType,
    /// The libvirt connection URI.
    pub uri: String,
    /// The libvirt storage pool for bases, overlays and seeds.
    pub pool: String,
    /// What the guest's network interface is attached to.
    pub network: NetworkAttachment,
    /// Hardware virtualisation or software emulation.
    pub virt_type: VirtType,
    /// Whether the guest agent is installed by vendor-data.
    pub install_guest_agent: bool,
    /// Vendor-data of the operator's own.
    pub vendor_data: Option<VendorData>,
    /// The images it offers: the top-level ones, its own added or overriding.
    pub images: BTreeMap<ImageKey, ImageSettings>,
    /// How to log in, for URIs that go over SSH.
    pub ssh: Option<SshSettings>,
    /// Images that may be on their way to its pool at once.
    pub max_concurrent: usize,
}

/// The built-in providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderType {
    /// libvirt; publishes into the pool's directory when that is on this host.
    Kvm,
    /// libvirt; publishes through the storage API only.
    Kvm2,
}

impl ProviderType {
    /// Every built-in, for error messages.
    pub const ALL: [Self; 2] = [Self::Kvm, Self::Kvm2];

    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Kvm2 => "kvm2",
        }
    }
}

/// What a guest's network interface is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkAttachment {
    /// A libvirt network, by name.
    Network(String),
    /// A bridge of the host, by interface name.
    Bridge(String),
}

/// How the guest's processors are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VirtType {
    /// KVM when the host offers it, else software emulation.
    Auto,
    /// KVM.
    Kvm,
    /// QEMU's software emulation (TCG).
    Qemu,
}

/// An image that an entry offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSettings {
    /// Where it is.
    pub url: ResourceUrl,
    /// What its bytes are held to.
    pub pin: Pin,
    /// Its file format.
    pub format: ImageFormat,
    /// The firmware that boots it.
    pub firmware: Firmware,
}

/// How to log in to another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshSettings {
    /// Where to.
    pub destination: SshDestination,
    /// The name of the systemd credential that holds the private key.
    pub key_credential: String,
    /// Accepted host keys, in known_hosts format.
    pub known_hosts: String,
}

/// Where a URI that goes over SSH leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshDestination {
    /// A name or an address.
    pub host: String,
    /// Who to log in as; the user that proxyd runs as when absent.
    pub user: Option<String>,
    /// The port; SSH's own when absent.
    pub port: Option<u16>,
}

/// A Proxy declared in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredProxy {
    /// What it shall be.
    pub spec: ProxySpec,
    /// What becomes of it when it leaves the file.
    pub on_removal: OnRemoval,
}

/// What becomes of a declared Proxy that leaves the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnRemoval {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays, from then on as if it had been made over D-Bus.
    Keep,
}

/// How proxies are probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthSettings {
    /// What is fetched through the proxy.
    pub url: ResourceUrl,
    /// The HTTP status that counts as healthy.
    pub expect_status: u16,
    /// Time between probes.
    pub interval: Duration,
    /// The most one probe may take.
    pub timeout: Duration,
    /// Failures in a row that make a healthy Proxy unhealthy.
    pub unhealthy_after: u32,
    /// Answers in a row that make it healthy again.
    pub healthy_after: u32,
}
