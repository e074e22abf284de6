//! `org.proxyd1.Manager`, on the root object.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedObjectPath, interface};

use super::error::CallError;
use super::proxy::{checked, endpoint, path};
use super::value::SpecValue;
use super::{Services, spec};
use crate::image::Leftover;
use crate::model::{EntryName, Fault, FaultKind, ImageKey, ProxyName};
use crate::reconcile::Handle;

/// Reads the configuration again; an error leaves the old one in force.
pub type Reloader = Arc<dyn Fn() -> BoxFuture<'static, Result<(), Fault>> + Send + Sync>;

/// A row of `ListProxies`: name, phase, healthy, provider, endpoint, path.
type ProxyRow = (String, String, bool, String, String, OwnedObjectPath);

/// A row of `PruneImages`: path, bytes, reason.
type LeftoverRow = (String, u64, String);

/// The manager on the bus.
pub(super) struct Manager {
    services: Services,
}

impl Manager {
    pub(super) fn new(services: Services) -> Self {
        Self { services }
    }
}

fn invalid(argument: &str, error: &dyn std::fmt::Display) -> Fault {
    Fault::new(FaultKind::InvalidArgument, format!("{argument}: {error}"))
}

fn leftover_row(leftover: Leftover) -> LeftoverRow {
    (leftover.path.to_string_lossy().into_owned(), leftover.bytes, leftover.reason)
}

/// The object path of `name` as a typed path.
pub(super) fn object_path(name: &ProxyName) -> OwnedObjectPath {
    // `path` escapes everything that a path may not hold.
    ObjectPath::from_string_unchecked(path(name)).into()
}

fn row(handle: &Handle) -> ProxyRow {
    let view = handle.view();
    (
        handle.name().to_string(),
        view.status.phase.as_str().to_owned(),
        view.status.healthy(),
        view.spec.provider.to_string(),
        endpoint(&view),
        object_path(handle.name()),
    )
}

/// Creates, finds and removes Proxies.
#[interface(name = "org.proxyd1.Manager")]
impl Manager {
    /// Records a Proxy and returns its object; the way to Ready goes on by itself.
    /// The same name with an equal specification returns the same object; with
    /// another one it is org.proxyd1.Error.AlreadyExists. Keys: Provider s, Image s,
    /// UserData s or ay, NetworkConfig s or ay, ImageSha256 s, ImageFormat s,
    /// AllowedClients as, Vcpus u, MemoryMiB t, DiskGiB t, Port q, HealthUrl s,
    /// Autostart b.
    async fn create_proxy(
        &self,
        name: &str,
        spec: HashMap<String, SpecValue>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath, CallError> {
        self.services.manages_proxies(connection, &call).await?;
        let name = checked(name)?;
        let settings = self.services.supervisor.configured().settings;
        let spec = spec::parse(spec, settings.only_entry())?;
        let created = self.services.supervisor.create(name, spec).await?;
        Ok(object_path(created.handle().name()))
    }

    /// The object of the Proxy `name`.
    async fn get_proxy(&self, name: &str) -> Result<OwnedObjectPath, CallError> {
        let handle = self.services.supervisor.get(&checked(name)?)?;
        Ok(object_path(handle.name()))
    }

    /// Removes a Proxy with its domain, NVRAM, overlay, seed and console log. The
    /// base image stays. Returns when the removal is recorded; ProxyRemoved follows.
    async fn delete_proxy(
        &self,
        name: &str,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok(self.services.supervisor.delete(&checked(name)?).await?)
    }

    /// All Proxies: name, phase, healthy, provider, endpoint, object path.
    async fn list_proxies(&self) -> Vec<ProxyRow> {
        self.services.supervisor.list().iter().map(row).collect()
    }

    /// Removes an image's base from the storage pool of a provider entry. In use it
    /// stays (org.proxyd1.Error.ImageInUse names the users). It is fetched again when
    /// a Proxy needs it.
    async fn evict_image(
        &self,
        entry: &str,
        key: &str,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_images(connection, &call).await?;
        let entry = EntryName::new(entry).map_err(|error| invalid("entry", &error))?;
        let key = ImageKey::new(key).map_err(|error| invalid("key", &error))?;
        Ok(self.services.supervisor.configured().evict_image(&entry, &key).await?)
    }

    /// Removes bases and leftovers that are proxyd's and that nothing uses, or, as a
    /// dry run, only lists them: path, bytes, reason. Entries of type kvm2 are passed
    /// over.
    async fn prune_images(
        &self,
        dry_run: bool,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<Vec<LeftoverRow>, CallError> {
        if !dry_run {
            self.services.manages_images(connection, &call).await?;
        }
        let leftovers = self.services.supervisor.configured().prune_images(dry_run).await?;
        Ok(leftovers.into_iter().map(leftover_row).collect())
    }

    /// Reads the configuration again. An invalid one is refused whole
    /// (org.proxyd1.Error.InvalidConfig), and the old one stays.
    async fn reload(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok((self.services.reloader)().await?)
    }

    /// A Proxy was created.
    #[zbus(signal)]
    pub(super) async fn proxy_new(
        emitter: &SignalEmitter<'_>,
        name: &str,
        path: ObjectPath<'_>,
    ) -> zbus::Result<()>;

    /// A Proxy and its parts are gone.
    #[zbus(signal)]
    pub(super) async fn proxy_removed(
        emitter: &SignalEmitter<'_>,
        name: &str,
        path: ObjectPath<'_>,
    ) -> zbus::Result<()>;
}
