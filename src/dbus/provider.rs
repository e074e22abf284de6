//! `org.proxyd1.Provider`: one object per provider entry.

use std::collections::HashMap;

use zbus::message::Header;
use zbus::{Connection, OwnedObjectPath, interface};

use super::announce::Announcer;
use super::error::CallError;
use super::proxy::checked;
use super::value::SpecValue;
use super::{Services, path, spec};
use crate::config::ProviderSettings;
use crate::model::EntryName;
use crate::provider::{LinkState, SharedProvider};
use crate::reconcile::Leftover;

/// A row of `Check`: what, whether it is as guests need it, and what was found.
type CheckRow = (String, bool, String);

/// A row of `ListLeftovers`: Proxy, domain, the Proxy's UUID, volumes.
type LeftoverRow = (String, String, String, Vec<String>);

/// One entry on the bus.
pub(super) struct Provider {
    settings: ProviderSettings,
    provider: SharedProvider,
    services: Services,
}

impl Provider {
    pub(super) fn new(
        settings: ProviderSettings,
        provider: SharedProvider,
        services: Services,
    ) -> Self {
        Self { settings, provider, services }
    }

    fn link(&self) -> LinkState {
        self.provider.state().borrow().clone()
    }
}

/// Tells of the connection's changes, until the entry is gone.
async fn changes(mut announcer: Announcer, provider: SharedProvider) {
    let mut state = provider.state();
    while state.changed().await.is_ok() {
        state.borrow_and_update();
        if announcer.tell::<Provider>().await.is_err() {
            return;
        }
    }
}

fn row(leftover: Leftover) -> LeftoverRow {
    let uuid = leftover.identity.map(|(uuid, _)| uuid.to_string()).unwrap_or_default();
    (leftover.proxy.to_string(), leftover.domain, uuid, leftover.volumes)
}

/// A host that runs guests.
#[interface(name = "org.proxyd1.Provider")]
impl Provider {
    /// Looks through what guests need of the host: connection, pool, publish, space,
    /// network, firmware, kvm. Each row tells what was looked at, whether it is as it
    /// should be, and what was found or the way out. Changes nothing.
    #[zbus(out_args("checks"))]
    async fn check(&self) -> Vec<CheckRow> {
        let rows = self.provider.check().await.into_iter();
        rows.map(|row| (row.what.to_owned(), row.passed, row.message)).collect()
    }

    /// Domains and volumes that look like parts of a guest and belong to no Proxy: the
    /// Proxy's name, the domain, the Proxy's UUID if the domain's metadata proves it
    /// (else empty), the volumes. They may belong to another daemon that shares the
    /// host.
    #[zbus(out_args("leftovers"))]
    async fn list_leftovers(&self) -> Result<Vec<LeftoverRow>, CallError> {
        let found = self.services.supervisor.leftovers(&self.settings.name).await?;
        Ok(found.into_iter().map(row).collect())
    }

    /// Removes what is left of the guest of `domain`, with its volumes. Volumes alone,
    /// whose names prove nothing, stay.
    async fn remove_leftover(
        &self,
        domain: &str,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok(self.services.supervisor.remove_leftover(&self.settings.name, domain).await?)
    }

    /// Makes a Proxy of what is left of one, as CreateProxy would with `spec`, around
    /// the guest that is there. One that runs goes on running.
    #[zbus(out_args("proxy"))]
    async fn adopt(
        &self,
        name: &str,
        mut spec: HashMap<String, SpecValue>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath, CallError> {
        self.services.manages_proxies(connection, &call).await?;
        let name = checked(name)?;
        spec.insert("Provider".into(), SpecValue::Text(self.settings.name.to_string()));
        let spec = spec::parse(spec, None)?;
        let handle = self.services.supervisor.adopt(name, spec).await?;
        Ok(path::proxy(handle.name()))
    }

    /// The entry's name.
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> String {
        self.settings.name.to_string()
    }

    /// kvm or kvm2.
    #[zbus(property(emits_changed_signal = "const"))]
    fn r#type(&self) -> String {
        self.settings.kind.as_str().to_owned()
    }

    /// The libvirt connection URI.
    #[zbus(property(emits_changed_signal = "const"))]
    fn uri(&self) -> String {
        self.settings.uri.clone()
    }

    /// The libvirt storage pool.
    #[zbus(property(emits_changed_signal = "const"))]
    fn pool(&self) -> String {
        self.settings.pool.clone()
    }

    /// connecting until the first attempt has ended, connected, or failed.
    #[zbus(property)]
    fn state(&self) -> String {
        let word = match self.link() {
            LinkState::Connecting => "connecting",
            LinkState::Connected { .. } => "connected",
            LinkState::Failed { .. } => "failed",
        };
        word.to_owned()
    }

    /// Why the connection failed, and the way out; else empty.
    #[zbus(property)]
    fn message(&self) -> String {
        match self.link() {
            LinkState::Failed { message } => message,
            _ => String::new(),
        }
    }

    /// The version of libvirt at the other end; empty when it isn't connected.
    #[zbus(property)]
    fn libvirt_version(&self) -> String {
        match self.link() {
            LinkState::Connected { version } => version,
            _ => String::new(),
        }
    }
}

/// Adds an entry's object, and has its changes told.
pub(super) async fn add(
    connection: &Connection,
    settings: &ProviderSettings,
    provider: &SharedProvider,
    services: &Services,
) -> zbus::Result<tokio::task::AbortHandle> {
    let path = path::provider(&settings.name);
    let object = Provider::new(settings.clone(), provider.clone(), services.clone());
    connection.object_server().at(&path, object).await?;
    let announcer = Announcer::new::<Provider>(connection, &path).await?;
    Ok(tokio::spawn(changes(announcer, provider.clone())).abort_handle())
}

/// Removes an entry's object.
pub(super) async fn remove(connection: &Connection, entry: &EntryName) -> zbus::Result<()> {
    connection.object_server().remove::<Provider, _>(path::provider(entry)).await.map(drop)
}
