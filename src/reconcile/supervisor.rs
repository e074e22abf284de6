//! Admits, changes and removes Proxies, and keeps a worker for each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::core::Core;
use super::inventory::{self, Images};
use super::jobs::{Job, Jobs};
use super::operator::declared;
use super::publish::Publisher;
use super::source;
use super::worker::{self, Ended};
use super::{Configured, Handle, Order, Shared};
use crate::config::{DeclaredProxy, OnRemoval};
use crate::journal;
use crate::metrics::Metrics;
use crate::model::{Fault, FaultKind, MAX_PROXIES, Origin, Phase, ProxyName, ProxySpec};
use crate::provider::Bells;
use crate::store::{Record, Store};

/// Orders that may wait for a worker that is at work.
const ORDERS: usize = 8;

/// The coming and going of Proxies, for whoever presents them.
#[derive(Debug)]
pub enum Event {
    /// One is recorded. The supervisor waits for `presented` before it goes on, so
    /// that whoever created it finds it presented.
    Added {
        /// The new one.
        handle: Handle,
        /// To be sent to, or dropped, when it can be found.
        presented: oneshot::Sender<()>,
    },
    /// One is gone.
    Removed(ProxyName),
    /// A job is about to begin. The supervisor waits as for a Proxy.
    JobAdded {
        /// The new one.
        job: Arc<Job>,
        /// To be sent to, or dropped, when it can be found.
        presented: oneshot::Sender<()>,
    },
    /// A job that ended is gone.
    JobRemoved(Arc<Job>),
}

/// What creating did.
#[derive(Debug)]
pub enum Created {
    /// There is a new Proxy.
    New(Handle),
    /// The same Proxy was there already.
    Unchanged(Handle),
}

impl Created {
    /// The Proxy, new or not.
    pub fn handle(&self) -> &Handle {
        match self {
            Self::New(handle) | Self::Unchanged(handle) => handle,
        }
    }
}

/// What a supervisor works with.
pub struct Surroundings {
    /// The records.
    pub store: Store,
    /// The configuration in force, and its providers.
    pub configured: Configured,
    /// Who presents the Proxies.
    pub events: mpsc::Sender<Event>,
    /// Where the providers ring.
    pub bells: Bells,
    /// Where what happens is counted.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the daemon stops.
    pub stop: CancellationToken,
}

/// Keeps the workers. Shared behind an `Arc`.
pub struct Supervisor {
    pub(super) shared: Arc<Shared>,
    configured: watch::Sender<Configured>,
    handles: Arc<Mutex<BTreeMap<ProxyName, Handle>>>,
    /// One admission at a time: what it checks stays true until it is recorded.
    pub(super) admission: tokio::sync::Mutex<()>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) jobs: Jobs,
    pub(super) images: watch::Sender<Arc<Images>>,
    stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Supervisor {
    /// A supervisor without workers; [`Self::resume`] brings the recorded ones back.
    pub fn new(surroundings: Surroundings) -> Arc<Self> {
        let Surroundings { store, configured, events, bells, metrics, stop } = surroundings;
        let (sender, configured) = watch::channel(configured);
        let store = Arc::new(store);
        Arc::new(Self {
            shared: Arc::new(Shared { store, bells, metrics, desk: Arc::default(), configured }),
            configured: sender,
            handles: Arc::default(),
            admission: tokio::sync::Mutex::default(),
            events,
            jobs: Jobs::default(),
            images: watch::Sender::default(),
            stop,
            tasks: TaskTracker::new(),
        })
    }

    /// Brings back the Proxies of `records`, makes those of the configuration true, and
    /// takes stock of the images.
    pub async fn resume(self: &Arc<Self>, records: Vec<Record>) {
        for record in records {
            self.employ(record).await;
        }
        self.declare().await;
        let (desk, images) = (self.shared.desk.clone(), self.images.clone());
        self.tasks.spawn(inventory::keep(self.clone(), desk, images));
    }

    /// The configuration in force.
    pub fn configured(&self) -> Configured {
        self.shared.configured()
    }

    /// The configuration in force, as it changes.
    pub fn watch_configured(&self) -> watch::Receiver<Configured> {
        self.configured.subscribe()
    }

    /// Cancelled when the daemon stops.
    pub(super) fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// The Proxies, by name.
    pub fn list(&self) -> Vec<Handle> {
        self.lock().values().cloned().collect()
    }

    /// One Proxy.
    ///
    /// # Errors
    /// `NoSuchProxy`.
    pub fn get(&self, name: &ProxyName) -> Result<Handle, Fault> {
        self.lock()
            .get(name)
            .cloned()
            .ok_or_else(|| Fault::new(FaultKind::NoSuchProxy, format!("there is no Proxy {name}")))
    }

    /// Records a Proxy and sets a worker to it.
    ///
    /// # Errors
    /// `AlreadyExists` when one of the name has another specification, `Busy` when it
    /// is on its way out, `NoSuchProvider` and `NoSuchImage` for what the
    /// configuration lacks, `InvalidArgument` when there are [`MAX_PROXIES`],
    /// `StateFailed` when it can't be recorded.
    pub async fn create(&self, name: ProxyName, spec: ProxySpec) -> Result<Created, Fault> {
        let _admission = self.admission.lock().await;
        if let Ok(handle) = self.get(&name) {
            return same(handle, &spec).map(Created::Unchanged);
        }
        self.check(&spec)?;
        if self.lock().len() >= MAX_PROXIES {
            let text = format!(
                "name: there are {MAX_PROXIES} Proxies, the most that one daemon keeps: delete \
                 some before {name}"
            );
            return Err(Fault::new(FaultKind::InvalidArgument, text));
        }
        let record = Record::new(name, spec, Origin::Api, OnRemoval::Delete);
        self.admit(record).await.map(Created::New)
    }

    /// Begins the removal of a Proxy. It is recorded when this returns.
    ///
    /// # Errors
    /// `NoSuchProxy`; `InvalidArgument` for one that the configuration declares.
    pub async fn delete(&self, name: &ProxyName) -> Result<(), Fault> {
        let _admission = self.admission.lock().await;
        let handle = self.get(name)?;
        if handle.view().origin == Origin::Config {
            return Err(declared(name, "remove it there and reload"));
        }
        handle.order(Order::Delete).await.map(drop)
    }

    /// Puts another configuration in force: declared Proxies are made true, and every
    /// worker looks again.
    pub async fn reconfigure(&self, configured: Configured) {
        let _admission = self.admission.lock().await;
        self.configured.send_replace(configured);
        self.declare().await;
        self.list().iter().for_each(Handle::nudge);
    }

    /// Stops every worker and waits until the last has put down its work.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ProxyName, Handle>> {
        // The map is whole after every statement, so a panic elsewhere can't spoil it.
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn check(&self, spec: &ProxySpec) -> Result<(), Fault> {
        let configured = self.configured();
        configured.providers.get(&spec.provider)?;
        source::resolve(&configured.settings, spec).map(drop)
    }

    pub(super) async fn admit(&self, record: Record) -> Result<Handle, Fault> {
        self.shared.save(&record).await?;
        tracing::info!(
            message_id = journal::PROXY_NEW,
            proxyd_proxy = %record.name,
            proxyd_provider = %record.spec.provider,
            proxyd_image = record.spec.image.shown(),
            "Proxy {}: recorded, to run at {}", record.name, record.spec.provider
        );
        Ok(self.employ(record).await)
    }

    /// Sets a worker to `record` and waits until it is presented.
    async fn employ(&self, record: Record) -> Handle {
        let name = record.name.clone();
        let (publisher, view) = Publisher::new(&record, self.shared.desk.clone());
        let (commands, orders) = mpsc::channel(ORDERS);
        let handle = Handle { name: name.clone(), view, commands };
        self.lock().insert(name.clone(), handle.clone());
        self.shared.desk.uses_changed();
        let (presented, done) = oneshot::channel();
        let event = Event::Added { handle: handle.clone(), presented };
        if self.events.send(event).await.is_ok() {
            // Dropped unsent, there is nobody to present it, and the work goes on.
            let _ = done.await;
        }
        let core = Core::new(record, self.shared.clone(), publisher);
        let (handles, events) = (self.handles.clone(), self.events.clone());
        let desk = self.shared.desk.clone();
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            if worker::run(core, orders, stop).await == Ended::Removed {
                // In this order, a new Proxy of the name can't be presented before
                // the old one is withdrawn.
                let _ = events.send(Event::Removed(name.clone())).await;
                handles.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                desk.uses_changed();
            }
        });
        handle
    }

    /// Makes the Proxies of the configuration true. One that can't be is reported,
    /// and the others go on.
    async fn declare(&self) {
        let settings = self.configured().settings;
        for (name, declared) in &settings.proxies {
            if let Err(fault) = self.declare_one(name, declared).await {
                tracing::error!(
                    message_id = journal::STEP_FAILED,
                    proxyd_proxy = %name,
                    proxyd_error = fault.kind.name(),
                    "Proxy {name}, as the configuration declares it: {fault}"
                );
            }
        }
        for handle in self.list() {
            let gone = handle.view().origin == Origin::Config
                && !settings.proxies.contains_key(handle.name());
            if gone && let Err(fault) = self.undeclare(&handle).await {
                tracing::error!(
                    message_id = journal::STEP_FAILED,
                    proxyd_proxy = %handle.name(),
                    proxyd_error = fault.kind.name(),
                    "Proxy {}, no longer declared: {fault}", handle.name()
                );
            }
        }
    }

    async fn declare_one(&self, name: &ProxyName, declared: &DeclaredProxy) -> Result<(), Fault> {
        let DeclaredProxy { spec, on_removal } = declared;
        let Ok(handle) = self.get(name) else {
            let record = Record::new(name.clone(), spec.clone(), Origin::Config, *on_removal);
            return self.admit(record).await.map(drop);
        };
        if handle.view().origin == Origin::Api {
            // One made over D-Bus is taken over when it is the same, and never changed.
            same(handle.clone(), spec)?;
        }
        let (spec, on_removal) = (Box::new(spec.clone()), *on_removal);
        let origin = Origin::Config;
        handle.order(Order::Declare { spec, origin, on_removal }).await.map(drop)
    }

    async fn undeclare(&self, handle: &Handle) -> Result<(), Fault> {
        let view = handle.view();
        match view.on_removal {
            OnRemoval::Delete => handle.order(Order::Delete).await.map(drop),
            OnRemoval::Keep => {
                let spec = Box::new(view.spec.clone());
                let (origin, on_removal) = (Origin::Api, OnRemoval::Delete);
                handle.order(Order::Declare { spec, origin, on_removal }).await.map(drop)
            }
        }
    }
}

/// `handle`, when it is what `spec` asks for.
pub(super) fn same(handle: Handle, spec: &ProxySpec) -> Result<Handle, Fault> {
    let (name, view) = (handle.name().clone(), handle.view());
    if view.status.phase == Phase::Deleting {
        let message = format!("Proxy {name} is being removed: try again when it is gone");
        return Err(Fault::new(FaultKind::Busy, message));
    }
    if view.spec != *spec {
        let differing: Vec<_> = spec.changes(&view.spec).iter().map(|(key, _)| *key).collect();
        let text = format!(
            "Proxy {name} exists with another specification, differing in {}: change it by \
             Update, delete it first, or choose another name",
            differing.join(", ")
        );
        return Err(Fault::new(FaultKind::AlreadyExists, text));
    }
    Ok(handle)
}
