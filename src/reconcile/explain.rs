//! Why a guest is not heard of, or went down: its provider is asked for what can be
//! seen from outside.

use std::time::{Duration, Instant};

use crate::evidence::{self, Cause, Diagnosis, Known};
use crate::model::{Fault, FaultKind, Guest};
use crate::provider::{DomainView, SharedProvider};

/// How often a guest that is not heard of is looked at anew.
const INTERVAL: Duration = Duration::from_secs(10);

/// A question about a guest.
pub(super) struct Inquiry<'a> {
    pub(super) provider: &'a SharedProvider,
    pub(super) guest: &'a Guest,
    pub(super) known: Known,
}

impl Inquiry<'_> {
    /// The fault of a guest that was started and is off again before it told an address.
    pub(super) async fn stopped(&self, domain: &DomainView) -> Fault {
        let reason = match domain {
            DomainView::Off { reason } => reason.as_str(),
            _ => "unknown",
        };
        let name = self.guest.domain_name();
        let why = self.end().await.unwrap_or_else(|| format!("the domain is off ({reason})"));
        let text = format!(
            "{name} stopped soon after its start: {why}; its console log and \
             /var/log/libvirt/qemu/{name}.log on its host tell more"
        );
        Fault::new(FaultKind::DomainFailed, text)
    }

    /// `fault`, with what QEMU said where the guest died while it was started.
    pub(super) async fn not_started(&self, fault: Fault) -> Fault {
        if fault.kind != FaultKind::DomainFailed {
            return fault;
        }
        let why = self.end().await.map(|why| format!("; {why}")).unwrap_or_default();
        Fault::new(fault.kind, format!("{fault}{why}"))
    }

    /// The fault of a guest that is paused, which nobody but its operator may undo.
    pub(super) async fn paused(&self, reason: &str) -> Fault {
        let name = self.guest.domain_name();
        let why = self.end().await.unwrap_or_else(|| format!("the domain is paused ({reason})"));
        let text = format!("{why}; resume it with `virsh resume {name}` once the cause is gone");
        Fault::new(FaultKind::DomainFailed, text)
    }

    /// What keeps the guest from being heard of, as far as can be seen.
    pub(super) async fn why(&self) -> Option<String> {
        self.diagnose().await.map(|found| found.message)
    }

    async fn end(&self) -> Option<String> {
        let found = self.diagnose().await?;
        matches!(found.cause, Cause::Died | Cause::Paused).then_some(found.message)
    }

    async fn diagnose(&self) -> Option<Diagnosis> {
        // Whoever wonders why learns nothing more from a host that does not answer: the
        // next look at the guest reports that.
        let clues = self.provider.clues(self.guest).await.ok()?;
        evidence::diagnose(&clues, self.known)
    }
}

/// The latest answer, so that it is neither sought nor told more often than needed.
#[derive(Debug, Default)]
pub(super) struct Explanation {
    sought: Option<Instant>,
    found: Option<Diagnosis>,
}

impl Explanation {
    /// Seeks the answer anew when it is time to, and tells whether there is another
    /// cause now.
    pub(super) async fn refresh(&mut self, inquiry: &Inquiry<'_>) -> bool {
        if self.sought.is_some_and(|at| at.elapsed() < INTERVAL) {
            return false;
        }
        let before = self.cause();
        *self = Self { sought: Some(Instant::now()), found: inquiry.diagnose().await };
        self.cause() != before
    }

    fn cause(&self) -> Option<Cause> {
        self.found.as_ref().map(|found| found.cause)
    }

    /// The answer for people.
    pub(super) fn message(&self) -> Option<&str> {
        self.found.as_ref().map(|found| found.message.as_str())
    }
}
