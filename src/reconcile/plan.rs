//! What to do next for one Proxy: a pure function of what is wanted, what is
//! recorded and what is observed.

use crate::model::{Fault, FaultKind, Guest, ProxySpec};
use crate::provider::{DomainView, Observed, Size};
use crate::store::{Artifact, Build, Power, Rebuild, Record};

/// Which of a Proxy's guests a step is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The one that serves.
    Present,
    /// The one that shall take over.
    Next,
}

/// One action of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Remove every part of every guest.
    Remove,
    /// Remove the parts of the present guest, which is to be made anew.
    Discard,
    /// Remove the parts of a guest that was replaced or given up.
    Retire,
    /// Take note that a guest is being made for the present specification.
    Begin(Role),
    /// Have the base in the pool and take note of it.
    EnsureImage(Role),
    /// Make the overlay.
    CreateOverlay(Role),
    /// Write the seed.
    WriteSeed(Role),
    /// Define the domain, or change its definition.
    Define(Role),
    /// Start the domain.
    Start(Role),
    /// Shut the guest down.
    Stop,
    /// It is off, as it was ordered to be.
    Rest,
    /// A disk error paused the guest: have it go on.
    Resume,
    /// The guest runs: learn its address and probe the proxy in it.
    Watch,
    /// The successor runs: see whether it answers.
    Await,
    /// The successor can't be made: give it up, and the present guest stays.
    Abandon(Fault),
    /// The guest is held up, and only its operator may undo that: report why.
    Stalled {
        /// Why, in libvirt's words.
        reason: String,
    },
    /// Nothing can be done: report why.
    Refuse(Fault),
}

impl Step {
    /// Whether nothing is left to be done for the guest that it is about, now.
    fn is_settled(&self) -> bool {
        matches!(self, Self::Watch | Self::Rest | Self::Stalled { .. } | Self::Refuse(_))
    }
}

/// What is seen of a Proxy's guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scene {
    /// The present guest, or what stands where it shall be.
    pub present: Observed,
    /// The successor, when one is being made.
    pub next: Option<Observed>,
}

/// The size that a domain shall have.
pub fn wanted_size(record: &Record) -> Size {
    let ProxySpec { vcpus, memory_mib, autostart, .. } = record.spec;
    // One that was ordered off must not come up with its host.
    Size { vcpus, memory_mib, autostart: autostart && record.power == Power::On }
}

/// The next step towards what `record` wants, given what is seen. What isn't ours is
/// never touched: a foreign part that stands in the way is a refusal, and removal goes
/// around it.
pub fn next_step(record: &Record, scene: &Scene) -> Step {
    if record.deleting {
        return Step::Remove;
    }
    if record.retired.is_some() {
        return Step::Retire;
    }
    let step = for_present(record, &scene.present);
    match (record.rebuild, &record.next) {
        (Some(Rebuild::Overlap { .. }), _) if step.is_settled() => {
            for_next(record, scene.next.as_ref())
        }
        // The order was changed to another one meanwhile.
        (Some(Rebuild::Plain) | None, Some(_)) => {
            let why = "the new guest is no longer wanted";
            Step::Abandon(Fault::new(FaultKind::Canceled, why))
        }
        _ => step,
    }
}

fn for_present(record: &Record, observed: &Observed) -> Step {
    let guest = record.guest(record.slot());
    let Some(build) = &record.build else {
        return match &observed.domain {
            DomainView::Foreign { uuid } => Step::Refuse(foreign_domain(&guest, uuid)),
            DomainView::Absent if record.power == Power::Off => Step::Rest,
            DomainView::Absent => Step::Begin(Role::Present),
            _ => Step::Discard,
        };
    };
    // What has never run can't be lost: it is made for what is wanted now.
    let unfinished = !build.started && !build.spec.outgrown_by(&record.spec).is_empty();
    if unfinished || record.rebuild == Some(Rebuild::Plain) {
        return Step::Discard;
    }
    if let DomainView::Foreign { uuid } = &observed.domain {
        return Step::Refuse(foreign_domain(&guest, uuid));
    }
    let defined = observed.defined == Some(wanted_size(record));
    let down = record.power == Power::Off || record.restart;
    match &observed.domain {
        DomainView::Running | DomainView::Paused { .. } if down => Step::Stop,
        _ if record.power == Power::Off && (defined || observed.defined.is_none()) => Step::Rest,
        _ if record.power == Power::Off => Step::Define(Role::Present),
        DomainView::Running | DomainView::Paused { .. } if !defined => Step::Define(Role::Present),
        DomainView::Running => Step::Watch,
        // QEMU pauses a guest whose disk has an error, most often a full pool.
        DomainView::Paused { reason } if reason == "ioerror" => Step::Resume,
        DomainView::Paused { reason } => Step::Stalled { reason: reason.clone() },
        DomainView::Absent | DomainView::Off { .. } | DomainView::Foreign { .. } => {
            next_part(Role::Present, build, &guest, observed).unwrap_or(if defined {
                Step::Start(Role::Present)
            } else {
                Step::Define(Role::Present)
            })
        }
    }
}

/// The successor needs nothing but to come up and answer.
fn for_next(record: &Record, observed: Option<&Observed>) -> Step {
    let (Some(build), Some(observed)) = (&record.next, observed) else {
        return Step::Begin(Role::Next);
    };
    let guest = record.guest(build.slot);
    if !build.spec.outgrown_by(&record.spec).is_empty() {
        let why = "the specification has changed meanwhile";
        return Step::Abandon(Fault::new(FaultKind::Canceled, why));
    }
    let complete = build.overlay == Artifact::Made && build.seed == Artifact::Made;
    match &observed.domain {
        DomainView::Running | DomainView::Paused { .. } if !complete => {
            let why = "an earlier guest was left in its place, and is removed";
            Step::Abandon(Fault::new(FaultKind::DomainFailed, why))
        }
        DomainView::Foreign { uuid } => Step::Abandon(foreign_domain(&guest, uuid)),
        DomainView::Running => Step::Await,
        DomainView::Paused { reason } => Step::Abandon(Fault::new(
            FaultKind::DomainFailed,
            format!("the new guest is paused ({reason})"),
        )),
        DomainView::Absent | DomainView::Off { .. } => {
            match next_part(Role::Next, build, &guest, observed) {
                Some(Step::Refuse(fault)) => Step::Abandon(fault),
                Some(step) => step,
                None if observed.defined.is_none() => Step::Define(Role::Next),
                None => Step::Start(Role::Next),
            }
        }
    }
}

/// What is to be made before there can be a domain; nothing when all is there.
fn next_part(role: Role, build: &Build, guest: &Guest, observed: &Observed) -> Option<Step> {
    let overlay_done = build.overlay == Artifact::Made && observed.overlay;
    if !overlay_done {
        return Some(if foreign(build.overlay, observed.overlay) {
            Step::Refuse(foreign_volume(&guest.overlay()))
        } else if build.base.is_none() {
            Step::EnsureImage(role)
        } else {
            Step::CreateOverlay(role)
        });
    }
    if build.seed == Artifact::Made && observed.seed {
        return None;
    }
    Some(if foreign(build.seed, observed.seed) {
        Step::Refuse(foreign_volume(&guest.seed()))
    } else {
        Step::WriteSeed(role)
    })
}

/// What is missing of a guest that was whole, for the journal: somebody took it.
/// `before` is the definition that was there when it was last looked at.
pub fn losses(record: &Record, observed: &Observed, before: Option<Size>) -> Vec<&'static str> {
    let Some(build) = record.build.as_ref().filter(|build| build.started) else {
        return Vec::new();
    };
    let parts = [
        ("its domain was undefined", observed.defined.is_none()),
        (
            "its domain's definition was changed",
            observed.defined.zip(before).is_some_and(|(now, before)| now != before),
        ),
        ("its overlay is gone", build.overlay == Artifact::Made && !observed.overlay),
        ("its seed is gone", build.seed == Artifact::Made && !observed.seed),
    ];
    let foreign = matches!(observed.domain, DomainView::Foreign { .. });
    parts.into_iter().filter(|(_, lost)| *lost && !foreign).map(|(what, _)| what).collect()
}

/// A volume that exists although none was ever intended belongs to somebody else.
fn foreign(artifact: Artifact, exists: bool) -> bool {
    artifact == Artifact::None && exists
}

fn foreign_domain(guest: &Guest, uuid: &uuid::Uuid) -> Fault {
    Fault::new(
        FaultKind::ForeignDomain,
        format!(
            "the domain {} has the UUID {uuid}, not this Proxy's {}: it isn't ours and stays \
             untouched; rename or undefine it, or choose another name for the Proxy",
            guest.domain_name(),
            guest.domain_uuid()
        ),
    )
}

fn foreign_volume(name: &str) -> Fault {
    Fault::new(
        FaultKind::ForeignFile,
        format!(
            "the volume {name} exists and was not made for this Proxy: it stays untouched; \
             remove or rename it, or choose another name for the Proxy"
        ),
    )
}

#[cfg(test)]
mod tests;
