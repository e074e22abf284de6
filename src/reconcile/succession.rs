//! A guest that is replaced while it serves: its successor comes up beside it, and
//! takes over only when it answers.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::core::{Core, Next};
use super::plan::Role;
use super::{backoff, source};
use crate::health::{Prober, Target, Verdict};
use crate::journal;
use crate::model::{Address, ConditionKind, Fault, FaultKind, Reason};
use crate::provider::AddressView;
use crate::store::{Build, Rebuild};

/// How long a successor may take unless the order says otherwise: to fetch an image,
/// to boot, and to install squid.
pub(super) const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// How often a successor is asked whether it answers.
const INTERVAL: Duration = Duration::from_secs(1);

impl Core {
    fn patience(&self) -> Duration {
        match self.record.rebuild {
            Some(Rebuild::Overlap { patience }) => Duration::from_secs(patience),
            _ => PATIENCE,
        }
    }

    /// A step for the successor that fails does not touch the present guest: it is
    /// tried again for as long as there is patience.
    pub(super) async fn tolerate(
        &mut self,
        made: Result<Next, Fault>,
        cancel: &CancellationToken,
    ) -> Result<Next, Fault> {
        let Err(fault) = made else { return made };
        if cancel.is_cancelled() {
            return Err(fault);
        }
        let since = *self.succession.get_or_insert_with(Instant::now);
        if fault.is_permanent() || since.elapsed() >= self.patience() {
            return self.abandon(&fault).await;
        }
        self.shared.metrics.failed(fault.kind);
        self.doing(Role::Next, Reason::Rebuilding, fault.message.as_str());
        self.attempts = self.attempts.saturating_add(1);
        Ok(Next::Wait(backoff::delay(fault.kind, self.attempts, rand::random())))
    }

    /// The successor runs: it takes over when it answers.
    pub(super) async fn await_next(&mut self) -> Result<Next, Fault> {
        let since = *self.succession.get_or_insert_with(Instant::now);
        let (provider, guest) = (self.provider(Role::Next)?, self.guest(Role::Next));
        let found = provider.address(&guest, false).await.map_err(|fault| fault.message);
        let waiting = match found {
            Ok(AddressView::Known(address)) => {
                match Prober::default().probe(&self.target(address)).await {
                    Verdict::Healthy { .. } => return self.take_over(address).await,
                    Verdict::Unhealthy { message, .. } => message,
                }
            }
            Ok(AddressView::Unknown { answers, .. }) => answers,
            Err(message) => message,
        };
        if since.elapsed() < self.patience() {
            self.doing(Role::Next, Reason::Rebuilding, waiting);
            return Ok(Next::Wait(INTERVAL));
        }
        let patience = humantime::format_duration(self.patience());
        let why = self.inquiry(&provider, &guest).why().await;
        let why = why.map(|why| format!("; {why}")).unwrap_or_default();
        let text = format!("it did not answer within {patience}: {waiting}{why}");
        self.abandon(&Fault::new(FaultKind::AwaitingProxy, text)).await
    }

    async fn take_over(&mut self, address: Address) -> Result<Next, Fault> {
        let mut record = self.record.clone();
        record.retired = record.build.take();
        record.build = record.next.take().map(|next| Build { started: true, ..next });
        record.rebuild = None;
        self.save(record).await?;
        (self.succession, self.setback, self.defined) = (None, None, None);
        self.prober = Prober::default();
        self.judge.answered_at_once();
        self.listen();
        let target = self.target(address);
        self.publisher.took_over(&self.record, address, &target);
        self.agenda.probe_in(self.interval());
        Ok(Next::Again)
    }

    /// Gives the successor up.
    pub(super) async fn abandon(&mut self, fault: &Fault) -> Result<Next, Fault> {
        let mut record = self.record.clone();
        record.retired = record.next.take().or(record.retired);
        if matches!(record.rebuild, Some(Rebuild::Overlap { .. })) {
            record.rebuild = None;
        }
        self.save(record).await?;
        self.succession = None;
        let name = &self.record.name;
        tracing::warn!(
            message_id = journal::REBUILD_FAILED,
            proxyd_proxy = %name,
            proxyd_provider = %self.record.entry(),
            proxyd_error = fault.kind.name(),
            "Proxy {name}: its new guest is given up and the old one stays: {fault}"
        );
        let message = format!("the new guest was given up: {fault}");
        self.publisher.update(&self.record, |status| {
            status.set(ConditionKind::UpToDate, false, Reason::RebuildFailed, &message);
        });
        self.setback = Some(message);
        Ok(Next::Again)
    }

    /// What is probed when the guest has `address`.
    pub(super) fn target(&self, address: Address) -> Target {
        source::target(&self.shared.configured().settings.health, &self.record.spec, address)
    }

    /// Time between probes.
    pub(super) fn interval(&self) -> Duration {
        self.shared.configured().settings.health.interval
    }
}
