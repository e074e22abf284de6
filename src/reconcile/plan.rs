//! What to do next for one Proxy: a pure function of what is wanted, what is
//! recorded and what is observed.

use crate::model::{Fault, FaultKind};
use crate::provider::{DomainView, Guest, Observed};
use crate::store::{Artifact, Build, Record};

/// One action of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Remove every part and forget the record.
    Remove,
    /// Remove the parts of a guest that no longer fits its specification.
    Discard,
    /// Take note that a guest is being made for the present specification.
    Begin,
    /// Have the base in the pool and take note of it.
    EnsureImage,
    /// Make the overlay.
    CreateOverlay,
    /// Write the seed.
    WriteSeed,
    /// Define the domain.
    Define,
    /// Start the domain.
    Start,
    /// The guest runs: learn its address and probe the proxy in it.
    Watch,
    /// The guest is held up, and only its operator may undo that: report why.
    Stalled {
        /// Why, in libvirt's words.
        reason: String,
    },
    /// Nothing can be done: report why.
    Refuse(Fault),
}

/// The next step towards what `record` wants, given what is `observed` of the guest.
/// What isn't ours is never touched: a foreign part that stands in the way is a
/// refusal, and removal goes around it.
pub fn next_step(record: &Record, guest: &Guest, observed: &Observed) -> Step {
    if record.deleting {
        return Step::Remove;
    }
    if let DomainView::Foreign { uuid } = &observed.domain {
        return Step::Refuse(foreign_domain(guest, uuid));
    }
    let Some(build) = &record.build else {
        return if observed.domain == DomainView::Absent { Step::Begin } else { Step::Discard };
    };
    if !build.spec.same_guest(&record.spec) {
        return Step::Discard;
    }
    match &observed.domain {
        DomainView::Running => Step::Watch,
        DomainView::Paused { reason } => Step::Stalled { reason: reason.clone() },
        domain => next_part(build, guest, observed, domain),
    }
}

fn next_part(build: &Build, guest: &Guest, observed: &Observed, domain: &DomainView) -> Step {
    let overlay_done = build.overlay == Artifact::Made && observed.overlay;
    if !overlay_done {
        return if foreign(build.overlay, observed.overlay) {
            Step::Refuse(foreign_volume(&crate::image::overlay_file_name(&guest.name)))
        } else if build.base.is_none() {
            Step::EnsureImage
        } else {
            Step::CreateOverlay
        };
    }
    if !(build.seed == Artifact::Made && observed.seed) {
        return if foreign(build.seed, observed.seed) {
            Step::Refuse(foreign_volume(&crate::image::seed_file_name(&guest.name)))
        } else {
            Step::WriteSeed
        };
    }
    if *domain == DomainView::Absent { Step::Define } else { Step::Start }
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
            guest.uuid
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::OnRemoval;
    use crate::model::{
        ImageFormat, Origin, ProxyName, ProxySpec, Sha256Digest, SpecInput, UrlOrigin,
    };
    use crate::store::BaseRef;

    fn spec(image: &str) -> ProxySpec {
        let input = SpecInput {
            provider: Some("home".into()),
            image: Some(image.into()),
            ..SpecInput::default()
        };
        input.validate(UrlOrigin::Api, None).unwrap()
    }

    fn base() -> BaseRef {
        BaseRef {
            file: "base-home-a.qcow2".into(),
            path: "/pool/base-home-a.qcow2".into(),
            digest: Sha256Digest::of(b""),
            format: ImageFormat::Qcow2,
            virtual_size: 1 << 30,
        }
    }

    /// A host that does what it is told, and remembers what wasn't ours.
    #[derive(Debug)]
    struct World {
        record: Record,
        observed: Observed,
        foreign_overlay: bool,
        foreign_seed: bool,
        forgotten: bool,
    }

    impl World {
        fn guest(&self) -> Guest {
            Guest { name: self.record.name.clone(), uuid: self.record.uuid }
        }

        fn step(&mut self) -> Step {
            let step = next_step(&self.record, &self.guest(), &self.observed);
            self.perform(&step);
            step
        }

        fn perform(&mut self, step: &Step) {
            match step {
                Step::Remove | Step::Discard => self.remove(*step == Step::Remove),
                Step::Begin => {
                    self.record.build = Some(Build {
                        spec: self.record.spec.clone(),
                        base: None,
                        overlay: Artifact::None,
                        seed: Artifact::None,
                        started: false,
                    });
                }
                Step::EnsureImage => self.build().base = Some(base()),
                Step::CreateOverlay => {
                    assert!(!self.foreign_overlay, "a foreign overlay was replaced");
                    assert!(self.build().base.is_some(), "an overlay without a base");
                    self.build().overlay = Artifact::Made;
                    self.observed.overlay = true;
                }
                Step::WriteSeed => {
                    assert!(!self.foreign_seed, "a foreign seed was replaced");
                    self.build().seed = Artifact::Made;
                    self.observed.seed = true;
                }
                Step::Define => {
                    assert!(self.observed.overlay && self.observed.seed);
                    self.observed.domain = DomainView::Off { reason: "shutoff".into() };
                }
                Step::Start => self.observed.domain = DomainView::Running,
                Step::Watch | Step::Stalled { .. } | Step::Refuse(_) => {}
            }
        }

        fn build(&mut self) -> &mut Build {
            self.record.build.as_mut().expect("Begin comes first")
        }

        fn remove(&mut self, forget: bool) {
            if !matches!(self.observed.domain, DomainView::Foreign { .. }) {
                self.observed.domain = DomainView::Absent;
            }
            let owned = self.record.build.take();
            let owns = |artifact: fn(&Build) -> Artifact| {
                owned.as_ref().is_some_and(|build| artifact(build) != Artifact::None)
            };
            self.observed.overlay &= !owns(|build| build.overlay);
            self.observed.seed &= !owns(|build| build.seed);
            self.forgotten = forget;
        }
    }

    fn any_domain() -> impl Strategy<Value = DomainView> {
        prop_oneof![
            Just(DomainView::Absent),
            Just(DomainView::Foreign { uuid: uuid::Uuid::from_u128(7) }),
            Just(DomainView::Off { reason: "crashed".into() }),
            Just(DomainView::Paused { reason: "ioerror".into() }),
            Just(DomainView::Running),
        ]
    }

    fn any_artifact() -> impl Strategy<Value = Artifact> {
        prop_oneof![Just(Artifact::None), Just(Artifact::Intended), Just(Artifact::Made)]
    }

    fn any_build() -> impl Strategy<Value = Option<Build>> {
        let build = (any::<bool>(), any::<bool>(), any_artifact(), any_artifact()).prop_map(
            |(same, has_base, overlay, seed)| Build {
                spec: spec(if same { "a" } else { "b" }),
                // The executor notes the base before it intends an overlay.
                base: (has_base || overlay != Artifact::None).then(base),
                overlay,
                seed,
                started: false,
            },
        );
        proptest::option::of(build)
    }

    prop_compose! {
        fn any_world()(
            deleting in any::<bool>(),
            build in any_build(),
            domain in any_domain(),
            overlay in any::<bool>(),
            seed in any::<bool>(),
        ) -> World {
            let name = ProxyName::new("x").unwrap();
            let mut record = Record::new(name, spec("a"), Origin::Api, OnRemoval::Delete);
            record.deleting = deleting;
            let owned = build.as_ref().map_or((false, false), |build| {
                (build.overlay != Artifact::None, build.seed != Artifact::None)
            });
            record.build = build;
            World {
                record,
                observed: Observed { domain, overlay, seed },
                foreign_overlay: overlay && !owned.0,
                foreign_seed: seed && !owned.1,
                forgotten: false,
            }
        }
    }

    proptest! {
        /// From any state, partial leftovers of every kind included, the goal or a
        /// named refusal is reached in bounded steps, and what isn't ours stays.
        #[test]
        fn every_state_leads_to_the_goal_or_to_a_refusal(mut world in any_world()) {
            let foreign_domain = matches!(world.observed.domain, DomainView::Foreign { .. });
            let (foreign_overlay, foreign_seed) = (world.foreign_overlay, world.foreign_seed);
            let deleting = world.record.deleting;
            let mut reached = false;
            for _ in 0..12 {
                reached = matches!(
                    world.step(),
                    Step::Watch | Step::Stalled { .. } | Step::Refuse(_)
                ) || world.forgotten;
                if reached {
                    break;
                }
            }
            prop_assert!(reached);
            prop_assert_eq!(world.forgotten, deleting);
            if foreign_domain {
                let kept = matches!(world.observed.domain, DomainView::Foreign { .. });
                prop_assert!(kept, "a foreign domain was taken");
            }
            prop_assert!(!foreign_overlay || world.observed.overlay, "a foreign overlay vanished");
            prop_assert!(!foreign_seed || world.observed.seed, "a foreign seed vanished");
        }
    }

    #[test]
    fn refusals_name_the_thing_and_the_way_out() {
        let name = ProxyName::new("x").unwrap();
        let record = Record::new(name, spec("a"), Origin::Api, OnRemoval::Delete);
        let guest = Guest { name: record.name.clone(), uuid: record.uuid };
        let domain = DomainView::Foreign { uuid: uuid::Uuid::from_u128(7) };
        let observed = Observed { domain, overlay: false, seed: false };
        let Step::Refuse(fault) = next_step(&record, &guest, &observed) else {
            panic!("a foreign domain was not refused");
        };
        assert!(fault.is_permanent());
        assert!(fault.message.contains("proxy-x") && fault.message.contains("rename"), "{fault}");
    }
}
