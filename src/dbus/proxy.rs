//! `org.proxyd1.Proxy`: one object per Proxy.

use zbus::Connection;
use zbus::interface;
use zbus::message::Header;

use super::Services;
use super::auth::Action;
use super::error::CallError;
use crate::model::{ProxyName, Timestamp};
use crate::reconcile::{Handle, View};

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

/// The object path of a Proxy. A name holds only letters, digits and hyphens; a
/// hyphen, and a digit in front, are escaped as sd-bus does (`sd_bus_path_encode(3)`).
pub(super) fn path(name: &ProxyName) -> String {
    format!("{}/proxy/{}", super::ROOT_PATH, escape(name.as_str()))
}

fn escape(label: &str) -> String {
    let mut escaped = String::with_capacity(label.len());
    for (index, byte) in label.bytes().enumerate() {
        if byte.is_ascii_alphabetic() || (index > 0 && byte.is_ascii_digit()) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("_{byte:02x}"));
        }
    }
    escaped
}

/// The endpoint of a Proxy whose address is known, else nothing.
pub(super) fn endpoint(view: &View) -> String {
    let address = view.status.address.map(|address| {
        let socket = std::net::SocketAddr::new(address.ip, view.spec.port);
        format!("http://{socket}")
    });
    address.unwrap_or_default()
}

/// A forward proxy, run as a virtual machine.
#[interface(name = "org.proxyd1.Proxy")]
impl Proxy {
    /// Removes the Proxy with its domain, NVRAM, overlay, seed and console log. The
    /// base image stays. Returns when the removal is recorded; ProxyRemoved follows.
    async fn delete(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.authorizer.check(connection, &call, Action::ManageProxies).await?;
        Ok(self.services.supervisor.delete(self.handle.name()).await?)
    }

    /// What can be told of the Proxy when it is not as it should be, as JSON: the step
    /// that holds it up, the likely cause, domain, guest agent and lease, and the ends
    /// of the serial console and of QEMU's log. Both may hold what the guest printed,
    /// so this needs the right to manage proxies.
    async fn evidence(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<String, CallError> {
        self.services.authorizer.check(connection, &call, Action::ManageProxies).await?;
        Ok(self.services.supervisor.evidence(self.handle.name()).await?)
    }

    /// The last `bytes` of the guest's serial console, at most 1 MiB. It may hold what
    /// only the guest's operator should see, so this needs the right to manage proxies.
    async fn console_log(
        &self,
        bytes: u64,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<Vec<u8>, CallError> {
        self.services.authorizer.check(connection, &call, Action::ManageProxies).await?;
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

    /// The steps on the way (ImageReady, DomainRunning, AddressKnown, Healthy): kind,
    /// whether it holds, reason, message, and since when in microseconds.
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

    /// The UUID of the libvirt domain.
    #[zbus(property(emits_changed_signal = "const"))]
    fn domain(&self) -> String {
        self.view().uuid.to_string()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_as_sd_bus_does() {
        let path = |name| path(&ProxyName::new(name).unwrap());
        assert_eq!(path("a-b"), "/org/proxyd1/proxy/a_2db");
        assert_eq!(path("9a9"), "/org/proxyd1/proxy/_39a9");
    }
}
