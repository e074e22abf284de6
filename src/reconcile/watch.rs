//! A guest that runs: its address, and whether the proxy in it answers.

use std::net::SocketAddr;
use std::time::Duration;

use super::core::{Core, Next};
use super::explain::Explanation;
use crate::health::{Target, Verdict};
use crate::model::{Address, ConditionKind, Fault, Phase, Reason, Timestamp};
use crate::provider::{AddressView, SharedProvider};

/// How often a guest that is coming up is looked at: its first address shall be
/// noticed within two seconds.
const BOOT_INTERVAL: Duration = Duration::from_secs(1);

/// How long a proxy whose address is known may stay silent before it is asked why.
const PROXY_PATIENCE: Duration = Duration::from_secs(60);

/// How long a running guest's agent is waited for before a DHCP lease or the
/// neighbour table is believed: both may tell of an earlier guest.
const AGENT_PATIENCE: Duration = Duration::from_secs(60);

impl Core {
    pub(super) async fn watch(&mut self, provider: &SharedProvider) -> Result<Next, Fault> {
        self.publisher.update(&self.record, |status| {
            status.set(ConditionKind::DomainRunning, true, Reason::Running, "");
        });
        let known = self.publisher.status().address;
        let agent_only = self.since(ConditionKind::DomainRunning) < AGENT_PATIENCE;
        match (provider.address(&self.guest, agent_only).await?, known) {
            (AddressView::Known(address), _) => self.probe(provider, address).await,
            // The agent may be restarting; while the proxy answers, the address is good.
            (AddressView::Unknown(_), Some(address)) => self.probe(provider, address).await,
            (AddressView::Unknown(answers), None) => {
                if !agent_only {
                    self.explain(provider).await;
                }
                self.await_address(&answers);
                Ok(Next::Wait(BOOT_INTERVAL))
            }
        }
    }

    /// Finds out why a running guest is not a proxy yet, as far as can be told.
    async fn explain(&mut self, provider: &SharedProvider) {
        let mut explanation = std::mem::take(&mut self.explanation);
        if explanation.refresh(&self.inquiry(provider)).await
            && let Some(why) = explanation.message()
        {
            self.publisher.explain(&self.record, why);
        }
        self.explanation = explanation;
    }

    /// What was found out, for the end of a message.
    fn why(&self) -> String {
        self.explanation.message().map(|why| format!("; {why}")).unwrap_or_default()
    }

    fn await_address(&self, answers: &str) {
        let waited = self.waited(ConditionKind::DomainRunning);
        self.publisher.update(&self.record, |status| {
            let why = self.why();
            let message = format!("the guest has no known address after {waited}: {answers}{why}");
            status.doing(Phase::Provisioning, Reason::AwaitingAddress, message.as_str());
            status.set(ConditionKind::AddressKnown, false, Reason::AwaitingAddress, answers);
        });
    }

    /// How long the condition has been as it is, in steps of ten seconds, so that
    /// readers are not told anew every second.
    fn waited(&self, kind: ConditionKind) -> String {
        let seconds = self.since(kind).as_secs() / 10 * 10;
        humantime::format_duration(Duration::from_secs(seconds)).to_string()
    }

    /// How long the condition has been as it is.
    fn since(&self, kind: ConditionKind) -> Duration {
        let now = Timestamp::now().as_micros();
        let since = self.publisher.status().since(kind).map_or(now, Timestamp::as_micros);
        Duration::from_micros(now.saturating_sub(since))
    }

    async fn probe(&mut self, provider: &SharedProvider, address: Address) -> Result<Next, Fault> {
        self.starts = 0;
        if self.publisher.status().phase != Phase::Ready {
            // It was about the missing address.
            self.explanation = Explanation::default();
        }
        self.publisher.update(&self.record, |status| {
            status.address = Some(address);
            status.set(ConditionKind::AddressKnown, true, Reason::Running, "");
            if status.phase != Phase::Ready {
                let message = "the address is known; the proxy is being probed";
                status.doing(Phase::Ready, Reason::AwaitingProxy, message);
            }
        });
        let configured = self.shared.configured();
        let health = &configured.settings.health;
        let target = Target {
            proxy: SocketAddr::new(address.ip, self.record.spec.port),
            url: self.record.spec.health_url.clone().unwrap_or_else(|| health.url.clone()),
            expect_status: health.expect_status,
            timeout: health.timeout,
        };
        match self.prober.probe(&target).await {
            Verdict::Healthy { .. } => self.answered(&target),
            Verdict::Unhealthy { message, .. } => {
                if self.is_overdue() {
                    self.explain(provider).await;
                }
                self.missed(&message, health.unhealthy_after);
            }
        }
        let settled = self.publisher.status().reason != Reason::AwaitingProxy;
        Ok(Next::Wait(if settled { health.interval } else { BOOT_INTERVAL }))
    }

    /// Whether the proxy has never answered for longer than it takes to start one.
    fn is_overdue(&self) -> bool {
        let first = self.publisher.status().reason == Reason::AwaitingProxy;
        first && self.since(ConditionKind::AddressKnown) >= PROXY_PATIENCE
    }

    fn answered(&mut self, target: &Target) {
        self.misses = 0;
        self.explanation = Explanation::default();
        self.publisher.update(&self.record, |status| {
            let message = format!("{} answers through {}", target.url, target.proxy);
            status.doing(Phase::Ready, Reason::Answering, message);
            status.set(ConditionKind::Healthy, true, Reason::Answering, "");
        });
    }

    fn missed(&mut self, message: &str, tolerated: u32) {
        self.misses = self.misses.saturating_add(1);
        let status = self.publisher.status();
        if status.healthy() && self.misses < tolerated {
            return;
        }
        // It never answered since it came up, or it did and stopped: two different things.
        let first = status.reason == Reason::AwaitingProxy;
        let reason = if first { Reason::AwaitingProxy } else { Reason::NotAnswering };
        let waited = self.waited(ConditionKind::AddressKnown);
        self.publisher.update(&self.record, |status| {
            let told =
                if first { format!("no answer after {waited}: {message}") } else { message.into() };
            let told = format!("{told}{}", self.why());
            status.doing(Phase::Ready, reason, told);
            status.set(ConditionKind::Healthy, false, reason, message);
        });
    }
}
