//! What a provider does for a guest, and the registry of built-in ones. A provider
//! is told identities and shapes; it knows nothing of records, phases or D-Bus.

pub mod kvm;
mod registry;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::image::{ImageSource, Leftover, Progress};
use crate::model::{Address, Fault, Firmware, ImageKey, ProxyName, Sha256Digest};
use crate::store::BaseRef;

pub use registry::Registry;

/// The identity of a guest: all names of its parts follow from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// The Proxy's name.
    pub name: ProxyName,
    /// The UUID of the domain.
    pub uuid: Uuid,
}

impl Guest {
    /// The libvirt domain's name.
    pub fn domain_name(&self) -> String {
        format!("proxy-{}", self.name)
    }

    /// The MAC of its interface: derived from the UUID, so that a rebuilt guest
    /// keeps its DHCP lease. In QEMU's locally used range 52:54:00.
    pub fn mac(&self) -> String {
        let hash = Sha256Digest::of(self.uuid.as_bytes());
        let [a, b, c, ..] = hash.as_bytes();
        format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
    }
}

/// What the domain of a guest looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Its firmware.
    pub firmware: Firmware,
    /// Whether libvirt starts it together with the host.
    pub autostart: bool,
    /// The generation of the specification it is made for.
    pub generation: u64,
    /// The base it was made from, for its metadata.
    pub base: BaseRef,
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
    /// Not yet; who was asked, and what each answered.
    Unknown(String),
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

/// Runs guests for one entry of the configuration. Every method may be called again
/// after it failed or was cut short, and says so when there was nothing to do.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Checks what a guest needs of the host before anything is made or fetched:
    /// connection, pool, network, firmware, virtualisation.
    async fn preflight(&self, firmware: Firmware) -> Result<(), Fault>;

    /// Has the base of `source` in the pool, verified; fetches it if need be.
    async fn ensure_image(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault>;

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

    /// Defines the domain.
    async fn define(&self, guest: &Guest, shape: &Shape) -> Result<(), Fault>;

    /// Starts the domain, after making sure that its base is the one its overlay
    /// was made from. At the `first` start its NVRAM is made anew, whatever a domain
    /// of the name has left.
    async fn start(&self, guest: &Guest, base: &BaseRef, first: bool) -> Result<(), Fault>;

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
