//! What an operator wants a Proxy to be.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{EntryName, ImageFormat, ImageKey, ResourceUrl, Secret, Sha256Digest};

/// A checked specification: whatever holds one need not validate again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxySpec {
    /// The provider entry that runs the guest.
    pub provider: EntryName,
    /// The image it boots.
    pub image: ImageChoice,
    /// cloud-init user-data, byte for byte; the built-in preset when absent.
    pub user_data: Option<Secret>,
    /// cloud-init network-config, byte for byte; DHCP when absent.
    pub network_config: Option<Secret>,
    /// Networks that the preset's squid serves; empty means the guest's own networks.
    pub allowed_clients: Vec<IpNet>,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Disk size in GiB; the image's own virtual size when absent.
    pub disk_gib: Option<u64>,
    /// TCP port of the proxy in the guest.
    pub port: u16,
    /// URL to fetch through the proxy instead of the configured `health.url`.
    pub health_url: Option<ResourceUrl>,
    /// Whether the guest is started together with the host.
    pub autostart: bool,
}

/// Which image a Proxy boots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImageChoice {
    /// One that the provider entry offers.
    Key(ImageKey),
    /// One given in place. It boots UEFI.
    Url {
        /// Where it is.
        url: ResourceUrl,
        /// What its bytes must hash to, when pinned.
        sha256: Option<Sha256Digest>,
        /// Its file format.
        format: ImageFormat,
    },
}

impl ImageChoice {
    /// The key or the URL, without credentials.
    pub fn shown(&self) -> String {
        match self {
            Self::Key(key) => key.to_string(),
            Self::Url { url, .. } => url.to_string(),
        }
    }
}

/// Who declared a Proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A D-Bus call.
    Api,
    /// The configuration file: D-Bus calls can't delete it.
    Config,
}

impl Origin {
    /// The word for the `Origin` property.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Config => "config",
        }
    }
}

impl ProxySpec {
    /// Whether a guest made for `self` also serves `other`: what differs is
    /// neither in the domain nor in its seed or disk.
    pub fn same_guest(&self, other: &Self) -> bool {
        let guest_part = |spec: &Self| Self { health_url: None, ..spec.clone() };
        guest_part(self) == guest_part(other)
    }
}
