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

/// When a change of a specification takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// At once, the guest running on.
    Live,
    /// When the guest starts again: the domain's definition is changed at once.
    NextStart,
    /// In a guest that is made anew: its disk or its seed is made of it.
    Rebuild,
}

impl Effect {
    /// The word for the answer of `Update`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::NextStart => "next-start",
            Self::Rebuild => "rebuild",
        }
    }
}

impl ProxySpec {
    /// What differs from `before`, by key, and when it takes effect. Port and clients
    /// are in the preset's seed; where user-data is the operator's own they only tell
    /// what is probed.
    pub fn changes(&self, before: &Self) -> Vec<(&'static str, Effect)> {
        let own = self.user_data.is_some() && before.user_data.is_some();
        let preset = if own { Effect::Live } else { Effect::Rebuild };
        let rows = [
            ("Provider", self.provider != before.provider, Effect::Rebuild),
            ("Image", self.image != before.image, Effect::Rebuild),
            ("UserData", self.user_data != before.user_data, Effect::Rebuild),
            ("NetworkConfig", self.network_config != before.network_config, Effect::Rebuild),
            ("AllowedClients", self.allowed_clients != before.allowed_clients, preset),
            ("Vcpus", self.vcpus != before.vcpus, Effect::NextStart),
            ("MemoryMiB", self.memory_mib != before.memory_mib, Effect::NextStart),
            ("DiskGiB", self.disk_gib != before.disk_gib, Effect::Rebuild),
            ("Port", self.port != before.port, preset),
            ("HealthUrl", self.health_url != before.health_url, Effect::Live),
            ("Autostart", self.autostart != before.autostart, Effect::Live),
        ];
        let changed = rows.into_iter().filter(|(_, changed, _)| *changed);
        changed.map(|(key, _, effect)| (key, effect)).collect()
    }

    /// The keys that a guest made for `self` lacks of `wanted`: only one made anew has
    /// them.
    pub fn outgrown_by(&self, wanted: &Self) -> Vec<&'static str> {
        let changes = wanted.changes(self).into_iter();
        changes.filter(|(_, effect)| *effect == Effect::Rebuild).map(|(key, _)| key).collect()
    }
}

/// Which of its two places in a pool and among the domains a guest has. While a guest
/// is replaced, its successor comes up in the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Slot {
    /// The one whose names follow from the Proxy's alone.
    #[default]
    A,
    /// The other one.
    B,
}

impl Slot {
    /// The place of the successor.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{SpecInput, UrlOrigin};

    fn spec(change: impl FnOnce(&mut SpecInput)) -> ProxySpec {
        let mut input = SpecInput {
            provider: Some("home".into()),
            image: Some("a".into()),
            ..SpecInput::default()
        };
        change(&mut input);
        input.validate(UrlOrigin::Api, None).unwrap()
    }

    #[test]
    fn each_change_takes_effect_in_its_time() {
        let before = spec(|_| {});
        let of = |change: fn(&mut SpecInput)| spec(change).changes(&before);
        assert_eq!(of(|_| {}), []);
        assert_eq!(of(|s| s.vcpus = Some(2)), [("Vcpus", Effect::NextStart)]);
        assert_eq!(of(|s| s.memory_mib = Some(300)), [("MemoryMiB", Effect::NextStart)]);
        assert_eq!(of(|s| s.autostart = Some(false)), [("Autostart", Effect::Live)]);
        assert_eq!(of(|s| s.health_url = Some("http://h/".into())), [("HealthUrl", Effect::Live)]);
        assert_eq!(of(|s| s.image = Some("b".into())), [("Image", Effect::Rebuild)]);
        assert_eq!(of(|s| s.disk_gib = Some(9)), [("DiskGiB", Effect::Rebuild)]);
        assert_eq!(of(|s| s.port = Some(80)), [("Port", Effect::Rebuild)]);
    }

    #[test]
    fn with_user_data_of_ones_own_port_and_clients_only_tell_what_is_probed() {
        let own = |port| {
            spec(|input| {
                input.user_data = Some(Secret::new(b"#!".to_vec()));
                input.port = Some(port);
            })
        };
        assert_eq!(own(80).changes(&own(81)), [("Port", Effect::Live)]);
        assert!(own(80).outgrown_by(&own(81)).is_empty());
        assert_eq!(spec(|_| {}).outgrown_by(&own(3128)), ["UserData"]);
    }
}
