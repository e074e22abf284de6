//! The one place that changes a Proxy's status, tells its readers, and writes the
//! journal's lines about it.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;

use super::desk::Desk;
use super::{BaseUse, View};
use crate::health::Target;
use crate::journal;
use crate::model::{
    Address, ConditionKind, Fault, FaultKind, Phase, ProxyName, ProxyStatus, Reason, Timestamp,
};
use crate::store::{Build, Record};

/// Owns the status of one Proxy.
pub(super) struct Publisher {
    name: ProxyName,
    sender: watch::Sender<Arc<View>>,
    desk: Arc<Desk>,
}

impl Publisher {
    pub(super) fn new(record: &Record, desk: Arc<Desk>) -> (Self, watch::Receiver<Arc<View>>) {
        let mut status = ProxyStatus::pending();
        if record.deleting {
            status.phase = Phase::Deleting;
        }
        let (sender, receiver) = watch::channel(Arc::new(view(record, status)));
        (Self { name: record.name.clone(), sender, desk }, receiver)
    }

    pub(super) fn status(&self) -> ProxyStatus {
        self.sender.borrow().status.clone()
    }

    /// Changes the status; readers hear of it only when something is different.
    pub(super) fn update(&self, record: &Record, change: impl FnOnce(&mut ProxyStatus)) {
        let before = self.status();
        let mut after = before.clone();
        change(&mut after);
        after.observed_generation = record.generation;
        let next = view(record, after.clone());
        let mut other_image = false;
        self.sender.send_if_modified(|current| {
            let changed = **current != next;
            other_image = current.bases != next.bases || current.spec.image != next.spec.image;
            if changed {
                *current = Arc::new(next);
            }
            changed
        });
        if other_image {
            self.desk.uses_changed();
        }
        self.tell(record, &before, &after);
    }

    /// Takes note of a fault. Its line in the journal is written once for a run of
    /// attempts that fail alike.
    pub(super) fn fault(&self, record: &Record, fault: &Fault, next: Option<Timestamp>) {
        let before = self.status();
        self.update(record, |status| status.fail(fault, next));
        if before.reason == Reason::Fault(fault.kind) && before.message == fault.message {
            return;
        }
        let (entry, image) = (record.entry(), record.spec.image.shown());
        if fault.is_permanent() {
            tracing::error!(
                message_id = journal::STEP_FAILED,
                proxyd_proxy = %self.name,
                proxyd_provider = %entry,
                proxyd_image = image,
                proxyd_error = fault.kind.name(),
                "Proxy {}: {fault}", self.name
            );
        } else {
            tracing::warn!(
                message_id = journal::STEP_DELAYED,
                proxyd_proxy = %self.name,
                proxyd_provider = %entry,
                proxyd_image = image,
                proxyd_error = fault.kind.name(),
                "Proxy {}: {fault}; it will be tried again", self.name
            );
        }
    }

    /// Tells why a guest is not a proxy yet.
    pub(super) fn explain(&self, record: &Record, why: &str) {
        tracing::warn!(
            message_id = journal::STEP_DELAYED,
            proxyd_proxy = %self.name,
            proxyd_provider = %record.entry(),
            proxyd_image = record.spec.image.shown(),
            "Proxy {}: held up: {why}", self.name
        );
    }

    /// Takes note of what a probe said, and of whether the proxy counts as healthy.
    /// A fault that holds the Proxy up stays its reason.
    pub(super) fn probed(
        &self,
        record: &Record,
        held: Option<FaultKind>,
        told: &str,
        missed: Option<(Reason, &str)>,
    ) {
        let reason = missed.map_or(Reason::Answering, |(reason, _)| reason);
        self.update(record, |status| {
            // An order may have come meanwhile, whose phase stays.
            let serving = status.phase == Phase::Ready && status.reason != Reason::Stopping;
            if held.is_none() && serving {
                status.doing(Phase::Ready, reason, told);
            }
            let message = missed.map(|(_, message)| message).unwrap_or_default();
            status.set(ConditionKind::Healthy, missed.is_none(), reason, message);
        });
    }

    /// A new guest has taken over, at `address`.
    pub(super) fn took_over(&self, record: &Record, address: Address, target: &Target) {
        let told = format!("{} answers through {}", target.url, target.proxy);
        self.update(record, |status| {
            status.address = Some(address);
            status.doing(Phase::Ready, Reason::Answering, told.as_str());
            for kind in
                [ConditionKind::DomainRunning, ConditionKind::AddressKnown, ConditionKind::Healthy]
            {
                status.set(kind, true, Reason::Answering, "");
            }
        });
        tracing::info!(
            message_id = journal::REBUILT,
            proxyd_proxy = %self.name,
            proxyd_provider = %record.entry(),
            "Proxy {}: its new guest took over at {}", self.name, target.proxy
        );
    }

    /// Something was taken from the guest, or changed, by another hand.
    pub(super) fn drift(&self, record: &Record, what: &str) {
        tracing::warn!(
            message_id = journal::DRIFT,
            proxyd_proxy = %self.name,
            proxyd_provider = %record.entry(),
            "Proxy {}: {what}, and not by an order: it is put right", self.name
        );
    }

    /// The base under the running guest is another one.
    pub(super) fn base_changed(&self, record: &Record, fault: &Fault) {
        let known = self.status().holds(ConditionKind::ImageReady);
        self.update(record, |status| {
            let reason = Reason::Fault(fault.kind);
            status.set(ConditionKind::ImageReady, false, reason, &fault.message);
        });
        if known {
            tracing::error!(
                message_id = journal::DRIFT,
                proxyd_proxy = %self.name,
                proxyd_provider = %record.entry(),
                proxyd_error = fault.kind.name(),
                "Proxy {}: its guest runs on a base that changed under it: {fault}", self.name
            );
        }
    }

    /// The guest went down without an order.
    pub(super) fn stopped(&self, record: &Record, why: &str) {
        tracing::warn!(
            message_id = journal::GUEST_STOPPED,
            proxyd_proxy = %self.name,
            proxyd_provider = %record.entry(),
            "Proxy {}: its guest does not run any more ({why})", self.name
        );
    }

    /// The proxy was asked from `stranger`, whom it should not serve.
    pub(super) fn exposed(&self, record: &Record, stranger: IpAddr, served: bool) {
        let before = self.status().holds(ConditionKind::Exposed);
        self.update(record, |status| {
            let (reason, what) = match served {
                true => (Reason::Serving, "was served"),
                false => (Reason::Refusing, "was refused"),
            };
            let message = format!("a request from {stranger}, which is not allowed, {what}");
            status.set(ConditionKind::Exposed, served, reason, &message);
        });
        if served && !before {
            tracing::warn!(
                message_id = journal::EXPOSED,
                proxyd_proxy = %self.name,
                proxyd_provider = %record.entry(),
                "Proxy {}: it serves {stranger}, which its AllowedClients don't include", self.name
            );
        }
    }

    fn tell(&self, record: &Record, before: &ProxyStatus, after: &ProxyStatus) {
        if before.phase != after.phase {
            tracing::info!(
                message_id = journal::PHASE_CHANGED,
                proxyd_proxy = %self.name,
                proxyd_provider = %record.entry(),
                proxyd_phase = after.phase.as_str(),
                "Proxy {}: {} → {}", self.name, before.phase.as_str(), after.phase.as_str()
            );
        }
        if before.healthy() == after.healthy() {
            return;
        }
        if after.healthy() {
            let endpoint = after.address.map(|address| address.ip.to_string());
            tracing::info!(
                message_id = journal::HEALTHY,
                proxyd_proxy = %self.name,
                proxyd_provider = %record.entry(),
                proxyd_phase = after.phase.as_str(),
                "Proxy {}: answers at {} port {}",
                self.name, endpoint.unwrap_or_default(), record.spec.port
            );
        } else if after.holds(ConditionKind::DomainRunning) {
            tracing::warn!(
                message_id = journal::UNHEALTHY,
                proxyd_proxy = %self.name,
                proxyd_provider = %record.entry(),
                proxyd_phase = after.phase.as_str(),
                "Proxy {}: does not answer any more: {}", self.name, after.message
            );
        }
    }
}

fn view(record: &Record, status: ProxyStatus) -> View {
    View {
        uuid: record.uuid,
        slot: record.slot(),
        generation: record.generation,
        spec: record.spec.clone(),
        origin: record.origin,
        on_removal: record.on_removal,
        created_at: record.created_at,
        bases: record.all_builds().filter_map(base_use).collect(),
        status,
    }
}

fn base_use(build: &Build) -> Option<BaseUse> {
    let base = build.base.as_ref()?;
    Some(BaseUse { entry: build.spec.provider.clone(), file: base.file.clone() })
}
