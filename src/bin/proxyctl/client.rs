//! Calls to the daemon, and what their failures mean for people and for scripts.

use zbus::proxy::MethodFlags;
use zbus::{Connection, OwnedObjectPath, Proxy};

use proxyd::dbus::SpecValue;

use crate::arguments::Spec;

const NAME: &str = "org.proxyd1";
const ROOT: &str = "/org/proxyd1";
/// The daemon's errors begin so; what follows is the kind.
const ERRORS: &str = "org.proxyd1.Error.";

/// The system bus takes no message beyond 32 MiB, and cuts off whoever sends one.
const MAX_MESSAGE: usize = 32 << 20;

/// sysexits(3): a service that is not there.
const EX_UNAVAILABLE: u8 = 69;

/// An end that is not a good one: words for people, a code of sysexits(3) for scripts.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    pub(crate) fn other(message: String) -> Self {
        Self { message, code: 1 }
    }

    /// EX_NOINPUT: a file that can't be read.
    pub(crate) fn no_input(message: String) -> Self {
        Self { message, code: 66 }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.code
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<zbus::Error> for Failure {
    fn from(error: zbus::Error) -> Self {
        match &error {
            zbus::Error::MethodError(name, message, _) => {
                let words = message.clone().unwrap_or_else(|| name.to_string());
                let kind = name.strip_prefix(ERRORS).map_or(1, code);
                Self { message: words, code: kind }
            }
            zbus::Error::FDO(known) => known.as_ref().into(),
            _ => Self { message: format!("the system bus: {error}"), code: EX_UNAVAILABLE },
        }
    }
}

impl From<&zbus::fdo::Error> for Failure {
    fn from(error: &zbus::fdo::Error) -> Self {
        use zbus::fdo::Error::{NameHasNoOwner, ServiceUnknown};
        let message = match error {
            ServiceUnknown(_) | NameHasNoOwner(_) => {
                "proxyd does not run: start it with `systemctl start proxyd`, and look at \
                 `journalctl -u proxyd`"
                    .into()
            }
            _ => format!("the system bus: {error}"),
        };
        Self { message, code: EX_UNAVAILABLE }
    }
}

/// The code of sysexits(3) for an error of the daemon.
fn code(kind: &str) -> u8 {
    match kind {
        "InvalidArgument" => 65,
        "NotAuthorized" => 77,
        "ProviderUnavailable" | "PoolUnavailable" | "NoSpace" | "Busy" => 75,
        _ => 1,
    }
}

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
            return Err(Failure { message, code: 65 });
        }
        self.manager().await?.call::<OwnedObjectPath>("CreateProxy", &(name, spec)).await.map(drop)
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
