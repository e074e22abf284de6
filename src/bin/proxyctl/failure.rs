//! What failures mean for people and for scripts.

/// The daemon's errors begin so; what follows is the kind.
const ERRORS: &str = "org.proxyd1.Error.";

/// sysexits(3): a service that is not there.
const EX_UNAVAILABLE: u8 = 69;
const NOT_RUNNING: &str = "proxyd does not run: start it with `systemctl start proxyd`, and look \
                           at `journalctl -u proxyd`";

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

    /// EX_DATAERR: input that can't be right.
    pub(crate) fn bad_data(message: String) -> Self {
        Self { message, code: 65 }
    }

    /// EX_NOINPUT: a file that can't be read.
    pub(crate) fn no_input(message: String) -> Self {
        Self { message, code: 66 }
    }

    /// EX_TEMPFAIL: it may go better later.
    pub(crate) fn timeout(message: String) -> Self {
        Self { message, code: 75 }
    }

    /// EX_CONFIG: a configuration that is not acceptable.
    pub(crate) fn bad_config(message: String) -> Self {
        Self { message, code: 78 }
    }

    /// A host whose bus can't be reached; ssh has told why on standard error.
    pub(crate) fn no_host(host: &str, error: &zbus::Error) -> Self {
        let message = format!(
            "the bus of {host:?} can't be reached by ssh: {error} (it needs ssh here, and \
             systemd-stdio-bridge there)"
        );
        Self { message, code: EX_UNAVAILABLE }
    }

    /// An end of a kind that the daemon names, as one of its errors would be.
    pub(crate) fn named(error: &str, message: String) -> Self {
        Self { message, code: error.strip_prefix(ERRORS).map_or(1, code) }
    }

    /// Whether the daemon is not there.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.code == EX_UNAVAILABLE
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
                // The bus could not have it started.
                let starting = ["org.freedesktop.systemd1.", "org.freedesktop.DBus.Error.Spawn."];
                if starting.iter().any(|prefix| name.starts_with(prefix)) {
                    let message = format!("{NOT_RUNNING} ({words})");
                    return Self { message, code: EX_UNAVAILABLE };
                }
                Self::named(name, words)
            }
            zbus::Error::FDO(known) => known.as_ref().into(),
            _ => Self { message: format!("the system bus: {error}"), code: EX_UNAVAILABLE },
        }
    }
}

impl From<zbus::fdo::Error> for Failure {
    fn from(error: zbus::fdo::Error) -> Self {
        match error {
            zbus::fdo::Error::ZBus(error) => error.into(),
            error => (&error).into(),
        }
    }
}

impl From<&zbus::fdo::Error> for Failure {
    fn from(error: &zbus::fdo::Error) -> Self {
        use zbus::fdo::Error::{NameHasNoOwner, ServiceUnknown};
        let message = match error {
            ServiceUnknown(_) | NameHasNoOwner(_) => NOT_RUNNING.into(),
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
        "InvalidConfig" => 78,
        _ => 1,
    }
}
