//! The domain of a guest: looked at, defined, started, removed.

use virt::connect::Connect;
use virt::domain::{Domain, DomainState, DomainStateReason, DomainStateReasonEnum};
use virt::enumutil::Enum;
use virt::error::{Error, ErrorNumber};
use virt::sys;

use super::connection::{CallError, found, is};
use crate::model::{Fault, FaultKind, Guest};
use crate::provider::DomainView;

/// All that may hang on a definition; leaving one out makes libvirt refuse.
const UNDEFINE: sys::virDomainUndefineFlagsValues = sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | sys::VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | sys::VIR_DOMAIN_UNDEFINE_NVRAM;

/// The guest's own domain, found by UUID.
pub(super) fn lookup(connection: &Connect, guest: &Guest) -> Result<Option<Domain>, CallError> {
    let by_uuid = connection.lookup_domain_by_uuid_string(&guest.domain_uuid().to_string());
    found(by_uuid, ErrorNumber::NoDomain)
}

/// The guest's own domain.
///
/// # Errors
/// `DomainFailed` when it has gone meanwhile.
pub(super) fn require(connection: &Connect, guest: &Guest) -> Result<Domain, CallError> {
    lookup(connection, guest)?.ok_or_else(|| {
        let text = format!("the domain {} has gone", guest.domain_name());
        Fault::new(FaultKind::DomainFailed, text).into()
    })
}

/// What stands at the guest's UUID, or else at its name.
pub(super) fn view(connection: &Connect, guest: &Guest) -> Result<DomainView, CallError> {
    match lookup(connection, guest)? {
        Some(domain) => state(&domain),
        None => named(connection, guest),
    }
}

/// What stands at the guest's name, when nothing has its UUID.
pub(super) fn named(connection: &Connect, guest: &Guest) -> Result<DomainView, CallError> {
    let by_name = connection.lookup_domain_by_name(&guest.domain_name());
    match found(by_name, ErrorNumber::NoDomain)? {
        None => Ok(DomainView::Absent),
        Some(foreign) => Ok(DomainView::Foreign { uuid: uuid(&foreign)? }),
    }
}

pub(super) fn uuid(domain: &Domain) -> Result<uuid::Uuid, CallError> {
    let text = domain.uuid_string()?;
    uuid::Uuid::parse_str(&text).map_err(|error| {
        let text = format!("libvirt gives a UUID that is none, {text:?}: {error}");
        Fault::new(FaultKind::DomainFailed, text).into()
    })
}

/// How the domain is.
pub(super) fn state(domain: &Domain) -> Result<DomainView, CallError> {
    let (state, reason) = domain.state()?;
    match state {
        Enum::Known(DomainState::Running | DomainState::Blocked | DomainState::Shutdown) => {
            Ok(DomainView::Running)
        }
        Enum::Known(DomainState::Paused | DomainState::PMSuspended) => {
            Ok(DomainView::Paused { reason: word(reason) })
        }
        Enum::Known(DomainState::Shutoff | DomainState::Crashed) => {
            Ok(DomainView::Off { reason: word(reason) })
        }
        // The binding gives this when the call failed: the domain is just gone.
        Enum::Known(DomainState::NoState) | Enum::Unknown(_) => {
            let text = "libvirt does not tell the domain's state";
            Err(Fault::new(FaultKind::DomainFailed, text).into())
        }
    }
}

/// libvirt's reason in one word, such as `crashed` or `ioerror`.
fn word(reason: DomainStateReasonEnum) -> String {
    let shown = match reason {
        Enum::Known(DomainStateReason::Paused(Enum::Known(reason))) => format!("{reason:?}"),
        Enum::Known(DomainStateReason::Shutoff(Enum::Known(reason))) => format!("{reason:?}"),
        Enum::Known(DomainStateReason::Crashed(Enum::Known(reason))) => format!("{reason:?}"),
        _ => "unknown".to_owned(),
    };
    shown.to_lowercase()
}

/// Defines a domain from `xml`.
///
/// # Errors
/// `ForeignDomain` when its name is taken.
pub(super) fn define(
    connection: &Connect,
    guest: &Guest,
    xml: &str,
    autostart: bool,
) -> Result<(), CallError> {
    let domain = match connection.define_domain_xml(xml) {
        Ok(domain) => domain,
        Err(error) if is(&error, ErrorNumber::OperationFailed) => {
            return Err(taken(connection, guest, &error));
        }
        Err(error) => return Err(refused(guest, "define", &error)),
    };
    domain.set_autostart(autostart)?;
    Ok(())
}

/// libvirt has one number for a taken name and for other failures: look which it is.
fn taken(connection: &Connect, guest: &Guest, error: &Error) -> CallError {
    match view(connection, guest) {
        Ok(DomainView::Foreign { uuid }) => {
            let name = guest.domain_name();
            let text = format!("the domain {name} was made by somebody else (UUID {uuid})");
            Fault::new(FaultKind::ForeignDomain, text).into()
        }
        _ => refused(guest, "define", error),
    }
}

/// Starts the domain; that it runs is fine. With `fresh_nvram` it gets new NVRAM.
pub(super) fn start(
    connection: &Connect,
    guest: &Guest,
    fresh_nvram: bool,
) -> Result<(), CallError> {
    let domain = require(connection, guest)?;
    let flags = if fresh_nvram { sys::VIR_DOMAIN_START_RESET_NVRAM } else { 0 };
    let started = match domain.create_with_flags(flags).map(drop) {
        // libvirt before 8.1, and drivers without firmware, don't know the flag.
        Err(error) if fresh_nvram && is(&error, ErrorNumber::InvalidArg) => domain.create(),
        started => started,
    };
    match started {
        Ok(()) => Ok(()),
        Err(error) if is(&error, ErrorNumber::OperationInvalid) => Ok(()),
        Err(error) => Err(refused(guest, "start", &error)),
    }
}

fn refused(guest: &Guest, what: &str, error: &Error) -> CallError {
    let name = guest.domain_name();
    let text = format!("libvirt can't {what} the domain {name}: {}", error.message());
    Fault::new(FaultKind::DomainFailed, text).into()
}

/// Asks the guest to shut down by ACPI or its agent, or ends it at once by `force`.
pub(super) fn shut_down(connection: &Connect, guest: &Guest, force: bool) -> Result<(), CallError> {
    let Some(domain) = lookup(connection, guest)? else { return Ok(()) };
    let done = if force { domain.destroy() } else { domain.shutdown() };
    tolerate(done, &[ErrorNumber::OperationInvalid, ErrorNumber::NoDomain])
}

/// Lets a paused domain run on; that it runs is fine.
pub(super) fn resume(connection: &Connect, guest: &Guest) -> Result<(), CallError> {
    match require(connection, guest)?.resume() {
        Err(error) if is(&error, ErrorNumber::OperationInvalid) => Ok(()),
        Err(error) => Err(refused(guest, "resume", &error)),
        Ok(()) => Ok(()),
    }
}

/// Stops and undefines the domain with its NVRAM; that there is none is fine.
pub(super) fn remove(connection: &Connect, guest: &Guest) -> Result<(), CallError> {
    let Some(domain) = lookup(connection, guest)? else { return Ok(()) };
    // Undefined first, a running domain would live on as a transient one.
    tolerate(domain.destroy(), &[ErrorNumber::OperationInvalid, ErrorNumber::NoDomain])?;
    tolerate(domain.undefine_flags(UNDEFINE), &[ErrorNumber::NoDomain])
}

fn tolerate<T>(result: Result<T, Error>, fine: &[ErrorNumber]) -> Result<(), CallError> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if fine.iter().any(|number| is(&error, *number)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
