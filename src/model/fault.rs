//! The one error type that crosses module borders. Whether something is worth
//! trying again is a property of its kind, never read out of its text.

use std::fmt;

/// Whether time alone can cure a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Trying again without a change of specification or configuration is pointless.
    Permanent,
    /// The surroundings may recover; it is tried again with backoff.
    Transient,
}

/// What went wrong. The name is both a Proxy's `Reason` and, where a method call
/// fails, the last element of the D-Bus error `org.proxyd1.Error.<Name>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// An argument of a call is not acceptable.
    InvalidArgument,
    /// The configuration file is not acceptable.
    InvalidConfig,
    /// The name is taken by a Proxy with another specification.
    AlreadyExists,
    /// No Proxy has that name.
    NoSuchProxy,
    /// The configuration has no such provider entry.
    NoSuchProvider,
    /// The provider entry offers no image under that key.
    NoSuchImage,
    /// A complete download, or a cached base, has another sha256 than configured.
    DigestMismatch,
    /// A cached base came from another URL and no sha256 vouches for it.
    UrlMismatch,
    /// Something backs onto the base.
    ImageInUse,
    /// The image is of a kind that is not safe to hand to a guest.
    ImageRejected,
    /// A file or volume that isn't ours stands at a name we need.
    ForeignFile,
    /// A libvirt domain that isn't ours has the name we need.
    ForeignDomain,
    /// A base is no longer the one an overlay was made from.
    BaseChanged,
    /// The storage pool is missing, inactive, or can't be used.
    PoolUnavailable,
    /// The libvirt network or the bridge is missing or inactive.
    NetworkUnavailable,
    /// The host has no firmware that fits the guest.
    FirmwareUnavailable,
    /// There is no room left.
    NoSpace,
    /// libvirt can't be reached, or broke off.
    ProviderUnavailable,
    /// The image could not be downloaded for now.
    FetchFailed,
    /// Somebody else holds a lock that is needed.
    Busy,
    /// libvirt refused an operation on the domain.
    DomainFailed,
    /// The guest runs and has not told its address yet.
    AwaitingAddress,
    /// The guest has an address, and the proxy in it does not answer as expected yet.
    AwaitingProxy,
    /// The caller may not do that.
    NotAuthorized,
    /// The work was called off.
    Canceled,
    /// A record or file of our own can't be read or written.
    StateFailed,
}

impl FaultKind {
    /// The name as D-Bus and the journal show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "InvalidArgument",
            Self::InvalidConfig => "InvalidConfig",
            Self::AlreadyExists => "AlreadyExists",
            Self::NoSuchProxy => "NoSuchProxy",
            Self::NoSuchProvider => "NoSuchProvider",
            Self::NoSuchImage => "NoSuchImage",
            Self::DigestMismatch => "DigestMismatch",
            Self::UrlMismatch => "UrlMismatch",
            Self::ImageInUse => "ImageInUse",
            Self::ImageRejected => "ImageRejected",
            Self::ForeignFile => "ForeignFile",
            Self::ForeignDomain => "ForeignDomain",
            Self::BaseChanged => "BaseChanged",
            Self::PoolUnavailable => "PoolUnavailable",
            Self::NetworkUnavailable => "NetworkUnavailable",
            Self::FirmwareUnavailable => "FirmwareUnavailable",
            Self::NoSpace => "NoSpace",
            Self::ProviderUnavailable => "ProviderUnavailable",
            Self::FetchFailed => "FetchFailed",
            Self::Busy => "Busy",
            Self::DomainFailed => "DomainFailed",
            Self::AwaitingAddress => "AwaitingAddress",
            Self::AwaitingProxy => "AwaitingProxy",
            Self::NotAuthorized => "NotAuthorized",
            Self::Canceled => "Canceled",
            Self::StateFailed => "StateFailed",
        }
    }

    /// Whether waiting can help.
    pub fn persistence(self) -> Persistence {
        match self {
            Self::InvalidArgument
            | Self::InvalidConfig
            | Self::AlreadyExists
            | Self::NoSuchProxy
            | Self::NoSuchProvider
            | Self::NoSuchImage
            | Self::DigestMismatch
            | Self::UrlMismatch
            | Self::ImageRejected
            | Self::ForeignFile
            | Self::ForeignDomain
            | Self::BaseChanged
            | Self::NotAuthorized => Persistence::Permanent,
            Self::ImageInUse
            | Self::PoolUnavailable
            | Self::NetworkUnavailable
            | Self::FirmwareUnavailable
            | Self::NoSpace
            | Self::ProviderUnavailable
            | Self::FetchFailed
            | Self::Busy
            | Self::DomainFailed
            | Self::AwaitingAddress
            | Self::AwaitingProxy
            | Self::Canceled
            | Self::StateFailed => Persistence::Transient,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure with its kind and a message for the operator: what, which value,
/// and the way out. Messages never hold user-data or credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The kind, which decides what happens next.
    pub kind: FaultKind,
    /// For people.
    pub message: String,
}

impl Fault {
    /// A fault of `kind` with its message.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Whether only a change of specification or configuration can help.
    pub fn is_permanent(&self) -> bool {
        self.kind.persistence() == Persistence::Permanent
    }
}
