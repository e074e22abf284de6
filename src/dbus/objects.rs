//! The coming and going of objects, and their change signals.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use zbus::names::InterfaceName;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedVariant};

use super::manager::Manager;
use super::provider;
use super::proxy::{Proxy, path};
use super::{ROOT_PATH, Services};
use crate::config::ProviderSettings;
use crate::model::{EntryName, ProxyName};
use crate::reconcile::{Event, Handle, View};

const PROXY_INTERFACE: &str = "org.proxyd1.Proxy";

/// Presents Proxies on the bus.
pub(super) struct Objects {
    connection: Connection,
    services: Services,
    followers: JoinSet<()>,
    entries: BTreeMap<EntryName, (ProviderSettings, AbortHandle)>,
}

impl Objects {
    pub(super) fn new(connection: Connection, services: Services) -> Self {
        let (followers, entries) = (JoinSet::new(), BTreeMap::new());
        Self { connection, services, followers, entries }
    }

    /// Follows `events` until there are no more.
    pub(super) async fn follow(mut self, mut events: mpsc::Receiver<Event>) {
        let mut configured = self.services.supervisor.watch_configured();
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                changed = configured.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.entries().await;
                    continue;
                }
            };
            let Some(event) = event else { return };
            let outcome = match event {
                Event::Added { handle, presented } => {
                    let outcome = self.add(handle).await;
                    // The supervisor may have stopped waiting.
                    let _ = presented.send(());
                    outcome
                }
                Event::Removed(name) => self.remove(&name).await,
            };
            note(outcome);
            while self.followers.try_join_next().is_some() {}
        }
    }

    /// Makes the objects of the entries those of the configuration.
    pub(super) async fn entries(&mut self) {
        let providers = self.services.supervisor.configured().providers;
        let wanted: BTreeMap<_, _> = providers
            .all()
            .map(|(settings, provider)| (&settings.name, (settings, provider)))
            .collect();
        let stays = |name: &EntryName, known: &ProviderSettings| {
            wanted.get(name).is_some_and(|(settings, _)| **settings == *known)
        };
        let gone: Vec<_> = self
            .entries
            .iter()
            .filter(|(name, (known, _))| !stays(name, known))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            if let Some((_, follower)) = self.entries.remove(&name) {
                follower.abort();
            }
            note(provider::remove(&self.connection, &name).await);
        }
        for (name, (settings, host)) in wanted {
            if self.entries.contains_key(name) {
                continue;
            }
            let added = provider::add(&self.connection, settings, host, &self.services).await;
            if let Some(follower) = note(added) {
                self.entries.insert(name.clone(), (settings.clone(), follower));
            }
        }
    }

    async fn add(&mut self, handle: Handle) -> zbus::Result<()> {
        let name = handle.name().clone();
        let path = path(&name);
        let server = self.connection.object_server();
        let object = Proxy::new(handle.clone(), self.services.clone());
        server.at(path.as_str(), object).await?;
        let views = handle.watch();
        self.followers.spawn(changes(self.connection.clone(), path.clone(), views));
        let emitter = SignalEmitter::new(&self.connection, ROOT_PATH)?;
        Manager::proxy_new(&emitter, name.as_str(), ObjectPath::try_from(path)?).await
    }

    async fn remove(&mut self, name: &ProxyName) -> zbus::Result<()> {
        let path = path(name);
        self.connection.object_server().remove::<Proxy, _>(path.as_str()).await?;
        let emitter = SignalEmitter::new(&self.connection, ROOT_PATH)?;
        Manager::proxy_removed(&emitter, name.as_str(), ObjectPath::try_from(path)?).await
    }
}

fn note<T>(outcome: zbus::Result<T>) -> Option<T> {
    outcome.inspect_err(|error| tracing::error!("the bus does not take an object: {error}")).ok()
}

type Properties = HashMap<String, OwnedVariant>;

/// Emits PropertiesChanged for what differs from one snapshot to the next, one signal
/// a snapshot, until the worker is gone.
async fn changes(connection: Connection, path: String, mut views: watch::Receiver<Arc<View>>) {
    let mut known = properties(&connection, &path).await.unwrap_or_default();
    while views.changed().await.is_ok() {
        views.borrow_and_update();
        let Ok(current) = properties(&connection, &path).await else { return };
        if emit(&connection, &path, &known, &current).await.is_err() {
            return;
        }
        known = current;
    }
}

/// The properties as the object itself gives them: the same getters serve the
/// signals, so the two can't differ.
async fn properties(connection: &Connection, path: &str) -> zbus::Result<Properties> {
    let object = connection.object_server().interface::<_, Proxy>(path).await?;
    let emitter = object.signal_emitter().clone();
    let server = connection.object_server();
    let proxy = object.get().await;
    let all = zbus::object_server::Interface::get_all(&*proxy, server, connection, None, &emitter);
    Ok(all.await?)
}

async fn emit(
    connection: &Connection,
    path: &str,
    before: &Properties,
    after: &Properties,
) -> zbus::Result<()> {
    let changed: HashMap<&str, zbus::Variant<'_>> = after
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(value))
        .map(|(name, value)| Ok((name.as_str(), value.try_clone()?.into())))
        .collect::<zbus::Result<_>>()?;
    if changed.is_empty() {
        return Ok(());
    }
    let emitter = SignalEmitter::new(connection, path)?;
    let interface = InterfaceName::from_static_str(PROXY_INTERFACE)?;
    zbus::fdo::Properties::properties_changed(&emitter, interface, changed, (&[]).into()).await
}
