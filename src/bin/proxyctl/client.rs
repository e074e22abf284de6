//! Calls to the daemon.

use std::collections::BTreeMap;

use zbus::proxy::MethodFlags;
use zbus::{Connection, OwnedObjectPath, Proxy};

use proxyd::dbus::{SpecValue, provider_path};

use crate::arguments::Spec;
use crate::failure::Failure;

const NAME: &str = "org.proxyd1";
const ROOT: &str = "/org/proxyd1";
/// The system bus takes no message beyond 32 MiB, and cuts off whoever sends one.
const MAX_MESSAGE: usize = 32 << 20;

/// A row of a host's preflight.
pub(crate) type Check = (String, bool, String);
/// What is left of a guest: Proxy, domain, UUID, volumes.
pub(crate) type Leftover = (String, String, String, Vec<String>);

/// A connection to the daemon.
pub(crate) struct Client(Connection);

impl Client {
    pub(crate) async fn connect() -> Result<Self, Failure> {
        Ok(Self(Connection::system().await?))
    }

    pub(crate) async fn create(&self, name: &str, spec: Spec) -> Result<(), Failure> {
        let bytes: usize = spec.values().map(size).sum();
        if bytes >= MAX_MESSAGE - (64 << 10) {
            let message = format!(
                "user-data and network-config have {bytes} bytes together, and the system bus \
                 takes no message beyond {MAX_MESSAGE}: have the guest fetch the rest"
            );
            return Err(Failure::bad_data(message));
        }
        self.manager().await?.call::<OwnedObjectPath>("CreateProxy", &(name, spec)).await.map(drop)
    }

    pub(crate) async fn update(&self, name: &str, spec: Spec) -> Result<String, Failure> {
        let changes: BTreeMap<String, String> =
            self.proxy(name).await?.call("Update", &spec).await?;
        Ok(changes.iter().map(|(key, effect)| format!("{key}: {effect}\n")).collect())
    }

    /// Calls a method of a Proxy that takes and gives nothing.
    pub(crate) async fn order(&self, name: &str, order: &'static str) -> Result<(), Failure> {
        self.proxy(name).await?.call(order, &()).await
    }

    pub(crate) async fn rebuild(&self, name: &str, options: Spec) -> Result<(), Failure> {
        self.proxy(name).await?.call("RebuildWithOptions", &options).await
    }

    pub(crate) async fn probe(&self, name: &str) -> Result<(bool, String), Failure> {
        self.proxy(name).await?.call("Probe", &()).await
    }

    pub(crate) async fn check(&self, entry: &str) -> Result<Vec<Check>, Failure> {
        self.provider(entry).await?.call("Check", &()).await
    }

    pub(crate) async fn leftovers(&self, entry: &str) -> Result<Vec<Leftover>, Failure> {
        self.provider(entry).await?.call("ListLeftovers", &()).await
    }

    pub(crate) async fn remove_leftover(&self, entry: &str, domain: &str) -> Result<(), Failure> {
        self.provider(entry).await?.call("RemoveLeftover", &domain).await
    }

    pub(crate) async fn adopt(&self, entry: &str, name: &str, spec: Spec) -> Result<(), Failure> {
        let provider = self.provider(entry).await?;
        provider.call::<OwnedObjectPath>("Adopt", &(name, spec)).await.map(drop)
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<(), Failure> {
        self.manager().await?.call("DeleteProxy", &name).await
    }

    pub(crate) async fn evidence(&self, name: &str) -> Result<String, Failure> {
        self.proxy(name).await?.call("Evidence", &()).await
    }

    pub(crate) async fn console(&self, name: &str, bytes: u64) -> Result<Vec<u8>, Failure> {
        self.proxy(name).await?.call("ConsoleLog", &bytes).await
    }

    async fn manager(&self) -> Result<Object<'_>, Failure> {
        Ok(Object(Proxy::new(&self.0, NAME, ROOT, "org.proxyd1.Manager").await?))
    }

    async fn provider(&self, entry: &str) -> Result<Object<'_>, Failure> {
        let path = provider_path(entry).map_err(|error| Failure::bad_data(error.to_string()))?;
        Ok(Object(Proxy::new(&self.0, NAME, path, "org.proxyd1.Provider").await?))
    }

    async fn proxy(&self, name: &str) -> Result<Object<'_>, Failure> {
        let path: OwnedObjectPath = self.manager().await?.call("GetProxy", &name).await?;
        Ok(Object(Proxy::new(&self.0, NAME, path, "org.proxyd1.Proxy").await?))
    }
}

/// One object of the daemon, called so that polkit may ask the caller for a password.
struct Object<'a>(Proxy<'a>);

impl Object<'_> {
    async fn call<R>(
        &self,
        method: &'static str,
        body: &(impl serde::Serialize + zbus::DynamicType),
    ) -> Result<R, Failure>
    where
        R: for<'d> zbus::wire::DynamicDeserialize<'d>,
    {
        let flags = MethodFlags::ALLOW_INTERACTIVE_AUTH;
        let answer = self.0.call_with_flags(method, flags, body).await?;
        answer.ok_or_else(|| Failure::other(format!("{method} gave no answer")))
    }
}

fn size(value: &SpecValue) -> usize {
    match value {
        SpecValue::Bytes(bytes) => bytes.len(),
        _ => 0,
    }
}
