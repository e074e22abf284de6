//! What libvirt tells by itself: of domains, of guest agents, and of the end of a
//! connection. The binding has no safe way to register for it.
//!
//! # Safety
//! This is the only module with unsafe code. libvirt keeps one pointer of ours for each
//! registration: a leaked `Box<Arc<Listener>>`.
//! - It stays valid for as long as libvirt may call back: it is freed by libvirt's own
//!   call of [`free`], which comes once, after the last callback, or, where the
//!   registration failed and libvirt never took it, by us.
//! - Callbacks come from the event loop's thread while others use the listener: it is
//!   only shared, and `Listener` is `Sync`.
//! - A callback gets `dom` alive for the length of the call, and reads only its UUID,
//!   into an array of the size that libvirt documents.
//! - No panic crosses the border: each callback catches what its listener might raise.
#![allow(unsafe_code)]

use std::os::raw::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use uuid::Uuid;
use virt::connect::Connect;
use virt::error::Error;
use virt::sys;

/// Who is told. What it does must be short: it holds up the event loop.
pub(super) trait Listener: Send + Sync + 'static {
    /// Something happened to the domain or to its guest agent.
    fn domain(&self, uuid: Uuid);
    /// The connection has ended.
    fn closed(&self);
}

type Shared = Arc<dyn Listener>;

/// A connection's registrations; dropped, they are taken back.
pub(super) struct Subscription {
    connection: Connect,
    domain_events: Vec<c_int>,
    close: bool,
}

/// Registers `listener`. A driver that lacks one kind of event is watched for the others.
pub(super) fn subscribe(connection: &Connect, listener: &Shared) -> Subscription {
    type Lifecycle = sys::virConnectDomainEventCallback;
    type Agent = sys::virConnectDomainEventAgentLifecycleCallback;
    type Generic = sys::virConnectDomainEventGenericCallback;
    let (lifecycle, agent): (Lifecycle, Agent) = (Some(on_lifecycle), Some(on_agent));
    // SAFETY: libvirt takes every kind of callback by the one generic type, and calls it
    // with the arguments of the kind that the event's number stands for
    // (virConnectDomainEventRegisterAny); each number is paired with its own type here.
    let callbacks: [(sys::virDomainEventID, Generic); 2] = unsafe {
        [
            (
                sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE,
                std::mem::transmute::<Lifecycle, Generic>(lifecycle),
            ),
            (
                sys::VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE,
                std::mem::transmute::<Agent, Generic>(agent),
            ),
        ]
    };
    let registered = callbacks.into_iter().filter_map(|(event, callback)| {
        let kept = keep(listener);
        // SAFETY: the connection is open for the call, and `kept` is as the module says.
        let id = unsafe {
            sys::virConnectDomainEventRegisterAny(
                connection.as_ptr(),
                std::ptr::null_mut(),
                event as c_int,
                callback,
                kept,
                Some(free),
            )
        };
        accepted(id, kept, "events of domains")
    });
    let domain_events = registered.collect();
    let kept = keep(listener);
    // SAFETY: as above.
    let closed = unsafe {
        let pointer = connection.as_ptr();
        sys::virConnectRegisterCloseCallback(pointer, Some(on_close), kept, Some(free))
    };
    let close = accepted(closed, kept, "the end of the connection").is_some();
    Subscription { connection: connection.clone(), domain_events, close }
}

fn keep(listener: &Shared) -> *mut c_void {
    Box::into_raw(Box::new(listener.clone())).cast()
}

fn accepted(id: c_int, kept: *mut c_void, what: &str) -> Option<c_int> {
    if id >= 0 {
        return Some(id);
    }
    tracing::debug!("libvirt does not tell {what}: {}", Error::last_error().message());
    // SAFETY: what was refused is still ours, and nobody else has it.
    unsafe { free(kept) };
    None
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // SAFETY: the connection is ours and open, though its peer may be gone; ids are
        // those that it gave. libvirt frees what it kept, by `free`.
        unsafe {
            let pointer = self.connection.as_ptr();
            for id in &self.domain_events {
                sys::virConnectDomainEventDeregisterAny(pointer, *id);
            }
            if self.close {
                sys::virConnectUnregisterCloseCallback(pointer, Some(on_close));
            }
        }
    }
}

unsafe extern "C" fn free(kept: *mut c_void) {
    // SAFETY: see the module; this is the last use.
    drop(unsafe { Box::from_raw(kept.cast::<Shared>()) });
}

/// Tells the listener of a domain.
unsafe fn tell(domain: sys::virDomainPtr, kept: *mut c_void) {
    let mut uuid = [0_u8; sys::VIR_UUID_BUFLEN as usize];
    // SAFETY: see the module.
    let known = unsafe { sys::virDomainGetUUID(domain, uuid.as_mut_ptr()) } == 0;
    if known {
        // SAFETY: see the module.
        unsafe { with(kept, |listener| listener.domain(Uuid::from_bytes(uuid))) };
    }
}

unsafe fn with(kept: *mut c_void, act: impl FnOnce(&dyn Listener)) {
    // SAFETY: see the module.
    let listener = unsafe { &*kept.cast::<Shared>() };
    if catch_unwind(AssertUnwindSafe(|| act(&**listener))).is_err() {
        tracing::error!("a listener of libvirt's events failed");
    }
}

unsafe extern "C" fn on_lifecycle(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _event: c_int,
    _detail: c_int,
    kept: *mut c_void,
) -> c_int {
    // SAFETY: called by libvirt as the module says.
    unsafe { tell(domain, kept) };
    0
}

unsafe extern "C" fn on_agent(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _state: c_int,
    _reason: c_int,
    kept: *mut c_void,
) {
    // SAFETY: called by libvirt as the module says.
    unsafe { tell(domain, kept) };
}

unsafe extern "C" fn on_close(_: sys::virConnectPtr, _reason: c_int, kept: *mut c_void) {
    // SAFETY: called by libvirt as the module says.
    unsafe { with(kept, |listener| listener.closed()) };
}
