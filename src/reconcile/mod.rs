//! One worker per Proxy brings it where its specification says, and the supervisor
//! admits, changes and removes Proxies.
//!
//! A worker alone owns its Proxy's record and status; everybody else holds a
//! [`Handle`] and reads snapshots.

mod backoff;
mod core;
mod explain;
mod images;
mod plan;
mod publish;
mod source;
mod supervisor;
mod watch;
mod worker;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::config::{OnRemoval, Settings};
use crate::model::{
    EntryName, Fault, FaultKind, Origin, ProxyName, ProxySpec, ProxyStatus, Timestamp,
};
use crate::provider::{Guest, Registry};
use crate::store::{Record, Store};

pub use supervisor::{Created, Event, Supervisor};

/// A snapshot of one Proxy, for readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The UUID of its domain.
    pub uuid: Uuid,
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
    /// What it is.
    pub status: ProxyStatus,
}

impl View {
    fn guest(&self, name: &ProxyName) -> Guest {
        Guest { name: name.clone(), uuid: self.uuid }
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
    async fn order(&self, order: impl FnOnce(Ack) -> Command) -> Result<(), Fault> {
        let (ack, done) = oneshot::channel();
        let gone = || {
            let message = format!("there is no Proxy {} any more", self.name);
            Fault::new(FaultKind::NoSuchProxy, message)
        };
        self.commands.send(order(ack)).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }

    /// Has the worker look again, even when it is parked at a permanent fault.
    fn nudge(&self) {
        // A full queue means that it is about to look again anyway.
        let _ = self.commands.try_send(Command::Nudge);
    }
}

type Ack = oneshot::Sender<Result<(), Fault>>;

/// An order to a worker. It is acknowledged when it is durably recorded.
#[derive(Debug)]
enum Command {
    /// Be this instead.
    Respec { spec: Box<ProxySpec>, origin: Origin, on_removal: OnRemoval, ack: Ack },
    /// Go.
    Delete { ack: Ack },
    /// Look again.
    Nudge,
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

    async fn save(&self, record: &Record) -> Result<(), Fault> {
        let (store, record) = (self.store.clone(), record.clone());
        crate::tasks::blocking(move || store.save(&record)).await
    }

    async fn forget(&self, name: &ProxyName) -> Result<(), Fault> {
        let (store, name) = (self.store.clone(), name.clone());
        crate::tasks::blocking(move || store.remove(&name)).await
    }
}
