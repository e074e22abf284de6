//! What a provider does for a guest, and the registry of built-in ones. A provider
//! is told identities and shapes; it knows nothing of records, phases or D-Bus.

mod bells;
pub mod kvm;
mod registry;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::image::{ImageSource, Leftover, Progress, Sighting, Spool};
use crate::model::{Address, Fault, Firmware, Guest, ImageKey, ProxyName, Sha256Digest, Slot};
use crate::store::BaseRef;

pub use bells::Bells;
pub use kvm::event_loop_stuck;
pub use registry::Registry;

/// What the domain of a guest looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Processors, memory, and whether it is started with the host.
    pub size: Size,
    /// Its firmware.
    pub firmware: Firmware,
    /// The generation of the specification it is made for.
    pub generation: u64,
    /// The base it was made from, for its metadata.
    pub base: BaseRef,
}

/// What of a domain can be changed without making its guest anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Whether libvirt starts it together with the host.
    pub autostart: bool,
}

/// The domain as it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DomainView {
    /// There is none of that name or UUID.
    Absent,
    /// One of that name has another UUID: it isn't ours.
    Foreign {
        /// The UUID it has.
        uuid: Uuid,
    },
    /// Ours, defined, not running.
    Off {
        /// Why, in libvirt's words, such as `shutdown` or `crashed`.
        reason: String,
    },
    /// Ours, and holding its memory but not running, such as after an I/O error.
    Paused {
        /// Why, in libvirt's words.
        reason: String,
    },
    /// Ours and running.
    Running,
}

/// The parts of a guest as they are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// The domain.
    pub domain: DomainView,
    /// What libvirt has on file for its next start; nothing when it has nothing, as
    /// when a running domain was undefined.
    pub defined: Option<Size>,
    /// What it runs with.
    pub running: Option<Size>,
    /// Whether a volume has the overlay's name.
    pub overlay: bool,
    /// Whether a volume has the seed's name.
    pub seed: bool,
}

/// Whether the guest has told its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressView {
    /// It has.
    Known(Address),
    /// Not yet.
    Unknown {
        /// Who was asked, and what each answered.
        answers: String,
        /// Whether the guest agent is among those who answered: the address is near.
        agent: bool,
    },
}

/// The guest agent as its host sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentView {
    /// It has opened its channel.
    Connected,
    /// It has not, or not any more.
    Disconnected,
    /// The domain has no channel for it.
    NoChannel,
}

/// A guest's DHCP lease as the libvirt network tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseView {
    /// The guest's MAC has one.
    Leased(IpAddr),
    /// There is none yet.
    NotYet,
    /// libvirt keeps no leases for this network.
    NotKept,
}

/// The end of a log on the guest's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// Where it is, there.
    pub path: PathBuf,
    /// What it says, or why it can't be read.
    pub content: Result<Vec<u8>, String>,
}

/// What can be seen of a guest from outside, for those who wonder why it is not heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clues {
    /// The domain.
    pub domain: DomainView,
    /// How its processors are run, such as `kvm` or `qemu`; empty without a domain.
    pub domain_type: String,
    /// The guest agent.
    pub agent: AgentView,
    /// Its DHCP lease.
    pub lease: LeaseView,
    /// Its serial console.
    pub console: Tail,
    /// QEMU's log of the domain, earlier runs included.
    pub log: Tail,
}

/// The connection of an entry to its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// Nobody has needed it yet.
    Connecting,
    /// It is there.
    Connected {
        /// The version of libvirt there.
        version: String,
    },
    /// It could not be opened, or broke.
    Failed {
        /// Why, and the way out.
        message: String,
    },
}

/// A row of the preflight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What was looked at, such as `pool`.
    pub what: &'static str,
    /// Whether it is as guests need it.
    pub passed: bool,
    /// What was found, or what is wrong and the way out.
    pub message: String,
}

/// A domain or volume that looks like a part of a Proxy's guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// The Proxy that it would belong to.
    pub proxy: ProxyName,
    /// What it is.
    pub part: StrayPart,
}

/// What a stray is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StrayPart {
    /// A domain that carries our metadata.
    Domain {
        /// Its name.
        name: String,
        /// The UUID of the Proxy that it was made for.
        uuid: Uuid,
        /// Its place.
        slot: Slot,
    },
    /// A volume with the name of an overlay or a seed.
    Volume {
        /// Its name.
        name: String,
    },
}

/// Runs guests for one entry of the configuration. Every method may be called again
/// after it failed or was cut short, and says so when there was nothing to do.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Checks what a guest needs of the host before anything is made or fetched:
    /// connection, pool, network, firmware, virtualisation.
    async fn preflight(&self, firmware: Firmware) -> Result<(), Fault>;

    /// How the connection is, as it changes.
    fn state(&self) -> watch::Receiver<LinkState>;

    /// The same looked through one by one, for an operator.
    async fn check(&self) -> Vec<Check>;

    /// Every domain and volume that looks like a part of a Proxy's guest.
    async fn strays(&self) -> Result<Vec<Stray>, Fault>;

    /// The base that the guest's domain was made from, as its metadata tells.
    ///
    /// # Errors
    /// `NoSuchProxy` when there is no such domain, or no such base.
    async fn adopt(&self, guest: &Guest) -> Result<BaseRef, Fault>;

    /// Has the base of `source` in the pool, verified; fetches it if need be.
    async fn ensure_image(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault>;

    /// Looks how the images `wanted` stand in the pool, and which others of the entry
    /// are there.
    async fn survey_images(&self, wanted: Vec<ImageSource>) -> Result<Vec<Sighting>, Fault>;

    /// Hashes the base of image `key`, and tells the sha256 that its download had.
    ///
    /// # Errors
    /// `BaseChanged` when it is damaged, `NoSuchImage` when there is none.
    async fn verify_image(
        &self,
        key: &ImageKey,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Sha256Digest, Fault>;

    /// Removes the base of image `key`, and tells the bytes that it had.
    ///
    /// # Errors
    /// `ImageInUse` naming the users, `NoSuchImage` when there is none.
    async fn evict_image(&self, key: &ImageKey) -> Result<u64, Fault>;

    /// Lists the bases and leftovers of the entry that nothing uses, and removes them
    /// unless `dry_run`. `offered` are the images that it offers now.
    async fn prune_images(
        &self,
        offered: Vec<ImageSource>,
        dry_run: bool,
    ) -> Result<Vec<Leftover>, Fault>;

    /// Looks at the guest's parts.
    async fn observe(&self, guest: &Guest) -> Result<Observed, Fault>;

    /// Makes the overlay of `size` bytes over `base`, in place of a half-made one.
    /// It never exists over a base that is no longer the verified one.
    async fn create_overlay(&self, guest: &Guest, base: &BaseRef, size: u64) -> Result<(), Fault>;

    /// Writes the seed volume, in place of a half-made one.
    async fn write_seed(&self, guest: &Guest, content: Vec<u8>) -> Result<(), Fault>;

    /// The XML of the domain as [`Self::define`] would define it. Nothing has to be
    /// there for it yet, and nothing is changed.
    async fn plan(&self, guest: &Guest, shape: &Shape) -> Result<String, Fault>;

    /// Defines the domain, or changes its definition for the next start.
    async fn define(&self, guest: &Guest, shape: &Shape) -> Result<(), Fault>;

    /// Starts the domain, after making sure that its base is the one its overlay
    /// was made from. At the `first` start its NVRAM is made anew, whatever a domain
    /// of the name has left.
    async fn start(&self, guest: &Guest, base: &BaseRef, first: bool) -> Result<(), Fault>;

    /// Makes sure that the base of a running guest is what its overlay was made from.
    ///
    /// # Errors
    /// `BaseChanged`, with the evidence.
    async fn base_unchanged(&self, base: &BaseRef) -> Result<(), Fault>;

    /// Asks the guest to shut down, or with `force` ends it at once. That it is off is
    /// fine.
    async fn shut_down(&self, guest: &Guest, force: bool) -> Result<(), Fault>;

    /// Lets a paused guest run on.
    async fn resume(&self, guest: &Guest) -> Result<(), Fault>;

    /// Asks for the address of the guest's interface; with `agent_only`, other sources
    /// than the guest agent are reported and not believed.
    async fn address(&self, guest: &Guest, agent_only: bool) -> Result<AddressView, Fault>;

    /// Gathers what can be seen of the guest from outside.
    async fn clues(&self, guest: &Guest) -> Result<Clues, Fault>;

    /// The last `limit` bytes of the guest's serial console.
    ///
    /// # Errors
    /// `StateFailed` when its log can't be read.
    async fn console(&self, guest: &Guest, limit: u64) -> Result<Vec<u8>, Fault>;

    /// Removes the domain, its NVRAM and console log, and those of the volumes that
    /// are `owned`. Leaves the base, and everything that isn't the guest's.
    async fn remove(&self, guest: &Guest, owned: Owned) -> Result<(), Fault>;
}

/// What all providers of a daemon share. Cheap to clone.
#[derive(Clone)]
pub struct Shared {
    /// Where downloads for the storage API wait.
    pub spool: Spool,
    /// Rung when something happens to a guest.
    pub bells: Bells,
    /// Where what ssh needs is.
    pub places: Places,
}

/// Directories that systemd gives a service.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// For what lives no longer than the process.
    pub runtime: PathBuf,
    /// With the credentials; none were given when absent.
    pub credentials: Option<PathBuf>,
}

/// Which volumes of a guest's names are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owned {
    /// The overlay.
    pub overlay: bool,
    /// The seed.
    pub seed: bool,
}

/// A provider as it is shared between workers.
pub type SharedProvider = Arc<dyn Provider>;
