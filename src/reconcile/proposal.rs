//! What creating a Proxy would do, without doing it.

use serde::Serialize;
use uuid::Uuid;

use super::{Supervisor, source};
use crate::image::{Fetcher, ImageSource, Sighting, Standing};
use crate::model::{
    Fault, FaultKind, Firmware, Guest, ImageFormat, ProxyName, ProxySpec, Sha256Digest, Slot,
};
use crate::provider::{Shape, SharedProvider, Size};
use crate::store::BaseRef;

/// What would be done; its JSON is documented in `docs/dbus.md`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Proposal {
    name: ProxyName,
    provider: String,
    /// What CreateProxy would do: create, or nothing since the same one is there.
    action: &'static str,
    base: Base,
    volumes: [Volume; 2],
    domain: Domain,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Base {
    url: String,
    file: String,
    path: String,
    format: ImageFormat,
    state: &'static str,
    digest: Option<Sha256Digest>,
    expected_digest: Option<Sha256Digest>,
    virtual_size: Option<u64>,
    /// 0 when it is there; nothing when its server doesn't tell.
    bytes_to_fetch: Option<u64>,
    message: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    format: &'static str,
    /// Bytes that the guest sees; nothing when only the image will tell.
    capacity: Option<u64>,
    backing: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Domain {
    name: String,
    uuid: Uuid,
    firmware: Firmware,
    xml: String,
}

impl Supervisor {
    /// What creating `name` with `spec` would do, as JSON. Changes nothing.
    ///
    /// # Errors
    /// What creating it would refuse; `ProviderUnavailable` and others when the host
    /// can't be asked.
    pub async fn plan(&self, name: &ProxyName, spec: ProxySpec) -> Result<String, Fault> {
        let known = self.get(name).ok();
        let (uuid, action) = match &known {
            Some(handle) => {
                super::supervisor::same(handle.clone(), &spec)?;
                (handle.view().uuid, "none")
            }
            None => (Uuid::new_v4(), "create"),
        };
        self.check(&spec)?;
        let configured = self.configured();
        let provider = configured.providers.get(&spec.provider)?;
        let (source, firmware) = source::resolve(&configured.settings, &spec)?;
        provider.preflight(firmware).await?;
        let mut base = base(&provider, &source).await?;
        if self.shared.desk.fetching().contains(&source.id()) {
            base.state = super::ImageState::Fetching.as_str();
        }
        let guest = Guest { name: name.clone(), uuid, slot: Slot::A };
        let seed = self.shared.seed(&guest, 1, &spec)?.len() as u64;
        let volumes = volumes(&guest, &spec, &base, seed)?;
        let xml = provider.plan(&guest, &shape(&spec, firmware, &base)).await?;
        let (domain_name, uuid) = (guest.domain_name(), guest.domain_uuid());
        let domain = Domain { name: domain_name, uuid, firmware, xml };
        let provider = spec.provider.to_string();
        let proposal = Proposal { name: name.clone(), provider, action, base, volumes, domain };
        serde_json::to_string(&proposal)
            .map_err(|error| Fault::new(FaultKind::StateFailed, format!("no JSON: {error}")))
    }
}

/// How the base stands, and what having it would take.
async fn base(provider: &SharedProvider, source: &ImageSource) -> Result<Base, Fault> {
    let seen = provider.survey_images(vec![source.clone()]).await?;
    let seen = seen.into_iter().find(|seen| seen.key == source.key);
    let mut base = described(source, seen.as_ref());
    let there = seen.as_ref().is_some_and(|seen| seen.standing == Standing::Ready);
    match there {
        true => base.bytes_to_fetch = Some(0),
        false => match Fetcher::default().length(&source.url).await {
            Ok(length) => base.bytes_to_fetch = length,
            Err(fault) if base.message.is_empty() => base.message = fault.message,
            Err(_) => {}
        },
    }
    Ok(base)
}

fn described(source: &ImageSource, seen: Option<&Sighting>) -> Base {
    let marker = seen.and_then(|seen| seen.seen.as_ref());
    let standing = seen.map_or(Standing::Absent, |seen| seen.standing);
    Base {
        url: source.url.to_string(),
        file: source.base_name(),
        path: seen.map(|seen| seen.path.to_string_lossy().into_owned()).unwrap_or_default(),
        format: source.format,
        state: super::ImageState::from(standing).as_str(),
        digest: marker.map(|marker| marker.digest),
        expected_digest: source.pin.digest(),
        virtual_size: marker.map(|marker| marker.virtual_size),
        bytes_to_fetch: None,
        message: seen.map(|seen| seen.message.clone()).unwrap_or_default(),
    }
}

/// The overlay and the seed.
fn volumes(guest: &Guest, spec: &ProxySpec, base: &Base, seed: u64) -> Result<[Volume; 2], Fault> {
    let capacity = match base.virtual_size {
        Some(presented) => Some(source::disk_size(spec, &base.file, presented)?),
        None => spec.disk_gib.map(|gib| gib << 30),
    };
    let overlay = Volume {
        name: guest.overlay(),
        format: "qcow2",
        capacity,
        backing: Some(base.path.clone()),
    };
    let seed = Volume { name: guest.seed(), format: "raw", capacity: Some(seed), backing: None };
    Ok([overlay, seed])
}

fn shape(spec: &ProxySpec, firmware: Firmware, base: &Base) -> Shape {
    Shape {
        size: Size { vcpus: spec.vcpus, memory_mib: spec.memory_mib, autostart: spec.autostart },
        firmware,
        generation: 1,
        base: BaseRef {
            file: base.file.clone(),
            path: base.path.clone().into(),
            // Only what was fetched has one.
            digest: base.digest.unwrap_or(Sha256Digest::new([0; 32])),
            format: base.format,
            virtual_size: base.virtual_size.unwrap_or(0),
        },
    }
}
