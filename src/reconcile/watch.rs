//! A guest that runs: its address, and whether the proxy in it answers.

use std::time::{Duration, Instant};

use super::core::{Core, Next};
use super::explain::Explanation;
use super::plan::{Role, wanted_size};
use crate::health::{Hop, Verdict};
use crate::model::{Address, ConditionKind, Fault, FaultKind, Phase, Reason};
use crate::provider::{AddressView, Observed, SharedProvider};

/// How often the address is asked for once the guest agent is there: its first one
/// shall be noticed within two seconds.
const ADDRESS_INTERVAL: Duration = Duration::from_millis(500);
/// How often a guest that is coming up is looked at while nothing is heard of it; its
/// agent's event comes first.
const BOOT_INTERVAL: Duration = Duration::from_secs(5);
/// How often a proxy that is coming up is probed.
const FIRST_PROBES: Duration = Duration::from_secs(1);
/// How often the base of a running guest is looked at, at most: that takes the pool's
/// lock.
const BASE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a proxy whose address is known may stay silent before it is asked why.
const PROXY_PATIENCE: Duration = Duration::from_secs(60);
/// How long a running guest's agent is waited for before a DHCP lease or the
/// neighbour table is believed: both may tell of an earlier guest.
const AGENT_PATIENCE: Duration = Duration::from_secs(60);

impl Core {
    pub(super) async fn watch(&mut self, observed: &Observed) -> Result<Next, Fault> {
        let provider = self.provider(Role::Present)?;
        self.running.get_or_insert_with(Instant::now);
        self.resumed = false;
        self.publisher.update(&self.record, |status| {
            status.set(ConditionKind::DomainRunning, true, Reason::Running, "");
        });
        if self.record.build.as_ref().is_some_and(|build| !build.started) {
            // Its start was the last that was done before the daemon died.
            self.save_build(Role::Present, |build| build.started = true).await?;
        }
        self.note_size(observed);
        self.note_base(&provider).await;
        let known = self.publisher.status().address;
        if let Some(address) = known.filter(|_| self.judge.is_answering()) {
            self.serve(address);
            return Ok(Next::resync());
        }
        let agent_only = elapsed(self.running) < AGENT_PATIENCE;
        match (provider.address(&self.guest(Role::Present), agent_only).await?, known) {
            (AddressView::Known(address), _) => self.serve(address),
            // The agent may be restarting; while the proxy answers, the address is good.
            (AddressView::Unknown { .. }, Some(address)) => self.serve(address),
            (AddressView::Unknown { answers, agent }, None) => {
                if !agent_only {
                    self.explain(&provider).await;
                }
                self.await_address(&answers);
                return Ok(Next::Wait(if agent { ADDRESS_INTERVAL } else { BOOT_INTERVAL }));
            }
        }
        Ok(Next::resync())
    }

    /// Tells what of the specification the running guest doesn't have yet.
    fn note_size(&self, observed: &Observed) {
        let lacking = match &self.record.build {
            Some(build) => build.spec.outgrown_by(&self.record.spec),
            None => Vec::new(),
        };
        let wanted = wanted_size(&self.record);
        let grown = observed
            .running
            .is_some_and(|now| (now.vcpus, now.memory_mib) != (wanted.vcpus, wanted.memory_mib));
        let (holds, reason, message) = if self.record.rebuild.is_some() {
            (false, Reason::Rebuilding, "a new guest is being made".to_owned())
        } else if let Some(setback) = &self.setback {
            (false, Reason::RebuildFailed, setback.clone())
        } else if !lacking.is_empty() {
            let message = format!("Rebuild makes a guest that has: {}", lacking.join(", "));
            (false, Reason::RebuildNeeded, message)
        } else if grown {
            let message = format!(
                "the next start has Vcpus {} and MemoryMiB {}",
                wanted.vcpus, wanted.memory_mib
            );
            (false, Reason::RestartNeeded, message)
        } else {
            (true, Reason::Applied, String::new())
        };
        self.publisher.update(&self.record, |status| {
            status.set(ConditionKind::UpToDate, holds, reason, &message);
        });
    }

    /// A running guest whose base has changed can't be helped, but whoever trusts it
    /// shall know.
    async fn note_base(&mut self, provider: &SharedProvider) {
        let Some(base) = self.base(Role::Present) else { return };
        if self.base_seen.is_some_and(|at| at.elapsed() < BASE_INTERVAL) {
            return;
        }
        self.base_seen = Some(Instant::now());
        match provider.base_unchanged(&base).await {
            Ok(()) => self.publisher.update(&self.record, |status| {
                status.set(ConditionKind::ImageReady, true, Reason::ImageVerified, "");
            }),
            Err(fault) if fault.kind == FaultKind::BaseChanged => {
                self.publisher.base_changed(&self.record, &fault);
            }
            // It can't be looked at just now, which tells nothing about it.
            Err(_) => {}
        }
    }

    /// The guest can be reached at `address`: from here on it is probed.
    fn serve(&mut self, address: Address) {
        self.starts = 0;
        self.reachable.get_or_insert_with(Instant::now);
        let (first, healthy) = (self.judge.is_first(), self.publisher.status().healthy());
        if self.publisher.status().phase != Phase::Ready {
            // It was about the missing address.
            self.explanation = Explanation::default();
        }
        let endpoint = self.target(address);
        self.publisher.update(&self.record, |status| {
            status.address = Some(address);
            status.set(ConditionKind::AddressKnown, true, Reason::Running, "");
            let stale = status.phase != Phase::Ready
                || matches!(status.reason, Reason::Fault(_) | Reason::Stopping);
            if stale && healthy {
                let message = format!("{} answers through {}", endpoint.url, endpoint.proxy);
                status.doing(Phase::Ready, Reason::Answering, message);
            } else if stale {
                let reason = if first { Reason::AwaitingProxy } else { Reason::NotAnswering };
                let message = "the address is known; the proxy is being probed";
                status.doing(Phase::Ready, reason, message);
            }
        });
        self.agenda.probe_soon();
    }

    /// Finds out why a running guest is not a proxy yet, as far as can be told.
    async fn explain(&mut self, provider: &SharedProvider) {
        let mut explanation = std::mem::take(&mut self.explanation);
        let guest = self.guest(Role::Present);
        if explanation.refresh(&self.inquiry(provider, &guest)).await
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
        let waited = Self::waited(self.running);
        self.publisher.update(&self.record, |status| {
            let why = self.why();
            let message = format!("the guest has no known address after {waited}: {answers}{why}");
            status.doing(Phase::Provisioning, Reason::AwaitingAddress, message.as_str());
            status.set(ConditionKind::AddressKnown, false, Reason::AwaitingAddress, answers);
            let hop = Hop::NoAddress.name();
            let message = format!("{hop}: {answers}");
            status.set(ConditionKind::Healthy, false, Reason::AwaitingAddress, &message);
        });
    }

    /// How long ago that was, in steps of ten seconds, so that readers are not told
    /// anew every second.
    fn waited(since: Option<Instant>) -> String {
        let seconds = elapsed(since).as_secs() / 10 * 10;
        humantime::format_duration(Duration::from_secs(seconds)).to_string()
    }

    /// Probes the proxy in the present guest.
    pub(super) async fn probe(&mut self) {
        let Some(address) = self.publisher.status().address else {
            self.agenda.no_probe();
            return;
        };
        let target = self.target(address);
        let verdict = self.prober.probe(&target).await;
        match &verdict {
            Verdict::Healthy { latency } => self.shared.metrics.answered(*latency),
            Verdict::Unhealthy { hop, .. } => self.shared.metrics.missed(*hop),
        }
        let configured = self.shared.configured();
        let healthy = self.judge.hear(&verdict, &configured.settings.health);
        match verdict {
            Verdict::Healthy { .. } if healthy => {
                self.explanation = Explanation::default();
                let told = format!("{} answers through {}", target.url, target.proxy);
                self.publisher.probed(&self.record, self.held, &told, None);
                self.guard(address).await;
            }
            Verdict::Healthy { .. } => {}
            Verdict::Unhealthy { hop, message } => {
                // Its address may be another one by now.
                if self.held.is_none() {
                    self.agenda.look_now();
                }
                if !healthy {
                    self.missed(hop, &message).await;
                }
            }
        }
        let overdue = elapsed(self.reachable) >= PROXY_PATIENCE;
        let coming_up = self.judge.is_first() && !overdue;
        let interval = self.interval();
        self.agenda.probe_in(if coming_up { FIRST_PROBES.min(interval) } else { interval });
    }

    /// It never answered since it came up, or it did and stopped: two different things.
    async fn missed(&mut self, hop: Hop, message: &str) {
        let first = self.judge.is_first();
        if first
            && elapsed(self.reachable) >= PROXY_PATIENCE
            && let Ok(provider) = self.provider(Role::Present)
        {
            self.explain(&provider).await;
        }
        let waited = Self::waited(self.reachable);
        let message = format!("{}: {message}", hop.name());
        let told =
            if first { format!("no answer after {waited}: {message}") } else { message.clone() };
        let reason = if first { Reason::AwaitingProxy } else { Reason::NotAnswering };
        let told = format!("{told}{}", self.why());
        self.publisher.probed(&self.record, self.held, &told, Some((reason, &message)));
    }
}

fn elapsed(since: Option<Instant>) -> Duration {
    since.map(|since| since.elapsed()).unwrap_or_default()
}
