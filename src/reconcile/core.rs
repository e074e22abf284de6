//! One Proxy's record, and the actions that bring it forward. A turn looks at what
//! is there, takes the one step that the plan names, and says when to come back.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::explain::{Explanation, Inquiry};
use super::plan::{Step, next_step};
use super::publish::Publisher;
use super::{Command, Shared, backoff, source};
use crate::evidence::Known;
use crate::health::Prober;
use crate::image::{ImageSource, Progress};
use crate::journal;
use crate::model::{ConditionKind, Fault, FaultKind, Firmware, Phase, Reason, Timestamp};
use crate::provider::{DomainView, Guest, Observed, Owned, Shape, SharedProvider};
use crate::seed::{self, SeedInput};
use crate::store::{Artifact, BaseRef, Build, Record};

/// When the worker comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// At once.
    Again,
    /// After a while, or when ordered.
    Wait(Duration),
    /// Only when ordered.
    Park,
    /// Never: the Proxy is gone.
    Gone,
}

pub(super) struct Core {
    pub(super) record: Record,
    pub(super) guest: Guest,
    pub(super) shared: Arc<Shared>,
    pub(super) publisher: Publisher,
    /// Failed attempts in a row.
    attempts: u32,
    /// Failed probes in a row.
    pub(super) misses: u32,
    pub(super) prober: Prober,
    /// Starts since the guest last had an address.
    pub(super) starts: u32,
    /// Whether the wait that precedes another start is over.
    rested: bool,
    pub(super) explanation: Explanation,
    /// The step of the last turn.
    last: Option<std::mem::Discriminant<Step>>,
}

impl Core {
    pub(super) fn new(record: Record, shared: Arc<Shared>, publisher: Publisher) -> Self {
        let guest = Guest { name: record.name.clone(), uuid: record.uuid };
        Self {
            record,
            guest,
            shared,
            publisher,
            attempts: 0,
            misses: 0,
            prober: Prober::default(),
            starts: 0,
            rested: true,
            explanation: Explanation::default(),
            last: None,
        }
    }

    /// Looks, takes one step, and publishes how it went.
    pub(super) async fn turn(&mut self, cancel: &CancellationToken) -> Next {
        match self.advance(cancel).await {
            Ok(next) => {
                self.attempts = 0;
                next
            }
            Err(_) if cancel.is_cancelled() => Next::Again,
            Err(fault) => self.after(&fault),
        }
    }

    /// Publishes `fault` and decides when to try again.
    fn after(&mut self, fault: &Fault) -> Next {
        self.attempts = self.attempts.saturating_add(1).max(self.starts);
        if fault.is_permanent() {
            self.publisher.fault(&self.record, fault, None);
            return Next::Park;
        }
        let delay = backoff::delay(fault.kind, self.attempts, rand::random());
        self.publisher.fault(&self.record, fault, Some(Timestamp::now().after(delay)));
        Next::Wait(delay)
    }

    async fn advance(&mut self, cancel: &CancellationToken) -> Result<Next, Fault> {
        self.note_configuration();
        if self.record.deleting && self.record.build.is_none() {
            return self.forget().await;
        }
        let provider = self.shared.configured().providers.get(self.record.entry())?;
        let observed = provider.observe(&self.guest).await?;
        self.note(&observed);
        let step = next_step(&self.record, &self.guest, &observed);
        let repeated =
            self.last.replace(std::mem::discriminant(&step)) == Some(std::mem::discriminant(&step));
        let next = self.perform(step, &observed, &provider, cancel).await?;
        // A step that is due again at once did not do what it said: don't spin.
        let spinning = repeated && next == Next::Again;
        Ok(if spinning { Next::Wait(Duration::from_secs(1)) } else { next })
    }

    async fn perform(
        &mut self,
        step: Step,
        observed: &Observed,
        provider: &SharedProvider,
        cancel: &CancellationToken,
    ) -> Result<Next, Fault> {
        match step {
            Step::Refuse(fault) => Err(fault),
            Step::Stalled { reason } => Err(self.inquiry(provider).paused(&reason).await),
            Step::Remove | Step::Discard => self.discard(provider).await,
            Step::Begin => self.begin().await,
            Step::EnsureImage => self.ensure_image(provider, cancel).await,
            Step::CreateOverlay => self.create_overlay(provider).await,
            Step::WriteSeed => self.write_seed(provider).await,
            Step::Define => self.define(provider).await,
            Step::Start => self.start(provider, observed).await,
            Step::Watch => self.watch(provider).await,
        }
    }

    /// Carries out an order, and acknowledges it once it is recorded.
    pub(super) async fn accept(&mut self, order: Command) {
        let mut record = self.record.clone();
        let ack = match order {
            Command::Nudge => return,
            Command::Delete { ack } => {
                record.deleting = true;
                ack
            }
            Command::Respec { spec, origin, on_removal, ack } => {
                if record.spec != *spec {
                    record.generation += 1;
                    record.spec = *spec;
                }
                (record.origin, record.on_removal) = (origin, on_removal);
                ack
            }
        };
        let saved = self.shared.save(&record).await;
        if saved.is_ok() {
            self.record = record;
            self.attempts = 0;
            self.publisher.update(&self.record, |status| {
                if self.record.deleting {
                    status.doing(Phase::Deleting, Reason::Removing, "removing its parts");
                } else if status.phase == Phase::Failed {
                    status.doing(Phase::Provisioning, Reason::Queued, "trying again");
                }
            });
        }
        // Whoever asked may have gone away meanwhile.
        let _ = ack.send(saved);
    }

    fn doing(&self, reason: Reason, message: impl Into<String>) {
        let message = message.into();
        self.publisher.update(&self.record, |status| {
            status.doing(Phase::Provisioning, reason, message);
        });
    }

    /// Keeps what depends on the configuration alone up to date.
    fn note_configuration(&self) {
        let wanted = self.image().ok();
        let build = self.record.build.as_ref();
        let base = build.and_then(|build| build.base.as_ref());
        let outdated = match (base, wanted.as_ref().and_then(|(source, _)| source.pin.digest())) {
            (Some(base), Some(wanted)) => base.digest != wanted,
            _ => false,
        };
        let digest = base.map(|base| base.digest);
        self.publisher.update(&self.record, |status| {
            status.image_url = wanted.map(|(source, _)| source.url);
            status.image_outdated = outdated;
            status.image_digest = digest;
            status.set(
                ConditionKind::ImageReady,
                digest.is_some(),
                if digest.is_some() { Reason::ImageVerified } else { Reason::Queued },
                "",
            );
        });
    }

    /// Takes over what is seen of the domain.
    fn note(&mut self, observed: &Observed) {
        let running = observed.domain == DomainView::Running;
        if running {
            return;
        }
        self.misses = 0;
        self.explanation = Explanation::default();
        self.publisher.update(&self.record, |status| {
            let why = match &observed.domain {
                DomainView::Off { reason } | DomainView::Paused { reason } => reason.as_str(),
                _ => "there is no domain",
            };
            status.address = None;
            for kind in
                [ConditionKind::DomainRunning, ConditionKind::AddressKnown, ConditionKind::Healthy]
            {
                status.set(kind, false, Reason::NotRunning, why);
            }
        });
    }

    async fn save_build(&mut self, change: impl FnOnce(&mut Build)) -> Result<(), Fault> {
        let mut record = self.record.clone();
        if let Some(build) = &mut record.build {
            change(build);
        }
        self.save(record).await
    }

    async fn save(&mut self, record: Record) -> Result<(), Fault> {
        self.shared.save(&record).await?;
        self.record = record;
        Ok(())
    }

    async fn forget(&mut self) -> Result<Next, Fault> {
        self.shared.forget(&self.record.name).await?;
        tracing::info!(
            message_id = journal::PROXY_REMOVED,
            proxyd_proxy = %self.record.name,
            proxyd_provider = %self.record.entry(),
            "Proxy {}: removed", self.record.name
        );
        Ok(Next::Gone)
    }

    /// Removes the guest's parts and takes note that there are none.
    async fn discard(&mut self, provider: &SharedProvider) -> Result<Next, Fault> {
        if !self.record.deleting {
            self.doing(Reason::Removing, "removing a guest that no longer fits the specification");
        }
        let owned = self.record.build.as_ref().map_or(Owned::default(), |build| Owned {
            overlay: build.overlay != Artifact::None,
            seed: build.seed != Artifact::None,
        });
        provider.remove(&self.guest, owned).await?;
        let mut record = self.record.clone();
        record.build = None;
        self.save(record).await?;
        Ok(Next::Again)
    }

    async fn begin(&mut self) -> Result<Next, Fault> {
        self.doing(Reason::Observing, "looking at what the guest needs");
        let mut record = self.record.clone();
        record.builds += 1;
        record.build = Some(Build {
            spec: record.spec.clone(),
            base: None,
            overlay: Artifact::None,
            seed: Artifact::None,
            started: false,
        });
        self.save(record).await?;
        Ok(Next::Again)
    }

    async fn ensure_image(
        &mut self,
        provider: &SharedProvider,
        cancel: &CancellationToken,
    ) -> Result<Next, Fault> {
        let (source, firmware) = self.image()?;
        provider.preflight(firmware).await?;
        self.doing(Reason::FetchingImage, format!("having {} in the pool", source.url));
        let progress = Progress::default();
        let work = provider.ensure_image(&source, &progress, cancel);
        let base = self.telling(&progress, &source, work).await?;
        tracing::info!(
            message_id = journal::IMAGE_READY,
            proxyd_proxy = %self.record.name,
            proxyd_provider = %source.entry,
            proxyd_image = %source.key,
            "Proxy {}: its image {} is in the pool, sha256 {}",
            self.record.name, base.file, base.digest
        );
        self.save_build(|build| build.base = Some(base)).await?;
        Ok(Next::Again)
    }

    /// Publishes `progress` every second while `work` goes on.
    async fn telling<T>(
        &self,
        progress: &Progress,
        source: &ImageSource,
        work: impl Future<Output = T>,
    ) -> T {
        tokio::pin!(work);
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = tick.tick() => {
                    let message = format!("{progress} ({})", source.url);
                    self.doing(Reason::FetchingImage, message);
                }
            }
        }
    }

    async fn create_overlay(&mut self, provider: &SharedProvider) -> Result<Next, Fault> {
        let Some(base) = self.base() else { return Ok(Next::Again) };
        self.doing(Reason::CreatingOverlay, format!("making an overlay over {}", base.file));
        let size = source::disk_size(&self.record.spec, &base)?;
        self.save_build(|build| build.overlay = Artifact::Intended).await?;
        match provider.create_overlay(&self.guest, &base, size).await {
            Ok(()) => self.save_build(|build| build.overlay = Artifact::Made).await?,
            // It was evicted or replaced since it was ensured: nothing hangs on it yet.
            Err(fault) if fault.kind == FaultKind::BaseChanged => {
                self.save_build(|build| build.base = None).await?;
                return Ok(Next::Wait(Duration::from_secs(1)));
            }
            Err(fault) => return Err(fault),
        }
        Ok(Next::Again)
    }

    async fn write_seed(&mut self, provider: &SharedProvider) -> Result<Next, Fault> {
        self.doing(Reason::WritingSeed, "writing the cloud-init seed");
        let configured = self.shared.configured();
        let settings = configured.settings.providers.get(self.record.entry());
        let content = seed::render(&SeedInput {
            name: &self.record.name,
            uuid: self.record.uuid,
            seed_generation: self.record.builds,
            spec: &self.record.spec,
            install_guest_agent: self.shared.wants_agent(self.record.entry()),
            vendor_data: settings.and_then(|entry| entry.vendor_data.as_ref()),
        })?;
        self.save_build(|build| build.seed = Artifact::Intended).await?;
        provider.write_seed(&self.guest, content).await?;
        self.save_build(|build| build.seed = Artifact::Made).await?;
        Ok(Next::Again)
    }

    async fn define(&mut self, provider: &SharedProvider) -> Result<Next, Fault> {
        self.doing(Reason::DefiningDomain, "defining the domain");
        let (_, firmware) = self.image()?;
        let Some(base) = self.base() else { return Ok(Next::Again) };
        let spec = &self.record.spec;
        let shape = Shape {
            vcpus: spec.vcpus,
            memory_mib: spec.memory_mib,
            firmware,
            autostart: spec.autostart,
            generation: self.record.generation,
            base,
        };
        provider.define(&self.guest, &shape).await?;
        Ok(Next::Again)
    }

    async fn start(
        &mut self,
        provider: &SharedProvider,
        observed: &Observed,
    ) -> Result<Next, Fault> {
        if self.starts > 0 && !std::mem::replace(&mut self.rested, true) {
            return Err(self.inquiry(provider).stopped(&observed.domain).await);
        }
        self.doing(Reason::StartingDomain, "starting the domain");
        let Some(base) = self.base() else { return Ok(Next::Again) };
        let first = self.record.build.as_ref().is_some_and(|build| !build.started);
        provider.start(&self.guest, &base, first).await?;
        if first {
            self.save_build(|build| build.started = true).await?;
        }
        self.starts = self.starts.saturating_add(1);
        self.rested = false;
        Ok(Next::Again)
    }

    pub(super) fn inquiry<'a>(&'a self, provider: &'a SharedProvider) -> Inquiry<'a> {
        let known = Known {
            heard: self.publisher.status().is_heard(),
            agent_wanted: self.shared.wants_agent(self.record.entry()),
        };
        Inquiry { provider, guest: &self.guest, known }
    }

    fn base(&self) -> Option<BaseRef> {
        self.record.build.as_ref().and_then(|build| build.base.clone())
    }

    /// The image that the specification names, as the configuration has it now.
    fn image(&self) -> Result<(ImageSource, Firmware), Fault> {
        source::resolve(&self.shared.configured().settings, &self.record.spec)
    }
}
