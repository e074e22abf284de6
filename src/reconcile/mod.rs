//! One worker per Proxy brings it where its specification says, and the supervisor
//! admits, changes and removes Proxies.
//!
//! A worker alone owns its Proxy's record and status; everybody else holds a
//! [`Handle`] and reads snapshots.

mod agenda;
mod backoff;
mod core;
mod desk;
mod explain;
mod exposure;
mod images;
mod inventory;
mod jobs;
mod leftovers;
mod operator;
mod orders;
mod plan;
mod proposal;
mod publish;
mod source;
mod steps;
mod succession;
mod supervisor;
mod watch;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::{OnRemoval, Settings};
use crate::image::{ImageSource, Progress};
use crate::metrics::Metrics;
use crate::model::{
    Effect, EntryName, Fault, FaultKind, Guest, Origin, ProxyName, ProxySpec, ProxyStatus, Slot,
    Timestamp,
};
use crate::provider::{Bells, Registry, SharedProvider};
use crate::seed::{self, SeedInput};
use crate::store::{BaseRef, Record, Store};

pub use self::inventory::{ImageState, ImageView, Images};
pub use self::jobs::{Job, JobKind, JobState};
pub use self::leftovers::Leftover;
pub use supervisor::{Created, Event, Supervisor, Surroundings};

/// A snapshot of one Proxy, for readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The UUID that everything made for it carries.
    pub uuid: Uuid,
    /// The place of its present guest.
    pub slot: Slot,
    /// Counts its specifications.
    pub generation: u64,
    /// What it shall be.
    pub spec: ProxySpec,
    /// Who declared it.
    pub origin: Origin,
    /// What becomes of it when it leaves the configuration.
    pub on_removal: OnRemoval,
    /// When it was declared.
    pub created_at: Timestamp,
    /// The bases that its guests are made from.
    pub bases: Vec<BaseUse>,
    /// What it is.
    pub status: ProxyStatus,
}

/// A base that a guest is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUse {
    /// The entry in whose pool it is.
    pub entry: EntryName,
    /// Its file name there.
    pub file: String,
}

impl View {
    /// The present guest of the Proxy `name`.
    pub fn guest(&self, name: &ProxyName) -> Guest {
        Guest { name: name.clone(), uuid: self.uuid, slot: self.slot }
    }
}

/// A way to read one Proxy and to give its worker orders.
#[derive(Debug, Clone)]
pub struct Handle {
    name: ProxyName,
    view: tokio::sync::watch::Receiver<Arc<View>>,
    commands: mpsc::Sender<Command>,
}

impl Handle {
    /// Its name.
    pub fn name(&self) -> &ProxyName {
        &self.name
    }

    /// The latest snapshot.
    pub fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    /// Snapshots as they change, beginning with the next one.
    pub fn watch(&self) -> tokio::sync::watch::Receiver<Arc<View>> {
        self.view.clone()
    }

    /// Gives an order and waits until the worker has recorded it.
    async fn order(&self, order: Order) -> Result<Vec<Change>, Fault> {
        let (ack, done) = oneshot::channel();
        let gone = || {
            let message = format!("there is no Proxy {} any more", self.name);
            Fault::new(FaultKind::NoSuchProxy, message)
        };
        let command = Command::Order { order: Box::new(order), ack };
        self.commands.send(command).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }

    /// Has the worker look again, even when it is parked at a permanent fault.
    fn nudge(&self) {
        // A full queue means that it is about to look again anyway.
        let _ = self.commands.try_send(Command::Nudge);
    }
}

type Ack = oneshot::Sender<Result<Vec<Change>, Fault>>;

/// A key of a specification that an order changed, and when that takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The key, in D-Bus spelling.
    pub key: &'static str,
    /// When.
    pub effect: Effect,
}

/// What reaches a worker.
#[derive(Debug)]
enum Command {
    /// Do that. It is acknowledged when it is durably recorded.
    Order { order: Box<Order>, ack: Ack },
    /// Look again.
    Nudge,
}

/// What a Proxy may be told.
#[derive(Debug)]
pub(crate) enum Order {
    /// Be what the configuration declares; what needs a new guest gets one.
    Declare { spec: Box<ProxySpec>, origin: Origin, on_removal: OnRemoval },
    /// Be this instead; what needs a new guest waits for one.
    Update(Box<ProxySpec>),
    /// Run.
    Start,
    /// Be off.
    Stop,
    /// Shut down and start.
    Restart,
    /// Be made anew; with `overlap` beside the present guest, for so long at most.
    Rebuild { overlap: Option<Option<Duration>> },
    /// Go.
    Delete,
}

/// The configuration in force, with the providers made from it.
#[derive(Clone)]
pub struct Configured {
    /// What the file says.
    pub settings: Arc<Settings>,
    /// What drives its entries.
    pub providers: Registry,
}

/// What all workers share.
struct Shared {
    store: Arc<Store>,
    bells: Bells,
    metrics: Arc<Metrics>,
    desk: Arc<desk::Desk>,
    configured: tokio::sync::watch::Receiver<Configured>,
}

impl Shared {
    fn configured(&self) -> Configured {
        self.configured.borrow().clone()
    }

    /// Whether vendor-data brings the guest agent to guests of `entry`.
    fn wants_agent(&self, entry: &EntryName) -> bool {
        let configured = self.configured();
        configured.settings.providers.get(entry).is_none_or(|entry| entry.install_guest_agent)
    }

    /// The seed of the guest of that `number`, made for `spec`.
    fn seed(&self, guest: &Guest, number: u64, spec: &ProxySpec) -> Result<Vec<u8>, Fault> {
        let configured = self.configured();
        let settings = configured.settings.providers.get(&spec.provider);
        seed::render(&SeedInput {
            name: &guest.name,
            uuid: guest.uuid,
            seed_generation: number,
            spec,
            install_guest_agent: self.wants_agent(&spec.provider),
            vendor_data: settings.and_then(|entry| entry.vendor_data.as_ref()),
        })
    }

    /// Has the base of `source` in its pool, and counts what that took.
    async fn ensure_image(
        &self,
        provider: &SharedProvider,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        let _work = self.desk.begin(source.id(), progress);
        let ensured = provider.ensure_image(source, progress, cancel).await;
        let downloaded = progress.downloaded();
        if ensured.is_err() || downloaded > 0 {
            self.metrics.fetched(ensured.is_ok(), downloaded);
        }
        ensured
    }

    async fn save(&self, record: &Record) -> Result<(), Fault> {
        let (store, record) = (self.store.clone(), record.clone());
        crate::tasks::blocking(move || store.save(&record)).await
    }

    async fn forget(&self, name: &ProxyName) -> Result<(), Fault> {
        let (store, name) = (self.store.clone(), name.clone());
        crate::tasks::blocking(move || store.remove(&name)).await
    }
}
