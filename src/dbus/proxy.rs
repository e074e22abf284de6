//! `org.proxyd1.Proxy`: one object per Proxy.

use std::collections::HashMap;
use std::time::Duration;

use zbus::Connection;
use zbus::interface;
use zbus::message::Header;

use super::error::CallError;
use super::value::SpecValue;
use super::{Services, spec};
use crate::model::{Fault, FaultKind, ProxyName, ProxySpec, Timestamp};
use crate::reconcile::{Change, Handle, View};

/// A row of the `Conditions` property: kind, whether it holds, reason, message, since.
type ConditionRow = (String, bool, String, String, u64);

/// Bytes of a console that one call gives.
const MAX_CONSOLE: u64 = 1 << 20;

/// One Proxy on the bus.
pub(super) struct Proxy {
    handle: Handle,
    services: Services,
}

impl Proxy {
    pub(super) fn new(handle: Handle, services: Services) -> Self {
        Self { handle, services }
    }

    fn view(&self) -> std::sync::Arc<View> {
        self.handle.view()
    }
}

pub(super) fn checked(name: &str) -> Result<ProxyName, Fault> {
    ProxyName::new(name).map_err(|error| Fault::new(FaultKind::InvalidArgument, error.to_string()))
}

/// The endpoint of a Proxy whose address is known, else nothing.
pub(super) fn endpoint(view: &View) -> String {
    let address = view.status.address.map(|address| {
        let socket = std::net::SocketAddr::new(address.ip, view.spec.port);
        format!("http://{socket}")
    });
    address.unwrap_or_default()
}

/// How long a successor may take, when one shall come up beside the present guest.
fn overlap(options: HashMap<String, SpecValue>) -> Result<Option<Option<Duration>>, Fault> {
    let refuse = |message: String| Err(Fault::new(FaultKind::InvalidArgument, message));
    let (mut overlap, mut timeout) = (false, None);
    for (key, value) in options {
        match (key.as_str(), value) {
            ("Overlap", SpecValue::Flag(wanted)) => overlap = wanted,
            ("Timeout", SpecValue::U64(seconds)) if (1..=86_400).contains(&seconds) => {
                timeout = Some(Duration::from_secs(seconds));
            }
            ("Timeout", SpecValue::U64(seconds)) => {
                return refuse(format!("Timeout: {seconds} is not among 1 to 86400 seconds"));
            }
            ("Overlap", value) => {
                return refuse(format!("Overlap: its type is {:?}, not \"b\"", value.signature()));
            }
            ("Timeout", value) => {
                return refuse(format!("Timeout: its type is {:?}, not \"t\"", value.signature()));
            }
            (key, _) => {
                let shown: String = key.chars().take(80).collect();
                return refuse(format!(
                    "{shown:?} is no option of a rebuild: use Overlap, Timeout"
                ));
            }
        }
    }
    if timeout.is_some() && !overlap {
        return refuse("Timeout: only a rebuild with Overlap has one".to_owned());
    }
    Ok(overlap.then_some(timeout))
}

/// A forward proxy, run as a virtual machine.
#[interface(name = "org.proxyd1.Proxy")]
impl Proxy {
    /// Changes the specification: the keys of CreateProxy that are given. Returns each
    /// key that changed, with when that takes effect: live, next-start (Restart brings
    /// it), or rebuild (Rebuild brings it). Until then the condition UpToDate does not
    /// hold, and names what is waited for.
    #[zbus(out_args("effects"))]
    async fn update(
        &self,
        spec: HashMap<String, SpecValue>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<HashMap<String, String>, CallError> {
        self.services.manages_proxies(connection, &call).await?;
        let change = |before: &ProxySpec| spec::merge(spec, before);
        let changes = self.services.supervisor.update(self.handle.name(), change).await?;
        let row = |change: Change| (change.key.to_owned(), change.effect.as_str().to_owned());
        Ok(changes.into_iter().map(row).collect())
    }

    /// Has the guest run. Returns when the order is recorded.
    async fn start(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok(self.services.supervisor.set_running(self.handle.name(), true).await?)
    }

    /// Has the guest shut down and stay off. One that doesn't heed is ended after 30
    /// seconds. Returns when the order is recorded.
    async fn stop(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok(self.services.supervisor.set_running(self.handle.name(), false).await?)
    }

    /// Has the guest shut down and start again, with what waits for the next start.
    async fn restart(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok(self.services.supervisor.restart(self.handle.name()).await?)
    }

    /// Has the guest made anew, with a new overlay and seed and the same identity. The
    /// present one is removed first.
    async fn rebuild(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok(self.services.supervisor.rebuild(self.handle.name(), None).await?)
    }

    /// Rebuild with options. Overlap b: the new guest comes up beside the present one
    /// and takes over only when it answers; if it doesn't, the present one stays. Its
    /// address and the UUID of its domain are others then. Timeout t: how long it may
    /// take, in seconds (900 unless given).
    async fn rebuild_with_options(
        &self,
        options: HashMap<String, SpecValue>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        let overlap = overlap(options)?;
        Ok(self.services.supervisor.rebuild(self.handle.name(), overlap).await?)
    }

    /// Probes the proxy at once: whether the health URL answers through it, and what
    /// was found, with the hop that failed. Needs the right to manage proxies, since
    /// it makes the daemon send a request.
    #[zbus(out_args("healthy", "found"))]
    async fn probe(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(bool, String), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok(self.services.supervisor.probe(self.handle.name()).await?)
    }

    /// Removes the Proxy with its domain, NVRAM, overlay, seed and console log. The
    /// base image stays. Returns when the removal is recorded; ProxyRemoved follows.
    async fn delete(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok(self.services.supervisor.delete(self.handle.name()).await?)
    }

    /// What can be told of the Proxy when it is not as it should be, as JSON: the step
    /// that holds it up, the likely cause, domain, guest agent and lease, and the ends
    /// of the serial console and of QEMU's log. Both may hold what the guest printed,
    /// so this needs the right to manage proxies.
    #[zbus(out_args("evidence"))]
    async fn evidence(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<String, CallError> {
        self.services.manages_proxies(connection, &call).await?;
        Ok(self.services.supervisor.evidence(self.handle.name()).await?)
    }

    /// The last `bytes` of the guest's serial console, at most 1 MiB. It may hold what
    /// only the guest's operator should see, so this needs the right to manage proxies.
    #[zbus(out_args("log"))]
    async fn console_log(
        &self,
        bytes: u64,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<Vec<u8>, CallError> {
        self.services.manages_proxies(connection, &call).await?;
        let limit = bytes.min(MAX_CONSOLE);
        Ok(self.services.supervisor.console(self.handle.name(), limit).await?)
    }

    /// The name; also the guest's hostname.
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> String {
        self.handle.name().to_string()
    }

    /// The provider entry that runs the guest.
    #[zbus(property)]
    fn provider(&self) -> String {
        self.view().spec.provider.to_string()
    }

    /// The image's key, or its URL without credentials.
    #[zbus(property)]
    fn image(&self) -> String {
        self.view().spec.image.shown()
    }

    /// Where the image comes from, without credentials; empty when the entry offers
    /// no such image.
    #[zbus(property)]
    fn image_url(&self) -> String {
        self.view().status.image_url.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// sha256 of the image that the guest was made from; empty before that.
    #[zbus(property)]
    fn image_digest(&self) -> String {
        self.view().status.image_digest.map(|digest| digest.to_string()).unwrap_or_default()
    }

    /// Whether the configuration now names another image than the guest was made from.
    #[zbus(property)]
    fn image_outdated(&self) -> bool {
        self.view().status.image_outdated
    }

    /// Virtual processors of the specification.
    #[zbus(property)]
    fn vcpus(&self) -> u32 {
        self.view().spec.vcpus
    }

    /// Memory of the specification, in MiB.
    #[zbus(property, name = "MemoryMiB")]
    fn memory_mib(&self) -> u64 {
        self.view().spec.memory_mib
    }

    /// Size of the disk in the specification, in GiB; 0 for that of the image.
    #[zbus(property, name = "DiskGiB")]
    fn disk_gib(&self) -> u64 {
        self.view().spec.disk_gib.unwrap_or_default()
    }

    /// Port of the proxy in the guest.
    #[zbus(property)]
    fn port(&self) -> u16 {
        self.view().spec.port
    }

    /// The networks that the preset's squid serves; none for those of the guest's own
    /// interface, and without meaning where user-data is the operator's own.
    #[zbus(property)]
    fn allowed_clients(&self) -> Vec<String> {
        self.view().spec.allowed_clients.iter().map(ToString::to_string).collect()
    }

    /// The health URL of the specification, without credentials and query; empty for
    /// that of the configuration.
    #[zbus(property)]
    fn health_url(&self) -> String {
        self.view().spec.health_url.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// Whether the guest is started together with its host.
    #[zbus(property)]
    fn autostart(&self) -> bool {
        self.view().spec.autostart
    }

    /// Pending, Provisioning, Ready, Stopped, Failed or Deleting.
    #[zbus(property)]
    fn phase(&self) -> String {
        self.view().status.phase.as_str().to_owned()
    }

    /// Whether the health URL answers through the proxy.
    #[zbus(property)]
    fn healthy(&self) -> bool {
        self.view().status.healthy()
    }

    /// The step under way, or what holds it up, in one word.
    #[zbus(property)]
    fn reason(&self) -> String {
        self.view().status.reason.as_str().to_owned()
    }

    /// The same for people: what is awaited and for how long, or the way out.
    #[zbus(property)]
    fn message(&self) -> String {
        self.view().status.message.clone()
    }

    /// Whether only a change of specification or configuration can help.
    #[zbus(property)]
    fn permanent(&self) -> bool {
        self.view().status.permanent
    }

    /// When the next attempt is due, in microseconds since the epoch; 0 when none is.
    #[zbus(property)]
    fn next_attempt(&self) -> u64 {
        self.view().status.next_attempt.map_or(0, Timestamp::as_micros)
    }

    /// The guest's address; empty when it isn't known.
    #[zbus(property)]
    fn address(&self) -> String {
        self.view().status.address.map(|address| address.ip.to_string()).unwrap_or_default()
    }

    /// Who told the address: agent, lease or arp.
    #[zbus(property)]
    fn address_source(&self) -> String {
        let address = self.view().status.address;
        address.map(|address| address.source.as_str().to_owned()).unwrap_or_default()
    }

    /// The URL to give to clients, such as http://192.0.2.7:3128; empty when the
    /// address isn't known.
    #[zbus(property)]
    fn endpoint(&self) -> String {
        endpoint(&self.view())
    }

    /// The steps on the way (ImageReady, DomainRunning, AddressKnown, Healthy), whether
    /// the guest is UpToDate with its specification, and whether it is Exposed to
    /// clients that it should not serve: kind, whether it holds, reason, message, and
    /// since when in microseconds.
    #[zbus(property)]
    fn conditions(&self) -> Vec<ConditionRow> {
        let row = |condition: &crate::model::Condition| {
            (
                condition.kind.as_str().to_owned(),
                condition.holds,
                condition.reason.to_owned(),
                condition.message.clone(),
                condition.since.as_micros(),
            )
        };
        self.view().status.conditions.iter().map(row).collect()
    }

    /// Counts the specifications the Proxy has had, from 1.
    #[zbus(property)]
    fn generation(&self) -> u64 {
        self.view().generation
    }

    /// The generation that the status describes.
    #[zbus(property)]
    fn observed_generation(&self) -> u64 {
        self.view().status.observed_generation
    }

    /// The UUID of the libvirt domain. Another one after a rebuild with overlap.
    #[zbus(property)]
    fn domain(&self) -> String {
        self.view().guest(self.handle.name()).domain_uuid().to_string()
    }

    /// Who declared it: api or config.
    #[zbus(property)]
    fn origin(&self) -> String {
        self.view().origin.as_str().to_owned()
    }

    /// When it was declared, in microseconds since the epoch.
    #[zbus(property(emits_changed_signal = "const"))]
    fn created_at(&self) -> u64 {
        self.view().created_at.as_micros()
    }
}
