//! What a guest finds on its NoCloud volume: user-data byte for byte, vendor-data,
//! meta-data and network-config. Pure: the same input gives the same bytes.
//! Format: <https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html>.

mod mime;
mod preset;
mod script;
mod vendor;
mod volume;

use uuid::Uuid;

use crate::model::{Fault, FaultKind, ProxyName, ProxySpec};

pub use preset::preset;
pub use vendor::VendorData;

/// What a seed is made of.
#[derive(Debug, Clone, Copy)]
pub struct SeedInput<'a> {
    /// The Proxy's name, which becomes the hostname.
    pub name: &'a ProxyName,
    /// The Proxy's UUID.
    pub uuid: Uuid,
    /// Counts the guests made for the Proxy: cloud-init applies a seed again when
    /// this changes.
    pub seed_generation: u64,
    /// What the Proxy shall be.
    pub spec: &'a ProxySpec,
    /// Whether vendor-data installs the guest agent.
    pub install_guest_agent: bool,
    /// Vendor-data of the operator's own.
    pub vendor_data: Option<&'a VendorData>,
}

/// The bytes of the NoCloud volume.
///
/// # Errors
/// `InvalidArgument` when the volume can't hold it.
pub fn render(input: &SeedInput<'_>) -> Result<Vec<u8>, Fault> {
    let spec = input.spec;
    let user_data = match &spec.user_data {
        Some(given) => given.expose().to_vec(),
        None => preset(spec.port, &spec.allowed_clients).into_bytes(),
    };
    let mut files = vec![("user-data", user_data), ("meta-data", meta_data(input).into_bytes())];
    let vendor_data = vendor::render(input.install_guest_agent, input.vendor_data);
    files.extend(vendor_data.map(|text| ("vendor-data", text.into_bytes())));
    files.extend(
        spec.network_config.as_ref().map(|data| ("network-config", data.expose().to_vec())),
    );
    volume::render(input.uuid, &files).map_err(|error| {
        Fault::new(FaultKind::InvalidArgument, format!("the seed can't be made: {error}"))
    })
}

/// Quoted, since a name like `123` or `null` would be another thing in YAML.
fn meta_data(input: &SeedInput<'_>) -> String {
    let SeedInput { name, uuid, seed_generation, .. } = input;
    format!("instance-id: \"{uuid}-{seed_generation}\"\nlocal-hostname: \"{name}\"\n")
}

#[cfg(test)]
mod tests;
