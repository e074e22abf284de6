//! The coming and going of objects, and their change signals.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use zbus::names::InterfaceName;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedVariant};

use super::manager::Manager;
use super::proxy::{Proxy, path};
use super::{ROOT_PATH, Services};
use crate::model::ProxyName;
use crate::reconcile::{Event, Handle, View};

const PROXY_INTERFACE: &str = "org.proxyd1.Proxy";

/// Presents Proxies on the bus.
pub(super) struct Objects {
    connection: Connection,
    services: Services,
    followers: JoinSet<()>,
}

impl Objects {
    pub(super) fn new(connection: Connection, services: Services) -> Self {
        Self { connection, services, followers: JoinSet::new() }
    }

    /// Follows `events` until there are no more.
    pub(super) async fn follow(mut self, mut events: mpsc::Receiver<Event>) {
        while let Some(event) = events.recv().await {
            let outcome = match event {
                Event::Added { handle, presented } => {
                    let outcome = self.add(handle).await;
                    // The supervisor may have stopped waiting.
                    let _ = presented.send(());
                    outcome
                }
                Event::Removed(name) => self.remove(&name).await,
            };
            if let Err(error) = outcome {
                tracing::error!("the bus does not take an object: {error}");
            }
            while self.followers.try_join_next().is_some() {}
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
