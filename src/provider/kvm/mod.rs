//! The libvirt provider, as `kvm` and as `kvm2`: they differ only in how a base gets
//! into the pool.

mod address;
mod adoption;
mod check;
mod clues;
mod connection;
mod definition;
mod dial;
mod directory;
mod domain;
mod domain_xml;
mod event_loop;
mod events;
mod host;
mod inventory;
mod logs;
mod marked;
mod pace;
mod publication;
mod removal;
mod storage;
mod strays;
mod token;
mod transfer;
mod tunnel;
mod users;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use virt::connect::Connect;

use self::connection::{CallError, Link};
use self::domain_xml::DomainXml;
use self::logs::{Logs, console_path};
use self::volumes::NewVolume;
use super::{
    AddressView, Check, Clues, DomainView, LinkState, Observed, Owned, Provider, Shape, Shared,
    Stray,
};
use crate::config::{ProviderSettings, ProviderType};
use crate::image::{ImageSource, Leftover, Progress, Sighting};
use crate::model::{Fault, FaultKind, Firmware, Guest, ImageKey, Sha256Digest};
use crate::store::BaseRef;
use crate::tasks;

/// How a base gets into the pool.
#[async_trait]
trait Publisher: Send + Sync {
    /// Has the base in the pool, verified.
    async fn ensure(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault>;

    /// Looks how images stand.
    async fn survey(&self, wanted: Vec<ImageSource>) -> Result<Vec<Sighting>, Fault>;

    /// Hashes the base of image `key`.
    async fn verify(
        &self,
        key: &ImageKey,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Sha256Digest, Fault>;

    /// Removes the base of image `key`, unless anything uses it.
    async fn evict(&self, key: &ImageKey) -> Result<u64, Fault>;

    /// Lists what nothing uses, and removes it unless `dry_run`.
    async fn prune(&self, offered: Vec<ImageSource>, dry_run: bool)
    -> Result<Vec<Leftover>, Fault>;

    /// Whether bases can be published, and how.
    async fn writable(&self) -> Result<String, Fault>;

    /// Makes `overlay` over `base` so that it never exists over anything else.
    ///
    /// # Errors
    /// `BaseChanged` when the base is no longer there as it was ensured.
    async fn overlay(&self, base: &BaseRef, overlay: &str, size: u64) -> Result<(), Fault>;

    /// Makes sure that `base` is still what it was when overlays were made from it.
    ///
    /// # Errors
    /// `BaseChanged`, with the evidence.
    async fn unchanged(&self, base: &BaseRef) -> Result<(), Fault>;
}

/// The provider of one entry.
pub struct Kvm {
    settings: Arc<ProviderSettings>,
    link: Link,
    logs: Logs,
    publisher: Box<dyn Publisher>,
}

impl Kvm {
    /// A provider for `settings`.
    pub fn new(settings: ProviderSettings, shared: &Shared) -> Self {
        let settings = Arc::new(settings);
        let link = Link::new(&settings, shared.bells.clone(), &shared.places);
        let here = settings.ssh.is_none();
        let publisher: Box<dyn Publisher> = match settings.kind {
            ProviderType::Kvm if here => {
                Box::new(directory::Directory::new(settings.clone(), link.clone()))
            }
            ProviderType::Kvm | ProviderType::Kvm2 => {
                let (spool, pace) = (shared.spool.clone(), pace::Pace::default());
                Box::new(storage::Storage::new(settings.clone(), link.clone(), spool, pace))
            }
        };
        let logs = Logs::new(&settings);
        Self { settings, link, logs, publisher }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connect, &ProviderSettings) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, Fault> {
        let settings = self.settings.clone();
        self.link.run(move |connection| work(connection, &settings)).await
    }
}

#[async_trait]
impl Provider for Kvm {
    async fn preflight(&self, firmware: Firmware) -> Result<(), Fault> {
        self.run(move |connection, settings| {
            host::pool(connection, settings)?;
            host::network(connection, settings)?;
            host::firmware(&host::virtualisation(connection, settings)?, firmware)
        })
        .await
    }

    fn state(&self) -> watch::Receiver<LinkState> {
        self.link.state()
    }

    async fn check(&self) -> Vec<Check> {
        self.link.dial_at_once();
        check::all(&self.link, &self.settings, self.publisher.writable().await).await
    }

    async fn strays(&self) -> Result<Vec<Stray>, Fault> {
        self.run(strays::all).await
    }

    async fn adopt(&self, guest: &Guest) -> Result<BaseRef, Fault> {
        let guest = guest.clone();
        self.run(move |connection, settings| strays::base_of(connection, settings, &guest)).await
    }

    async fn ensure_image(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        self.publisher.ensure(source, progress, cancel).await
    }

    async fn survey_images(&self, wanted: Vec<ImageSource>) -> Result<Vec<Sighting>, Fault> {
        self.publisher.survey(wanted).await
    }

    async fn verify_image(
        &self,
        key: &ImageKey,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Sha256Digest, Fault> {
        self.publisher.verify(key, progress, cancel).await
    }

    async fn evict_image(&self, key: &ImageKey) -> Result<u64, Fault> {
        self.publisher.evict(key).await
    }

    async fn prune_images(
        &self,
        offered: Vec<ImageSource>,
        dry_run: bool,
    ) -> Result<Vec<Leftover>, Fault> {
        self.publisher.prune(offered, dry_run).await
    }

    async fn observe(&self, guest: &Guest) -> Result<Observed, Fault> {
        let guest = guest.clone();
        self.run(move |connection, settings| {
            let found = domain::lookup(connection, &guest)?;
            let (domain, defined) = match &found {
                Some(found) => (domain::state(found)?, definition::defined(found)?),
                None => (domain::named(connection, &guest)?, None),
            };
            if let (DomainView::Running, Some(found)) = (&domain, &found) {
                // Its files are in use, whatever the pool says about them.
                let running = Some(definition::running(found)?);
                return Ok(Observed { domain, defined, running, overlay: true, seed: true });
            }
            let pool = host::pool(connection, settings)?;
            let exists = |name: &str| volumes::lookup(&pool, name).map(|found| found.is_some());
            let (overlay, seed) = (exists(&guest.overlay())?, exists(&guest.seed())?);
            Ok(Observed { domain, defined, running: None, overlay, seed })
        })
        .await
    }

    async fn create_overlay(&self, guest: &Guest, base: &BaseRef, size: u64) -> Result<(), Fault> {
        let overlay = guest.overlay();
        let name = overlay.clone();
        self.run(move |connection, settings| {
            volumes::delete(&host::pool(connection, settings)?, &name)
        })
        .await?;
        self.publisher.overlay(base, &overlay, size).await
    }

    async fn write_seed(&self, guest: &Guest, content: Vec<u8>) -> Result<(), Fault> {
        let name = guest.seed();
        self.run(move |connection, settings| {
            let pool = host::pool(connection, settings)?;
            volumes::delete(&pool, &name)?;
            let volume = NewVolume::file(&name, content.len() as u64)
                .create(&pool)?
                .ok_or_else(|| appeared(&name))?;
            volumes::upload(connection, &volume, &content)
        })
        .await
    }

    async fn plan(&self, guest: &Guest, shape: &Shape) -> Result<String, Fault> {
        let (guest, shape) = (guest.clone(), shape.clone());
        self.run(move |connection, settings| {
            let directory = host::pool_path(&host::pool(connection, settings)?)?;
            let volumes = [guest.overlay(), guest.seed()].map(|name| directory.join(name));
            domain_xml(connection, settings, (&guest, &shape), volumes)
        })
        .await
    }

    async fn define(&self, guest: &Guest, shape: &Shape) -> Result<(), Fault> {
        let (guest, shape) = (guest.clone(), shape.clone());
        self.run(move |connection, settings| {
            host::network(connection, settings)?;
            let pool = host::pool(connection, settings)?;
            let (overlay, seed) = (guest.overlay(), guest.seed());
            let volumes = [volumes::path(&pool, &overlay)?, volumes::path(&pool, &seed)?];
            let xml = domain_xml(connection, settings, (&guest, &shape), volumes)?;
            domain::define(connection, &guest, &xml, shape.size.autostart)
        })
        .await
    }

    async fn start(&self, guest: &Guest, base: &BaseRef, first: bool) -> Result<(), Fault> {
        self.publisher.unchanged(base).await?;
        let guest = guest.clone();
        self.run(move |connection, settings| {
            host::network(connection, settings)?;
            domain::start(connection, &guest, first)
        })
        .await
    }

    async fn base_unchanged(&self, base: &BaseRef) -> Result<(), Fault> {
        self.publisher.unchanged(base).await
    }

    async fn shut_down(&self, guest: &Guest, force: bool) -> Result<(), Fault> {
        let guest = guest.clone();
        self.run(move |connection, _| domain::shut_down(connection, &guest, force)).await
    }

    async fn resume(&self, guest: &Guest) -> Result<(), Fault> {
        let guest = guest.clone();
        self.run(move |connection, _| domain::resume(connection, &guest)).await
    }

    async fn address(&self, guest: &Guest, agent_only: bool) -> Result<AddressView, Fault> {
        let guest = guest.clone();
        self.run(move |connection, _| {
            let domain = domain::require(connection, &guest)?;
            address::find(&domain, &guest.mac(), agent_only)
        })
        .await
    }

    async fn clues(&self, guest: &Guest) -> Result<Clues, Fault> {
        let (guest, logs) = (guest.clone(), self.logs.clone());
        self.run(move |connection, settings| clues::gather(connection, settings, &guest, &logs))
            .await
    }

    async fn console(&self, guest: &Guest, limit: u64) -> Result<Vec<u8>, Fault> {
        let (path, logs) = (console_path(guest), self.logs.clone());
        if logs.are_here() {
            // Whether libvirt answers or not.
            return tasks::blocking(move || logs::end_of_file(&path, limit)).await;
        }
        self.run(move |connection, _| logs.end_of(connection, &path, limit)).await
    }

    async fn remove(&self, guest: &Guest, owned: Owned) -> Result<(), Fault> {
        let (guest, logs) = (guest.clone(), self.logs.clone());
        self.run(move |connection, settings| {
            domain::remove(connection, &guest)?;
            let pool = host::pool(connection, settings)?;
            if owned.overlay {
                volumes::delete(&pool, &guest.overlay())?;
            }
            if owned.seed {
                volumes::delete(&pool, &guest.seed())?;
            }
            logs.remove_console(connection, &guest)
        })
        .await
    }
}

/// The XML of a guest's domain, whose overlay and seed are `volumes`.
fn domain_xml(
    connection: &Connect,
    settings: &ProviderSettings,
    (guest, shape): (&Guest, &Shape),
    [overlay, seed]: [PathBuf; 2],
) -> Result<String, CallError> {
    let virtualisation = host::virtualisation(connection, settings)?;
    host::firmware(&virtualisation, shape.firmware)?;
    let xml = DomainXml {
        guest,
        shape,
        entry: &settings.name,
        host: &virtualisation,
        network: &settings.network,
        overlay,
        seed,
        console: console_path(guest),
        nvram: nvram_path(settings, guest),
    };
    let xml = xml
        .render()
        .map_err(|error| Fault::new(FaultKind::DomainFailed, format!("no domain XML: {error}")))?;
    Ok(xml)
}

/// For how long libvirt's event loop has not turned, when that is too long: without it
/// neither events nor dead connections are noticed.
pub fn event_loop_stuck() -> Option<std::time::Duration> {
    event_loop::stuck()
}

/// Where libvirt's system instance keeps UEFI variables, on every distribution. Where
/// another instance keeps them is not known, so it chooses the name, too.
fn nvram_path(settings: &ProviderSettings, guest: &Guest) -> Option<PathBuf> {
    let system = settings.uri.ends_with("/system");
    system.then(|| Path::new("/var/lib/libvirt/qemu/nvram").join(guest.nvram()))
}

fn appeared(name: &str) -> Fault {
    let text = format!("a volume {name} has appeared meanwhile and was not made here");
    Fault::new(FaultKind::ForeignFile, text)
}

#[cfg(test)]
pub(crate) mod tests;
