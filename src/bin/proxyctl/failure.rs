//! What failures mean for people and for scripts.

/// The daemon's errors begin so; what follows is the kind.
const ERRORS: &str = "org.proxyd1.Error.";

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

    /// EX_DATAERR: input that can't be right.
    pub(crate) fn bad_data(message: String) -> Self {
        Self { message, code: 65 }
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
