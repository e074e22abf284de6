//! Why a guest is not heard of, or went down: its provider is asked for what can be
//! seen from outside, and the answer becomes part of the status.

use std::time::{Duration, Instant};

use super::core::Core;
use crate::evidence::{self, Cause, Diagnosis};
use crate::journal;
use crate::model::{Fault, FaultKind};
use crate::provider::{DomainView, SharedProvider};

/// How often a guest that is not heard of is looked at anew.
const INTERVAL: Duration = Duration::from_secs(10);

/// The latest answer, so that it is neither sought nor told more often than needed.
#[derive(Debug, Default)]
pub(super) struct Explanation {
    sought: Option<Instant>,
    found: Option<Diagnosis>,
}

impl Explanation {
    fn is_due(&self) -> bool {
        self.sought.is_none_or(|at| at.elapsed() >= INTERVAL)
    }

    fn cause(&self) -> Option<Cause> {
        self.found.as_ref().map(|found| found.cause)
    }
}

impl Core {
    /// Why a running guest has no known address, as far as can be told.
    pub(super) async fn explained(&mut self, provider: &SharedProvider) -> Option<String> {
        if self.explanation.is_due() {
            let found = self.diagnose(provider).await;
            if found.as_ref().map(|found| found.cause) != self.explanation.cause() {
                self.tell(found.as_ref());
            }
            self.explanation = Explanation { sought: Some(Instant::now()), found };
        }
        self.explanation.found.as_ref().map(|found| found.message.clone())
    }

    /// The fault of a guest that was started and is off again before it told an address.
    pub(super) async fn stopped(&self, provider: &SharedProvider, domain: &DomainView) -> Fault {
        let name = self.guest.domain_name();
        let why = match (self.diagnose(provider).await, domain) {
            (Some(found), _) if found.cause == Cause::Died => found.message,
            (_, DomainView::Off { reason }) => format!("the domain is off ({reason})"),
            _ => "the domain is off".into(),
        };
        let text = format!(
            "{name} stopped soon after its start: {why}; its console log and \
             /var/log/libvirt/qemu/{name}.log on its host tell more"
        );
        Fault::new(FaultKind::DomainFailed, text)
    }

    /// The fault of a guest that is paused, which nobody but its operator may undo.
    pub(super) async fn paused(&self, provider: &SharedProvider, reason: &str) -> Fault {
        let name = self.guest.domain_name();
        let why = match self.diagnose(provider).await {
            Some(found) if found.cause == Cause::Died => found.message,
            _ => format!("the domain is paused ({reason})"),
        };
        let text = format!("{why}; resume it with `virsh resume {name}` once the cause is gone");
        Fault::new(FaultKind::DomainFailed, text)
    }

    async fn diagnose(&self, provider: &SharedProvider) -> Option<Diagnosis> {
        // Whoever wonders why learns nothing more from a host that does not answer: the
        // next look at the guest reports that.
        let clues = provider.clues(&self.guest).await.ok()?;
        evidence::diagnose(&clues, self.shared.wants_agent(self.record.entry()))
    }

    fn tell(&self, found: Option<&Diagnosis>) {
        let Some(found) = found else { return };
        tracing::warn!(
            message_id = journal::STEP_DELAYED,
            proxyd_proxy = %self.record.name,
            proxyd_provider = %self.record.entry(),
            proxyd_image = self.record.spec.image.shown(),
            "Proxy {}: no address yet: {}", self.record.name, found.message
        );
    }
}
