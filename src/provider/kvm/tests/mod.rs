//! What the tests of this module share.

pub(super) mod hook;
mod remote;

use super::*;
use crate::config::{NetworkAttachment, VirtType};
use crate::model::EntryName;

/// An entry on libvirt's test driver.
pub(crate) fn settings(pool: &str) -> ProviderSettings {
    ProviderSettings {
        name: EntryName::new("test").unwrap(),
        kind: ProviderType::Kvm,
        uri: "test:///default".into(),
        pool: pool.into(),
        network: NetworkAttachment::Network("default".into()),
        virt_type: VirtType::Auto,
        install_guest_agent: true,
        vendor_data: None,
        images: std::collections::BTreeMap::new(),
        ssh: None,
        max_concurrent: 2,
    }
}
