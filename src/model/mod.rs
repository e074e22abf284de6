//! The vocabulary every other module speaks: identifiers, the specification of a
//! Proxy, its status, and the one error type. Pure: nothing here does I/O.

/// Proxies that one daemon keeps, at most: all that is told of them has to fit into one
/// message of the system bus, which are 32 MiB.
pub const MAX_PROXIES: usize = 4096;

mod fault;
mod guest;
mod id;
mod image;
mod input;
mod secret;
mod spec;
mod status;

pub use fault::{Fault, FaultKind, Persistence};
pub use guest::{Guest, GuestFile};
pub use id::{EntryName, ImageId, ImageKey, InvalidIdentifier, ProxyName};
pub use image::{Firmware, ImageFormat, InvalidUrl, Pin, ResourceUrl, Sha256Digest, UrlOrigin};
pub use input::{SpecInput, SpecProblem};
pub use secret::Secret;
pub use spec::{Effect, ImageChoice, Origin, ProxySpec, Slot};
pub use status::{
    Address, AddressSource, Condition, ConditionKind, Phase, ProxyStatus, Reason, Timestamp,
    is_link_local,
};
