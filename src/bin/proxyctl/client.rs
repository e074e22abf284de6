//! The daemon as seen from here.

use std::ffi::OsString;

use proxyd::dbus::{SpecValue, image_path, provider_path};
use zbus::Address;
use zbus::address::transport::{Transport, Unixexec};
use zbus::connection::Builder;
use zbus::fdo::Error::UnknownObject;
use zbus::fdo::{ObjectManagerProxy, PropertiesProxy};
use zbus::names::InterfaceName;
use zbus::proxy::MethodFlags;
use zbus::{Connection, OwnedObjectPath, Proxy};

use crate::failure::Failure;
use crate::path::object;
use crate::spec::Spec;
use crate::value::{self, Properties};

pub(crate) const NAME: &str = "org.proxyd1";
const ROOT: &str = "/org/proxyd1";
/// The system bus takes no message beyond 32 MiB, and cuts off whoever sends one.
const MAX_MESSAGE: usize = 32 << 20;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Manager,
    Proxy,
    Provider,
    Image,
    Job,
}

impl Kind {
    pub(crate) fn interface(self) -> &'static str {
        match self {
            Self::Manager => "org.proxyd1.Manager",
            Self::Proxy => "org.proxyd1.Proxy",
            Self::Provider => "org.proxyd1.Provider",
            Self::Image => "org.proxyd1.Image",
            Self::Job => "org.proxyd1.Job",
        }
    }
}

/// A connection to the daemon's bus.
pub(crate) struct Client(Connection);

impl Client {
    /// Connects to the system bus, here or by ssh on `host`.
    pub(crate) async fn connect(host: Option<&str>) -> Result<Self, Failure> {
        let Some(host) = host else { return Ok(Self(Connection::system().await?)) };
        // As `systemctl -H` does it: the bridge is a part of systemd there.
        // As an address in words it would be taken with its escapes.
        let arguments = ["-xT", "--", host, "systemd-stdio-bridge"].map(OsString::from);
        let bridge = Unixexec::new("ssh".into(), None, arguments.into());
        let address = Address::new(Transport::Unixexec(bridge));
        let connected = Builder::address(address).build();
        connected.await.map(Self).map_err(|error| Failure::no_host(host, &error))
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.0
    }

    pub(crate) async fn manager(&self) -> Result<Object<'_>, Failure> {
        Ok(Object(Proxy::new(&self.0, NAME, ROOT, Kind::Manager.interface()).await?))
    }

    /// The object at `path`.
    pub(crate) async fn object(
        &self,
        kind: Kind,
        path: OwnedObjectPath,
    ) -> Result<Object<'_>, Failure> {
        Ok(Object(Proxy::new(&self.0, NAME, path, kind.interface()).await?))
    }

    /// The Proxy `name`.
    pub(crate) async fn proxy(&self, name: &str) -> Result<Object<'_>, Failure> {
        let path: OwnedObjectPath = self.manager().await?.call("GetProxy", &name).await?;
        self.object(Kind::Proxy, path).await
    }

    /// The provider entry `entry`.
    pub(crate) async fn provider(&self, entry: &str) -> Result<Object<'_>, Failure> {
        let path = provider_path(entry).map_err(|error| Failure::bad_data(error.to_string()))?;
        self.object(Kind::Provider, path).await
    }

    /// The image `key` of `entry`.
    pub(crate) async fn image(&self, entry: &str, key: &str) -> Result<Object<'_>, Failure> {
        let path = image_path(entry, key).map_err(|error| Failure::bad_data(error.to_string()))?;
        self.object(Kind::Image, path).await
    }

    /// The job of that number.
    pub(crate) async fn job(&self, id: u64) -> Result<Object<'_>, Failure> {
        let path = OwnedObjectPath::try_from(format!("{ROOT}/job/{id}"));
        self.object(Kind::Job, path?).await
    }

    /// What is to be told of every object of a kind, in the order of their paths.
    pub(crate) async fn told_of(&self, kind: Kind) -> Result<Vec<Properties>, Failure> {
        Ok(self.all(kind).await?.into_iter().map(|(_, of)| of).collect())
    }

    /// Every object of a kind with its path, in their order.
    pub(crate) async fn all(
        &self,
        kind: Kind,
    ) -> Result<Vec<(OwnedObjectPath, Properties)>, Failure> {
        let manager = ObjectManagerProxy::new(&self.0, NAME, ROOT).await?;
        let objects = manager.get_managed_objects().await?;
        let mut found: Vec<_> = objects
            .into_iter()
            .filter_map(|(path, mut interfaces)| {
                let at = interfaces.keys().find(|name| name.as_str() == kind.interface())?.clone();
                let properties = interfaces.remove(&at)?;
                Some((path, value::properties(properties)))
            })
            .collect();
        found.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
        Ok(found)
    }
}

/// Whether the bus takes `spec` in one message.
pub(crate) fn check_size(spec: &Spec) -> Result<(), Failure> {
    let size = |value: &SpecValue| match value {
        SpecValue::Bytes(bytes) => bytes.len(),
        _ => 0,
    };
    let bytes: usize = spec.values().map(size).sum();
    if bytes < MAX_MESSAGE - (64 << 10) {
        return Ok(());
    }
    Err(Failure::bad_data(format!(
        "user-data and network-config have {bytes} bytes together, and the system bus takes no \
         message beyond {MAX_MESSAGE}: have the guest fetch the rest"
    )))
}

/// One object of the daemon, called so that polkit may ask the caller for a password.
pub(crate) struct Object<'a>(Proxy<'a>);

impl Object<'_> {
    pub(crate) async fn call<R>(
        &self,
        method: &'static str,
        body: &(impl serde::Serialize + zbus::DynamicType),
    ) -> Result<R, Failure>
    where
        R: for<'d> zbus::wire::DynamicDeserialize<'d>,
    {
        let flags = MethodFlags::ALLOW_INTERACTIVE_AUTH;
        let answer = self.0.call_with_flags(method, flags, body).await;
        answer
            .map_err(|error| self.failure(error))?
            .ok_or_else(|| Failure::other(format!("{method} gave no answer")))
    }

    /// All its properties as they are now.
    pub(crate) async fn properties(&self) -> Result<Properties, Failure> {
        let proxy = PropertiesProxy::new(self.0.connection(), NAME, self.0.path()).await?;
        let interface: InterfaceName<'_> = self.0.interface().to_owned();
        let all = proxy.get_all(interface).await;
        Ok(value::properties(all.map_err(|error| self.failure(error.into()))?))
    }

    /// `error`, which may be that there is no such object.
    fn failure(&self, error: zbus::Error) -> Failure {
        match &error {
            zbus::Error::FDO(known) if matches!(**known, UnknownObject(_)) => {
                let what = object(self.0.path());
                Failure::other(format!("there is no {what}, or not any more"))
            }
            _ => error.into(),
        }
    }
}
