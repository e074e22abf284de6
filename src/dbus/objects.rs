//! The coming and going of objects, and their change signals.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use zbus::Connection;
use zbus::object_server::SignalEmitter;

use super::announce::Announcer;
use super::manager::Manager;
use super::proxy::Proxy;
use super::{ROOT_PATH, Services, job, path, provider};
use crate::config::ProviderSettings;
use crate::model::{EntryName, ProxyName};
use crate::reconcile::{Event, Handle, View};

/// Presents entries, Proxies and jobs on the bus.
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
                Event::JobAdded { job, presented } => {
                    let outcome = job::add(&self.connection, job, &self.services).await;
                    let _ = presented.send(());
                    outcome
                }
                Event::JobRemoved(job) => job::remove(&self.connection, job.id).await,
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
        let path = path::proxy(&name);
        let object = Proxy::new(handle.clone(), self.services.clone());
        self.connection.object_server().at(&path, object).await?;
        let views = handle.watch();
        let announcer = Announcer::new::<Proxy>(&self.connection, &path).await?;
        self.followers.spawn(changes(announcer, views));
        let emitter = SignalEmitter::new(&self.connection, ROOT_PATH)?;
        Manager::proxy_new(&emitter, name.as_str(), path.as_ref()).await
    }

    async fn remove(&mut self, name: &ProxyName) -> zbus::Result<()> {
        let path = path::proxy(name);
        self.connection.object_server().remove::<Proxy, _>(&path).await?;
        let emitter = SignalEmitter::new(&self.connection, ROOT_PATH)?;
        Manager::proxy_removed(&emitter, name.as_str(), path.as_ref()).await
    }
}

fn note<T>(outcome: zbus::Result<T>) -> Option<T> {
    outcome.inspect_err(|error| tracing::error!("the bus does not take an object: {error}")).ok()
}

/// Tells what changes from one snapshot to the next, until the worker is gone.
async fn changes(mut announcer: Announcer, mut views: watch::Receiver<Arc<View>>) {
    while views.changed().await.is_ok() {
        views.borrow_and_update();
        if announcer.tell::<Proxy>().await.is_err() {
            return;
        }
    }
}
