//! The preflight, row by row: what guests need of a host, whether or not there are any.

use std::sync::Arc;

use virt::connect::Connect;

use super::connection::{CallError, Link, shown_version};
use super::host;
use crate::config::{NetworkAttachment, ProviderSettings, VirtType};
use crate::model::{Fault, FaultKind, Firmware};
use crate::provider::Check;

/// A pool with less room than this holds no base.
const LEAST_FREE: u64 = 1 << 30;

/// Looks at everything; a row that fails hides none of those after it, except that
/// without a connection there is nothing to look at. `writable` is asked whether bases
/// can be published.
pub(super) async fn all(
    link: &Link,
    settings: &Arc<ProviderSettings>,
    writable: Result<String, Fault>,
) -> Vec<Check> {
    let uri = settings.uri.clone();
    let version = link.run(|connection| Ok(connection.lib_version()?)).await;
    let connected =
        version.map(|version| format!("{uri} answers, libvirt {}", shown_version(version)));
    let mut rows = Vec::new();
    if let Some(login) = link.login() {
        let credential = settings.ssh.as_ref().map(|ssh| &*ssh.key_credential).unwrap_or_default();
        let stands = |_| format!("{login} let the key of the credential {credential:?} in");
        rows.push(row("ssh", connected.clone().map(stands)));
    }
    rows.push(row("connection", connected));
    if rows.iter().any(|row| !row.passed) {
        return rows;
    }
    for (what, look) in LOOKS {
        let settings = settings.clone();
        rows.push(row(what, link.run(move |connection| look(connection, &settings)).await));
        if what == "pool" {
            rows.push(row("publish", writable.clone()));
        }
    }
    rows
}

fn row(what: &'static str, found: Result<String, Fault>) -> Check {
    let passed = found.is_ok();
    Check { what, passed, message: found.unwrap_or_else(|fault| fault.message) }
}

type Look = fn(&Connect, &ProviderSettings) -> Result<String, CallError>;

const LOOKS: [(&str, Look); 5] =
    [("pool", pool), ("space", space), ("network", network), ("firmware", firmware), ("kvm", kvm)];

fn pool(connection: &Connect, settings: &ProviderSettings) -> Result<String, CallError> {
    let path = host::pool_path(&host::pool(connection, settings)?)?;
    Ok(format!("{} is active, in {}", settings.pool, path.display()))
}

fn space(connection: &Connect, settings: &ProviderSettings) -> Result<String, CallError> {
    let available = host::pool(connection, settings)?.info()?.available;
    let text = format!("{} MiB free in pool {}", available >> 20, settings.pool);
    if available >= LEAST_FREE {
        return Ok(text);
    }
    let text = format!("{text}: free some, a cloud image needs about {} MiB", LEAST_FREE >> 20);
    Err(Fault::new(FaultKind::NoSpace, text).into())
}

fn network(connection: &Connect, settings: &ProviderSettings) -> Result<String, CallError> {
    host::network(connection, settings)?;
    Ok(match &settings.network {
        NetworkAttachment::Network(name) => format!("{name} is active"),
        NetworkAttachment::Bridge(name) => {
            format!("the bridge {name} is looked at when a guest starts")
        }
    })
}

fn firmware(connection: &Connect, settings: &ProviderSettings) -> Result<String, CallError> {
    host::firmware(&host::virtualisation(connection, settings)?, Firmware::Uefi)?;
    Ok("libvirt has UEFI firmware to choose from".into())
}

/// Software emulation is a pass only where it was asked for.
fn kvm(connection: &Connect, settings: &ProviderSettings) -> Result<String, CallError> {
    let found = host::virtualisation(connection, settings)?.domain_type;
    if found == "kvm" || settings.virt_type == VirtType::Qemu {
        return Ok(format!("guests run as {found}"));
    }
    let text = format!(
        "guests run as {found}, which is slow: enable virtualisation in the host's firmware and \
         load the kvm module, or set virtType to \"qemu\" if this is meant"
    );
    Err(Fault::new(FaultKind::ProviderUnavailable, text).into())
}
