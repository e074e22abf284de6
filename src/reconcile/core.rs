//! One Proxy's record, and what brings it forward. A turn looks at what is there, takes
//! the one step that the plan names, probes when that is due, and says when to come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::agenda::{Agenda, Asked, Due};
use super::explain::{Explanation, Inquiry};
use super::plan::{Role, Scene, Step, losses, next_step};
use super::publish::Publisher;
use super::{Shared, backoff, source};
use crate::evidence::Known;
use crate::health::{Judge, Prober};
use crate::image::ImageSource;
use crate::journal;
use crate::model::{
    ConditionKind, EntryName, Fault, FaultKind, Firmware, Guest, Phase, ProxySpec, Reason,
    Sha256Digest, Timestamp,
};
use crate::provider::{DomainView, Observed, SharedProvider, Size};
use crate::store::{BaseRef, Build, Power, Rebuild, Record};

/// How often a guest that needs nothing is looked at: libvirt's events tell what
/// happens, and this is for what they missed.
const RESYNC: Duration = Duration::from_secs(300);

/// When the worker looks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// At once.
    Again,
    /// After a while, or when something happens, or when ordered.
    Wait(Duration),
    /// Only when ordered.
    Park,
    /// Never: the Proxy is gone.
    Gone,
}

impl Next {
    /// When something happens, or else after a long while, not in step with others.
    pub(super) fn resync() -> Self {
        Self::Wait(backoff::jittered(RESYNC, rand::random()))
    }
}

pub(super) struct Core {
    pub(super) record: Record,
    pub(super) shared: Arc<Shared>,
    pub(super) publisher: Publisher,
    pub(super) agenda: Agenda,
    /// Rung when something happens to a guest or to its host.
    bell: Arc<Notify>,
    /// Failed attempts in a row.
    pub(super) attempts: u32,
    /// The fault that the next look waits for.
    pub(super) held: Option<FaultKind>,
    pub(super) prober: Prober,
    pub(super) judge: Judge,
    /// Starts since the guest last had an address.
    pub(super) starts: u32,
    /// Whether the wait that precedes another start is over.
    pub(super) rested: bool,
    pub(super) explanation: Explanation,
    /// Whether the guest was resumed after a disk error, and hasn't run since.
    pub(super) resumed: bool,
    /// When the guest was asked to shut down.
    pub(super) stopping: Option<Instant>,
    /// Since when a successor is being made.
    pub(super) succession: Option<Instant>,
    /// Why the last successor was given up.
    pub(super) setback: Option<String>,
    /// When the base was last looked at.
    pub(super) base_seen: Option<Instant>,
    /// When the exposure guard last asked.
    pub(super) asked: Option<Asked>,
    /// Since when the guest runs, and since when its address is known: by a clock that
    /// nobody sets.
    pub(super) running: Option<Instant>,
    pub(super) reachable: Option<Instant>,
    /// The definition that was there at the last look.
    pub(super) defined: Option<Size>,
    /// What was missing at the last look.
    missing: Vec<&'static str>,
    /// The step of the last look.
    last: Option<std::mem::Discriminant<Step>>,
}

impl Core {
    pub(super) fn new(record: Record, shared: Arc<Shared>, publisher: Publisher) -> Self {
        let core = Self {
            record,
            shared,
            publisher,
            agenda: Agenda::default(),
            bell: Arc::default(),
            attempts: 0,
            held: None,
            prober: Prober::default(),
            judge: Judge::default(),
            starts: 0,
            rested: true,
            explanation: Explanation::default(),
            resumed: false,
            stopping: None,
            succession: None,
            setback: None,
            base_seen: None,
            asked: None,
            running: None,
            reachable: None,
            defined: None,
            missing: Vec::new(),
            last: None,
        };
        core.listen();
        core
    }

    /// Has what happens to either guest ring this worker's bell.
    pub(super) fn listen(&self) {
        self.shared.bells.hang(self.record.entry(), &self.domains(), &self.bell);
    }

    fn domains(&self) -> [uuid::Uuid; 2] {
        let slot = self.record.slot();
        [slot, slot.other()].map(|slot| self.record.guest(slot).domain_uuid())
    }

    /// What rings when something happens.
    pub(super) fn bell(&self) -> Arc<Notify> {
        self.bell.clone()
    }

    /// Something happened. What waits after a fault goes on waiting, else a guest that
    /// dies at each start would be started without a rest; a host that is back is
    /// looked at, whatever is waited for.
    pub(super) fn rung(&mut self) {
        let back = self.held == Some(FaultKind::ProviderUnavailable);
        if self.held.is_none() || back {
            self.agenda.look_now();
        }
    }

    /// Looks and probes, as far as each is due. Nothing when the Proxy is gone.
    pub(super) async fn turn(&mut self, cancel: &CancellationToken) -> Option<Due> {
        if self.agenda.look_is_due() {
            match self.look(cancel).await {
                Next::Gone => {
                    self.shared.bells.take_down(&self.domains());
                    return None;
                }
                Next::Again => self.agenda.look_now(),
                Next::Wait(delay) => self.agenda.look_in(delay),
                Next::Park => self.agenda.park(),
            }
        }
        if self.agenda.probe_is_due() {
            self.probe().await;
        }
        Some(self.agenda.due())
    }

    async fn look(&mut self, cancel: &CancellationToken) -> Next {
        match self.advance(cancel).await {
            Ok(next) => {
                self.attempts = 0;
                self.held = None;
                next
            }
            Err(_) if cancel.is_cancelled() => Next::Again,
            Err(fault) => self.after(&fault),
        }
    }

    /// Publishes `fault` and decides when to try again.
    fn after(&mut self, fault: &Fault) -> Next {
        self.attempts = self.attempts.saturating_add(1).max(self.starts);
        self.held = Some(fault.kind);
        self.shared.metrics.failed(fault.kind);
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
        if self.record.deleting && self.record.all_builds().next().is_none() {
            return self.forget().await;
        }
        let scene = self.observe().await?;
        self.note(&scene.present);
        let step = next_step(&self.record, &scene);
        let this = std::mem::discriminant(&step);
        let repeated = self.last.replace(this) == Some(this);
        let next = self.perform(step, &scene, cancel).await?;
        // A step that is due again at once did not do what it said: don't spin.
        let spinning = repeated && next == Next::Again;
        Ok(if spinning { Next::Wait(Duration::from_secs(1)) } else { next })
    }

    async fn observe(&self) -> Result<Scene, Fault> {
        let present = self.provider(Role::Present)?.observe(&self.guest(Role::Present)).await?;
        let next = match &self.record.next {
            Some(_) => Some(self.provider(Role::Next)?.observe(&self.guest(Role::Next)).await?),
            None => None,
        };
        Ok(Scene { present, next })
    }

    async fn perform(
        &mut self,
        step: Step,
        scene: &Scene,
        cancel: &CancellationToken,
    ) -> Result<Next, Fault> {
        match step {
            Step::Refuse(fault) => Err(fault),
            Step::Stalled { reason } => self.stalled(&reason).await,
            Step::Remove => self.remove().await,
            Step::Discard => self.discard().await,
            Step::Retire => self.retire().await,
            Step::Stop => self.stop(&scene.present.domain).await,
            Step::Rest => self.rest(),
            Step::Resume => self.resume().await,
            Step::Watch => self.watch(&scene.present).await,
            Step::Await => self.await_next().await,
            Step::Abandon(fault) => self.abandon(&fault).await,
            Step::Begin(Role::Present)
            | Step::EnsureImage(Role::Present)
            | Step::CreateOverlay(Role::Present)
            | Step::WriteSeed(Role::Present)
            | Step::Define(Role::Present)
            | Step::Start(Role::Present) => self.make(step, &scene.present, cancel).await,
            step => {
                let seen = scene.next.as_ref().unwrap_or(&scene.present);
                let made = self.make(step, seen, cancel).await;
                self.tolerate(made, cancel).await
            }
        }
    }

    pub(super) fn doing(&self, role: Role, reason: Reason, message: impl Into<String>) {
        let message = message.into();
        self.publisher.update(&self.record, |status| match role {
            Role::Present => status.doing(Phase::Provisioning, reason, message),
            // The present guest serves on: only the condition tells.
            Role::Next => {
                let message = format!("the new guest: {message}");
                status.set(ConditionKind::UpToDate, false, Reason::Rebuilding, &message);
            }
        });
    }

    /// Keeps what depends on the configuration alone up to date.
    fn note_configuration(&self) {
        let wanted = self.image(&self.record.spec).ok();
        let build = self.record.build.as_ref();
        let base = build.and_then(|build| build.base.as_ref());
        let outdated = match (base, &wanted) {
            (Some(base), Some((source, _))) => is_outdated(build, base, source),
            _ => false,
        };
        let digest = base.map(|base| base.digest);
        self.publisher.update(&self.record, |status| {
            status.image_url = wanted.map(|(source, _)| source.url);
            status.image_outdated = outdated;
            status.image_digest = digest;
            // What was found out about the base while its guest ran stays.
            let unknown = status.reason_of(ConditionKind::ImageReady) == Reason::Queued.as_str();
            if digest.is_none() || unknown {
                let reason = if digest.is_some() { Reason::ImageVerified } else { Reason::Queued };
                status.set(ConditionKind::ImageReady, digest.is_some(), reason, "");
            }
        });
    }

    /// Takes over what is seen of the present guest, and tells of what changed by
    /// another hand.
    fn note(&mut self, observed: &Observed) {
        let missing = losses(&self.record, observed, self.defined.take());
        if !self.is_ordered_away() && missing != self.missing && !missing.is_empty() {
            self.publisher.drift(&self.record, &missing.join(", "));
        }
        self.missing = missing;
        self.defined = observed.defined;
        if observed.domain == DomainView::Running {
            return;
        }
        let why = match &observed.domain {
            DomainView::Off { reason } | DomainView::Paused { reason } => reason.as_str(),
            _ => "there is no domain",
        };
        if self.publisher.status().holds(ConditionKind::DomainRunning) && !self.is_ordered_away() {
            self.publisher.stopped(&self.record, why);
        }
        self.judge = Judge::default();
        (self.running, self.reachable, self.asked) = (None, None, None);
        self.agenda.no_probe();
        self.explanation = Explanation::default();
        self.publisher.update(&self.record, |status| {
            status.address = None;
            for kind in
                [ConditionKind::DomainRunning, ConditionKind::AddressKnown, ConditionKind::Healthy]
            {
                status.set(kind, false, Reason::NotRunning, why);
            }
        });
    }

    /// Whether the present guest is on its way out, or down, by an order.
    fn is_ordered_away(&self) -> bool {
        let Record { deleting, restart, rebuild, power, .. } = &self.record;
        *deleting || *restart || *rebuild == Some(Rebuild::Plain) || *power == Power::Off
    }

    pub(super) fn build(&self, role: Role) -> Option<&Build> {
        match role {
            Role::Present => self.record.build.as_ref(),
            Role::Next => self.record.next.as_ref(),
        }
    }

    pub(super) fn guest(&self, role: Role) -> Guest {
        let slot = match (role, self.build(role)) {
            (_, Some(build)) => build.slot,
            (Role::Present, None) => self.record.slot(),
            (Role::Next, None) => self.record.slot().other(),
        };
        self.record.guest(slot)
    }

    /// The entry that runs, or shall run, the guest.
    pub(super) fn entry(&self, role: Role) -> &EntryName {
        self.build(role).map_or(&self.record.spec.provider, |build| &build.spec.provider)
    }

    pub(super) fn provider(&self, role: Role) -> Result<SharedProvider, Fault> {
        self.shared.configured().providers.get(self.entry(role))
    }

    pub(super) async fn save_build(
        &mut self,
        role: Role,
        change: impl FnOnce(&mut Build),
    ) -> Result<(), Fault> {
        let mut record = self.record.clone();
        let build = match role {
            Role::Present => &mut record.build,
            Role::Next => &mut record.next,
        };
        build.as_mut().map(change);
        self.save(record).await
    }

    pub(super) async fn save(&mut self, record: Record) -> Result<(), Fault> {
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

    pub(super) fn inquiry<'a>(
        &self,
        provider: &'a SharedProvider,
        guest: &'a Guest,
    ) -> Inquiry<'a> {
        let known = Known {
            heard: self.publisher.status().is_heard(),
            agent_wanted: self.shared.wants_agent(self.record.entry()),
        };
        Inquiry { provider, guest, known }
    }

    pub(super) fn base(&self, role: Role) -> Option<BaseRef> {
        self.build(role).and_then(|build| build.base.clone())
    }

    /// The image that `spec` names, as the configuration has it now.
    pub(super) fn image(&self, spec: &ProxySpec) -> Result<(ImageSource, Firmware), Fault> {
        source::resolve(&self.shared.configured().settings, spec)
    }
}

/// Where an image is fetched from, without telling any credentials.
pub(super) fn source_of(image: &ImageSource) -> Sha256Digest {
    Sha256Digest::of(image.url.expose().as_str().as_bytes())
}

/// Whether the configuration now means another image than the guest was made from:
/// another digest, or, where none is pinned, another place to fetch it from.
fn is_outdated(build: Option<&Build>, base: &BaseRef, wanted: &ImageSource) -> bool {
    let source = build.and_then(|build| build.source);
    let moved = source.is_some_and(|source| source != source_of(wanted));
    wanted.pin.digest().map_or(moved, |digest| digest != base.digest)
}
