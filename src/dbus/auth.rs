//! Who may change things: polkit decides, by the bus name of the caller.

use std::collections::HashMap;

use async_trait::async_trait;
use zbus::Connection;
use zbus::message::{Flags, Header};
use zbus_polkit::policykit1::{AuthorityProxy, CheckAuthorizationFlags, Subject};

use crate::model::{Fault, FaultKind};

/// What polkit is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Create, change and remove Proxies; re-read the configuration.
    ManageProxies,
    /// Fetch, evict and verify images.
    ManageImages,
}

impl Action {
    /// The action's id, as in `dbus/org.proxyd1.policy`.
    pub fn id(self) -> &'static str {
        match self {
            Self::ManageProxies => "org.proxyd1.manage-proxies",
            Self::ManageImages => "org.proxyd1.manage-images",
        }
    }
}

/// Decides whether a caller may do something. Tests on a private bus put their own
/// in place of polkit.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// Nothing when the caller may.
    ///
    /// # Errors
    /// `NotAuthorized`, naming the action.
    async fn check(
        &self,
        connection: &Connection,
        call: &Header<'_>,
        action: Action,
    ) -> Result<(), Fault>;
}

/// polkit; root passes without it, as it would with it.
pub struct Polkit;

#[async_trait]
impl Authorizer for Polkit {
    async fn check(
        &self,
        connection: &Connection,
        call: &Header<'_>,
        action: Action,
    ) -> Result<(), Fault> {
        if is_root(connection, call).await {
            return Ok(());
        }
        match ask(connection, call, action).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(denied(action, "polkit does not allow it")),
            Err(error) => Err(denied(action, &format!("polkit can't be asked: {error}"))),
        }
    }
}

fn denied(action: Action, why: &str) -> Fault {
    let message = format!(
        "the caller is not authorized for {}: {why}; ask as root, or have a polkit rule allow it",
        action.id()
    );
    Fault::new(FaultKind::NotAuthorized, message)
}

async fn is_root(connection: &Connection, call: &Header<'_>) -> bool {
    let Some(sender) = call.sender() else { return false };
    let Ok(bus) = zbus::fdo::DBusProxy::new(connection).await else { return false };
    matches!(bus.get_connection_unix_user(sender.to_owned().into()).await, Ok(0))
}

async fn ask(
    connection: &Connection,
    call: &Header<'_>,
    action: Action,
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    let subject = Subject::new_for_message_header(call)?;
    let authority = AuthorityProxy::new(connection).await?;
    let interactive = call.primary().flags().contains(Flags::ALLOW_INTERACTIVE_AUTH);
    let flags = if interactive {
        CheckAuthorizationFlags::ALLOW_USER_INTERACTION
    } else {
        CheckAuthorizationFlags::empty()
    };
    let result =
        authority.check_authorization(&subject, action.id(), &HashMap::new(), flags, "").await?;
    Ok(result.is_authorized)
}
