//! The steps that make a guest, and take it down.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::core::{Core, Next, source_of};
use super::plan::{Role, Step, wanted_size};
use super::source;
use crate::image::{ImageSource, Progress};
use crate::journal;
use crate::model::{Fault, FaultKind, Phase, Pin, Reason};
use crate::provider::{DomainView, Observed, Owned, Shape, SharedProvider};
use crate::store::{Artifact, BaseRef, Build};

/// How long a guest may take to shut down before it is ended.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(30);
/// How often a guest that shuts down is looked at, should its event be missed.
const SHUTDOWN_INTERVAL: Duration = Duration::from_secs(2);
/// How long a guest that was resumed has to run into its disk error again.
const RESUME_INTERVAL: Duration = Duration::from_secs(5);

impl Core {
    /// Takes a step that makes a guest, the present one or the next.
    pub(super) async fn make(
        &mut self,
        step: Step,
        observed: &Observed,
        cancel: &CancellationToken,
    ) -> Result<Next, Fault> {
        match step {
            Step::EnsureImage(role) => self.ensure_image(role, cancel).await?,
            Step::CreateOverlay(role) => return self.create_overlay(role).await,
            Step::WriteSeed(role) => self.write_seed(role).await?,
            Step::Define(role) => self.define(role, observed).await?,
            Step::Start(role) => self.start(role, observed, cancel).await?,
            Step::Begin(role) => self.begin(role).await?,
            _ => {}
        }
        Ok(Next::Again)
    }

    async fn begin(&mut self, role: Role) -> Result<(), Fault> {
        self.doing(role, Reason::Observing, "looking at what the guest needs");
        let mut record = self.record.clone();
        record.builds += 1;
        let slot = self.guest(role).slot;
        let build = Some(Build::new(record.spec.clone(), slot, record.builds));
        match role {
            Role::Present => record.build = build,
            Role::Next => {
                record.next = build;
                self.succession = Some(Instant::now());
            }
        }
        self.save(record).await?;
        // The specification may name another entry than the last guest had.
        self.listen();
        Ok(())
    }

    async fn ensure_image(&mut self, role: Role, cancel: &CancellationToken) -> Result<(), Fault> {
        let Some(spec) = self.build(role).map(|build| build.spec.clone()) else { return Ok(()) };
        let (source, firmware) = self.image(&spec)?;
        self.provider(role)?.preflight(firmware).await?;
        let base = self.fetch(role, &source, cancel).await?;
        tracing::info!(
            message_id = journal::IMAGE_READY,
            proxyd_proxy = %self.record.name,
            proxyd_provider = %source.entry,
            proxyd_image = %source.key,
            "Proxy {}: its image {} is in the pool, sha256 {}",
            self.record.name, base.file, base.digest
        );
        self.save_build(role, |build| {
            build.base = Some(base);
            build.source = Some(source_of(&source));
            build.firmware = Some(firmware);
        })
        .await
    }

    async fn fetch(
        &mut self,
        role: Role,
        source: &ImageSource,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        self.doing(role, Reason::FetchingImage, format!("having {} in the pool", source.url));
        let (provider, shared) = (self.provider(role)?, self.shared.clone());
        let progress = Progress::default();
        let work = shared.ensure_image(&provider, source, &progress, cancel);
        self.telling(role, &progress, source, work).await
    }

    /// Whoever removes a base and dies in the middle leaves it without a marker, under
    /// this guest perhaps: has it hashed, so that the next attempt finds it as it was.
    async fn restore_marker(
        &mut self,
        role: Role,
        base: &BaseRef,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        let Some(spec) = self.build(role).map(|build| build.spec.clone()) else { return Ok(()) };
        // What is no longer offered can't be fetched to compare.
        let Ok((mut source, _)) = self.image(&spec) else { return Ok(()) };
        if source.base_name() == base.file {
            source.pin = Pin::Digest(base.digest);
            self.fetch(role, &source, cancel).await?;
        }
        Ok(())
    }

    /// Publishes `progress` every second while `work` goes on, and has the present
    /// guest probed on time.
    async fn telling<T>(
        &mut self,
        role: Role,
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
                    self.doing(role, Reason::FetchingImage, message);
                    if self.agenda.probe_is_due() {
                        self.probe().await;
                    }
                }
            }
        }
    }

    async fn create_overlay(&mut self, role: Role) -> Result<Next, Fault> {
        let (Some(base), Some(build)) = (self.base(role), self.build(role)) else {
            return Ok(Next::Again);
        };
        let size = source::disk_size(&build.spec, &base.file, base.virtual_size)?;
        let message = format!("making an overlay over {}", base.file);
        self.doing(role, Reason::CreatingOverlay, message);
        self.save_build(role, |build| build.overlay = Artifact::Intended).await?;
        let (provider, guest) = (self.provider(role)?, self.guest(role));
        match provider.create_overlay(&guest, &base, size).await {
            Ok(()) => self.save_build(role, |build| build.overlay = Artifact::Made).await?,
            // It was evicted or replaced since it was ensured, or is just now: nothing
            // hangs on it yet.
            Err(fault) if matches!(fault.kind, FaultKind::BaseChanged | FaultKind::Busy) => {
                self.save_build(role, |build| build.base = None).await?;
                return Ok(Next::Wait(Duration::from_secs(1)));
            }
            Err(fault) => return Err(fault),
        }
        Ok(Next::Again)
    }

    /// The seed of what the guest was made for: what has changed since is for the next.
    async fn write_seed(&mut self, role: Role) -> Result<(), Fault> {
        self.doing(role, Reason::WritingSeed, "writing the cloud-init seed");
        let Some(build) = self.build(role) else { return Ok(()) };
        let content = self.shared.seed(&self.guest(role), build.number, &build.spec)?;
        let (provider, guest) = (self.provider(role)?, self.guest(role));
        self.save_build(role, |build| build.seed = Artifact::Intended).await?;
        provider.write_seed(&guest, content).await?;
        self.save_build(role, |build| build.seed = Artifact::Made).await
    }

    async fn define(&mut self, role: Role, observed: &Observed) -> Result<(), Fault> {
        let (Some(base), Some(build)) = (self.base(role), self.build(role)) else { return Ok(()) };
        if observed.domain == DomainView::Absent {
            self.doing(role, Reason::DefiningDomain, "defining the domain");
        }
        let firmware = match build.firmware {
            Some(firmware) => firmware,
            None => self.image(&build.spec)?.1,
        };
        let (size, generation) = (wanted_size(&self.record), self.record.generation);
        let shape = Shape { size, firmware, generation, base };
        self.provider(role)?.define(&self.guest(role), &shape).await?;
        if role == Role::Present {
            self.defined = Some(size);
        }
        Ok(())
    }

    async fn start(
        &mut self,
        role: Role,
        observed: &Observed,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        let (provider, guest) = (self.provider(role)?, self.guest(role));
        if role == Role::Present && self.starts > 0 && !std::mem::replace(&mut self.rested, true) {
            return Err(self.inquiry(&provider, &guest).stopped(&observed.domain).await);
        }
        self.doing(role, Reason::StartingDomain, "starting the domain");
        let Some(base) = self.base(role) else { return Ok(()) };
        let first = self.build(role).is_some_and(|build| !build.started);
        if self.record.restart {
            // Before the start: cut short here, it is started all the same.
            let mut record = self.record.clone();
            record.restart = false;
            self.save(record).await?;
        }
        if let Err(fault) = provider.start(&guest, &base, first).await {
            if fault.kind == FaultKind::Busy
                && let Err(why) = self.restore_marker(role, &base, cancel).await
            {
                // What can't be had anew says nothing of what is there.
                let damaged = why.kind == FaultKind::BaseChanged;
                let text = format!("{}: {}", fault.message, why.message);
                return Err(if damaged { why } else { Fault::new(FaultKind::Busy, text) });
            }
            return Err(self.inquiry(&provider, &guest).not_started(fault).await);
        }
        if first {
            self.save_build(role, |build| build.started = true).await?;
        }
        self.stopping = None;
        if role == Role::Present {
            self.starts = self.starts.saturating_add(1);
            self.rested = false;
        }
        Ok(())
    }

    /// Shuts the guest down; one that doesn't heed is ended.
    pub(super) async fn stop(&mut self, domain: &DomainView) -> Result<Next, Fault> {
        let since = *self.stopping.get_or_insert_with(Instant::now);
        let deaf = matches!(domain, DomainView::Paused { .. });
        let force = deaf || since.elapsed() >= SHUTDOWN_PATIENCE;
        self.publisher.update(&self.record, |status| {
            let message = "waiting for the guest to shut down";
            status.doing(status.phase, Reason::Stopping, message);
        });
        self.provider(Role::Present)?.shut_down(&self.guest(Role::Present), force).await?;
        Ok(if force { Next::Again } else { Next::Wait(SHUTDOWN_INTERVAL) })
    }

    /// It is off, as ordered.
    pub(super) fn rest(&mut self) -> Result<Next, Fault> {
        self.stopping = None;
        self.starts = 0;
        self.publisher.update(&self.record, |status| {
            let message = "off by order: Start brings it back";
            status.doing(Phase::Stopped, Reason::Stopped, message);
        });
        Ok(Next::resync())
    }

    /// A disk error passes when its cause does: the guest tries its request again.
    pub(super) async fn resume(&mut self) -> Result<Next, Fault> {
        let (provider, guest) = (self.provider(Role::Present)?, self.guest(Role::Present));
        if std::mem::take(&mut self.resumed) {
            // Between two attempts there is a rest, and the reason is told.
            return Err(self.inquiry(&provider, &guest).paused("ioerror").await);
        }
        provider.resume(&guest).await?;
        self.resumed = true;
        Ok(Next::Wait(RESUME_INTERVAL))
    }

    /// Somebody paused it. What they meant by that is theirs to end.
    pub(super) async fn stalled(&mut self, reason: &str) -> Result<Next, Fault> {
        let (provider, guest) = (self.provider(Role::Present)?, self.guest(Role::Present));
        let fault = self.inquiry(&provider, &guest).paused(reason).await;
        self.publisher.fault(&self.record, &fault, None);
        // An event tells when it goes on.
        Ok(Next::resync())
    }

    /// Removes everything there is of the Proxy, but for its record.
    pub(super) async fn remove(&mut self) -> Result<Next, Fault> {
        let builds: Vec<Build> = self.record.all_builds().cloned().collect();
        for build in &builds {
            self.clear(build).await?;
        }
        let mut record = self.record.clone();
        (record.build, record.next, record.retired) = (None, None, None);
        self.save(record).await?;
        Ok(Next::Again)
    }

    /// Removes the present guest, which is to be made anew.
    pub(super) async fn discard(&mut self) -> Result<Next, Fault> {
        self.doing(Role::Present, Reason::Removing, "removing the guest that is to be made anew");
        let nothing = || Build::new(self.record.spec.clone(), self.record.slot(), 0);
        let build = self.record.build.clone().unwrap_or_else(nothing);
        self.clear(&build).await?;
        let mut record = self.record.clone();
        (record.build, record.rebuild, record.restart) = (None, None, false);
        self.save(record).await?;
        (self.starts, self.setback) = (0, None);
        Ok(Next::Again)
    }

    /// Removes a guest that was replaced or given up.
    pub(super) async fn retire(&mut self) -> Result<Next, Fault> {
        if let Some(build) = self.record.retired.clone() {
            self.clear(&build).await?;
        }
        let mut record = self.record.clone();
        record.retired = None;
        self.save(record).await?;
        Ok(Next::Again)
    }

    async fn clear(&self, build: &Build) -> Result<(), Fault> {
        let owned =
            Owned { overlay: build.overlay != Artifact::None, seed: build.seed != Artifact::None };
        let provider: SharedProvider =
            self.shared.configured().providers.get(&build.spec.provider)?;
        provider.remove(&self.record.guest(build.slot), owned).await
    }
}
