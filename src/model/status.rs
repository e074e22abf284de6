//! What a Proxy is right now, as its worker sees it and everybody else may read it.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Fault, FaultKind, ResourceUrl, Sha256Digest};

/// Where a Proxy stands on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Recorded; its worker has not begun.
    Pending,
    /// On the way to `Ready`, perhaps waiting to try a step again.
    Provisioning,
    /// The guest runs, its address is known, and the proxy has answered.
    Ready,
    /// The guest is off because it is meant to be.
    Stopped,
    /// Only a change of specification or configuration can help.
    Failed,
    /// Its parts are being removed.
    Deleting,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Provisioning,
        Self::Ready,
        Self::Stopped,
        Self::Failed,
        Self::Deleting,
    ];

    /// The word for the `Phase` property.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Provisioning => "Provisioning",
            Self::Ready => "Ready",
            Self::Stopped => "Stopped",
            Self::Failed => "Failed",
            Self::Deleting => "Deleting",
        }
    }
}

/// Why a Proxy is in its phase: the step under way, or the fault that holds it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It waits for its worker.
    Queued,
    /// The state of its parts is being looked up.
    Observing,
    /// The base image is being fetched or checked.
    FetchingImage,
    /// The qcow2 overlay is being made.
    CreatingOverlay,
    /// The cloud-init seed is being written.
    WritingSeed,
    /// The domain is being defined.
    DefiningDomain,
    /// The domain is being started.
    StartingDomain,
    /// The guest runs and has no known address yet.
    AwaitingAddress,
    /// The address is known; the proxy does not answer yet.
    AwaitingProxy,
    /// The health URL answers through the proxy.
    Answering,
    /// It was answering, and does not any more.
    NotAnswering,
    /// The base image is verified and in the pool.
    ImageVerified,
    /// The domain is running.
    Running,
    /// The domain is not running.
    NotRunning,
    /// Its parts are being removed.
    Removing,
    /// The guest is being shut down.
    Stopping,
    /// The guest is off, as it was ordered to be.
    Stopped,
    /// The guest is what the specification says.
    Applied,
    /// A change takes effect when the guest starts again.
    RestartNeeded,
    /// A change takes effect in a guest that is made anew.
    RebuildNeeded,
    /// A new guest is being made beside the present one.
    Rebuilding,
    /// The new guest did not come up, and the present one stays.
    RebuildFailed,
    /// A client that isn't allowed was refused by the proxy.
    Refusing,
    /// A client that isn't allowed was served by the proxy.
    Serving,
    /// Nothing could be asked, or there is nothing to compare with.
    NotChecked,
    /// A step failed.
    Fault(FaultKind),
}

impl Reason {
    /// The word for the `Reason` property.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "Queued",
            Self::Observing => "Observing",
            Self::FetchingImage => "FetchingImage",
            Self::CreatingOverlay => "CreatingOverlay",
            Self::WritingSeed => "WritingSeed",
            Self::DefiningDomain => "DefiningDomain",
            Self::StartingDomain => "StartingDomain",
            Self::AwaitingAddress => "AwaitingAddress",
            Self::AwaitingProxy => "AwaitingProxy",
            Self::Answering => "Answering",
            Self::NotAnswering => "NotAnswering",
            Self::ImageVerified => "ImageVerified",
            Self::Running => "Running",
            Self::NotRunning => "NotRunning",
            Self::Removing => "Removing",
            Self::Stopping => "Stopping",
            Self::Stopped => "Stopped",
            Self::Applied => "Applied",
            Self::RestartNeeded => "RestartNeeded",
            Self::RebuildNeeded => "RebuildNeeded",
            Self::Rebuilding => "Rebuilding",
            Self::RebuildFailed => "RebuildFailed",
            Self::Refusing => "Refusing",
            Self::Serving => "Serving",
            Self::NotChecked => "NotChecked",
            Self::Fault(kind) => kind.name(),
        }
    }
}

/// A point in time: microseconds since 1970-01-01 UTC, as systemd counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The present.
    pub fn now() -> Self {
        // A clock before 1970 is shown as 1970 rather than as a failure.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::since_epoch(since)
    }

    /// The time `since` the epoch.
    pub fn since_epoch(since: Duration) -> Self {
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    /// This time and `delay` more.
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Microseconds since the epoch.
    pub fn as_micros(self) -> u64 {
        self.0
    }
}

/// How a guest's address was learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressSource {
    /// The guest agent told it.
    Agent,
    /// The libvirt network's DHCP server has a lease for the MAC.
    Lease,
    /// The host's neighbour table has the MAC.
    Arp,
}

impl AddressSource {
    /// The word for the `AddressSource` property.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Lease => "lease",
            Self::Arp => "arp",
        }
    }
}

/// Whether `address` means something on one link alone.
pub fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// A guest's address and where it was learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The length of its network's prefix in bits.
    pub prefix: u8,
    /// Who told it.
    pub source: AddressSource,
}

/// What a condition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConditionKind {
    /// The base image is verified and in the pool.
    ImageReady,
    /// The domain is running.
    DomainRunning,
    /// The guest's address is known.
    AddressKnown,
    /// The health URL answers through the proxy.
    Healthy,
    /// The running guest is what the specification says.
    UpToDate,
    /// The proxy serves clients that it should not: the one condition that should not
    /// hold.
    Exposed,
}

impl ConditionKind {
    /// All of them, in the order in which they are reached.
    pub const ALL: [Self; 6] = [
        Self::ImageReady,
        Self::DomainRunning,
        Self::AddressKnown,
        Self::Healthy,
        Self::UpToDate,
        Self::Exposed,
    ];

    /// The word for the `Conditions` property.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ImageReady => "ImageReady",
            Self::DomainRunning => "DomainRunning",
            Self::AddressKnown => "AddressKnown",
            Self::Healthy => "Healthy",
            Self::UpToDate => "UpToDate",
            Self::Exposed => "Exposed",
        }
    }
}

/// Whether one step of the way is reached, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What it is about.
    pub kind: ConditionKind,
    /// Whether it holds.
    pub holds: bool,
    /// Why, in one word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// When `holds` last changed.
    pub since: Timestamp,
}

/// The whole status of a Proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyStatus {
    /// Where it stands.
    pub phase: Phase,
    /// Why.
    pub reason: Reason,
    /// For people: what is awaited since when, or what failed and the way out.
    pub message: String,
    /// When the next attempt is due, if one is.
    pub next_attempt: Option<Timestamp>,
    /// Whether only a change of specification or configuration can help.
    pub permanent: bool,
    /// The guest's address.
    pub address: Option<Address>,
    /// Where the image comes from, as the configuration has it now.
    pub image_url: Option<ResourceUrl>,
    /// Whether the configuration now names another image than the guest was made from.
    pub image_outdated: bool,
    /// The digest of the base image's download.
    pub image_digest: Option<Sha256Digest>,
    /// The steps.
    pub conditions: Vec<Condition>,
    /// The generation of the specification that this status describes.
    pub observed_generation: u64,
}

impl ProxyStatus {
    /// The status of a Proxy that nothing has been done for yet.
    pub fn pending() -> Self {
        let now = Timestamp::now();
        let unknown = |kind| Condition {
            kind,
            holds: false,
            reason: Reason::Queued.as_str(),
            message: String::new(),
            since: now,
        };
        Self {
            phase: Phase::Pending,
            reason: Reason::Queued,
            message: "waiting for its worker".into(),
            next_attempt: None,
            permanent: false,
            address: None,
            image_url: None,
            image_outdated: false,
            image_digest: None,
            conditions: ConditionKind::ALL.map(unknown).to_vec(),
            observed_generation: 0,
        }
    }

    /// Whether the named condition holds.
    pub fn holds(&self, kind: ConditionKind) -> bool {
        self.conditions.iter().any(|condition| condition.kind == kind && condition.holds)
    }

    /// Whether the health URL answers through the proxy.
    pub fn healthy(&self) -> bool {
        self.holds(ConditionKind::Healthy)
    }

    /// Whether the guest's agent has told its address.
    pub fn is_heard(&self) -> bool {
        self.address.is_some_and(|address| address.source == AddressSource::Agent)
    }

    /// Records a step as reached or not; the time moves only when that changes.
    pub fn set(&mut self, kind: ConditionKind, holds: bool, reason: Reason, message: &str) {
        for condition in self.conditions.iter_mut().filter(|condition| condition.kind == kind) {
            if condition.holds != holds {
                condition.since = Timestamp::now();
            }
            condition.holds = holds;
            condition.reason = reason.as_str();
            message.clone_into(&mut condition.message);
        }
    }

    /// Why the named condition is as it is, in one word.
    pub fn reason_of(&self, kind: ConditionKind) -> &'static str {
        let found = self.conditions.iter().find(|condition| condition.kind == kind);
        found.map(|condition| condition.reason).unwrap_or_default()
    }

    /// Takes over a step under way.
    pub fn doing(&mut self, phase: Phase, reason: Reason, message: impl Into<String>) {
        self.phase = phase;
        self.reason = reason;
        self.message = message.into();
        self.next_attempt = None;
        self.permanent = false;
    }

    /// Takes over a fault: `Failed` when time can't cure it, else the phase stays.
    /// What is on its way out stays so.
    pub fn fail(&mut self, fault: &Fault, next_attempt: Option<Timestamp>) {
        self.permanent = fault.is_permanent();
        if self.permanent && self.phase != Phase::Deleting {
            self.phase = Phase::Failed;
        } else if self.phase == Phase::Pending {
            // Its worker has begun, and was held up at the first look.
            self.phase = Phase::Provisioning;
        }
        self.reason = Reason::Fault(fault.kind);
        self.message.clone_from(&fault.message);
        self.next_attempt = next_attempt;
    }
}
