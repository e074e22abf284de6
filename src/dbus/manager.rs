//! `org.proxyd1.Manager`, on the root object.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedObjectPath, interface};

use super::error::CallError;
use super::proxy::{checked, endpoint};
use super::value::SpecValue;
use super::{Services, path, spec};
use crate::image::Leftover;
use crate::model::{
    EntryName, Fault, FaultKind, ImageChoice, ImageId, ImageKey, ProxyName, ProxySpec,
};
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

    /// The image that a caller who may change images means.
    async fn managed_image(
        &self,
        entry: &str,
        key: &str,
        connection: &Connection,
        call: &Header<'_>,
    ) -> Result<ImageId, CallError> {
        self.services.manages_images(connection, call).await?;
        Ok(image_id(entry, key)?)
    }

    /// Name and specification of a Proxy that is to be.
    fn proposed(
        &self,
        name: &str,
        spec: HashMap<String, SpecValue>,
    ) -> Result<(ProxyName, ProxySpec), Fault> {
        let name = checked(name)?;
        let settings = self.services.supervisor.configured().settings;
        Ok((name, spec::parse(spec, settings.only_entry())?))
    }
}

fn invalid(argument: &str, error: &dyn std::fmt::Display) -> Fault {
    Fault::new(FaultKind::InvalidArgument, format!("{argument}: {error}"))
}

fn leftover_row(leftover: Leftover) -> LeftoverRow {
    (leftover.path.to_string_lossy().into_owned(), leftover.bytes, leftover.reason)
}

fn image_id(entry: &str, key: &str) -> Result<ImageId, Fault> {
    let entry = EntryName::new(entry).map_err(|error| invalid("entry", &error))?;
    let key = ImageKey::new(key).map_err(|error| invalid("key", &error))?;
    Ok(ImageId { entry, key })
}

fn row(handle: &Handle) -> ProxyRow {
    let view = handle.view();
    (
        handle.name().to_string(),
        view.status.phase.as_str().to_owned(),
        view.status.healthy(),
        view.spec.provider.to_string(),
        endpoint(&view),
        path::proxy(handle.name()),
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
    #[zbus(out_args("proxy"))]
    async fn create_proxy(
        &self,
        name: &str,
        spec: HashMap<String, SpecValue>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath, CallError> {
        self.services.manages_proxies(connection, &call).await?;
        let (name, spec) = self.proposed(name, spec)?;
        let created = self.services.supervisor.create(name, spec).await?;
        Ok(path::proxy(created.handle().name()))
    }

    /// Tells what CreateProxy would do with the same arguments, as JSON, and what would
    /// keep it from that, as the error it would give. Changes nothing. The server of an
    /// image that isn't in the pool is asked for its size; where that is a URL of the
    /// caller's own, this needs the right to manage Proxies.
    #[zbus(out_args("plan"))]
    async fn plan_proxy(
        &self,
        name: &str,
        spec: HashMap<String, SpecValue>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<String, CallError> {
        let (name, spec) = self.proposed(name, spec)?;
        if matches!(spec.image, ImageChoice::Url { .. }) {
            self.services.manages_proxies(connection, &call).await?;
        }
        Ok(self.services.supervisor.plan(&name, spec).await?)
    }

    /// The object of the Proxy `name`.
    #[zbus(out_args("proxy"))]
    async fn get_proxy(&self, name: &str) -> Result<OwnedObjectPath, CallError> {
        let handle = self.services.supervisor.get(&checked(name)?)?;
        Ok(path::proxy(handle.name()))
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
    #[zbus(out_args("proxies"))]
    async fn list_proxies(&self) -> Vec<ProxyRow> {
        self.services.supervisor.list().iter().map(row).collect()
    }

    /// Begins to have an image in the storage pool of a provider entry, before a Proxy
    /// needs it, and returns the job that does it: the one under way when there is one.
    #[zbus(out_args("job"))]
    async fn fetch_image(
        &self,
        entry: &str,
        key: &str,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath, CallError> {
        let image = self.managed_image(entry, key, connection, &call).await?;
        let job = self.services.supervisor.fetch_image(&image).await?;
        Ok(path::job(job.id))
    }

    /// Begins to hash the base of an image, and returns the job that does it: the one
    /// under way when there is one. The job fails with
    /// org.proxyd1.Error.BaseChanged when the base is damaged; no guest is started on
    /// it then.
    #[zbus(out_args("job"))]
    async fn verify_image(
        &self,
        entry: &str,
        key: &str,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath, CallError> {
        let image = self.managed_image(entry, key, connection, &call).await?;
        let job = self.services.supervisor.verify_image(&image).await?;
        Ok(path::job(job.id))
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
        let image = self.managed_image(entry, key, connection, &call).await?;
        Ok(self.services.supervisor.evict_image(&image).await?)
    }

    /// Removes bases and leftovers that are proxyd's and that nothing uses, or, as a
    /// dry run, only lists them: path, bytes, reason. Entries whose host can't be reached
    /// are passed over, as long as any can be; their Provider's State tells.
    #[zbus(out_args("leftovers"))]
    async fn prune_images(
        &self,
        dry_run: bool,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<Vec<LeftoverRow>, CallError> {
        if !dry_run {
            self.services.manages_images(connection, &call).await?;
        }
        let leftovers = self.services.supervisor.prune_images(dry_run).await?;
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

    /// A job has begun.
    #[zbus(signal)]
    pub(super) async fn job_new(
        emitter: &SignalEmitter<'_>,
        job: ObjectPath<'_>,
    ) -> zbus::Result<()>;

    /// A job has ended: done, canceled or failed. Its object tells why for 10 seconds
    /// more.
    #[zbus(signal)]
    pub(super) async fn job_removed(
        emitter: &SignalEmitter<'_>,
        job: ObjectPath<'_>,
        result: &str,
    ) -> zbus::Result<()>;
}
