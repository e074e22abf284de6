use proptest::prelude::*;

use super::*;
use crate::config::OnRemoval;
use crate::model::{ImageFormat, Origin, ProxyName, Sha256Digest, Slot, SpecInput, UrlOrigin};
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

fn absent() -> Observed {
    let domain = DomainView::Absent;
    Observed { domain, defined: None, running: None, overlay: false, seed: false }
}

/// What stands in one slot of a host.
#[derive(Debug, Clone)]
struct Site {
    observed: Observed,
    foreign_overlay: bool,
    foreign_seed: bool,
}

impl Site {
    fn is_foreign(&self) -> bool {
        matches!(self.observed.domain, DomainView::Foreign { .. })
    }
}

/// A host that does what it is told, and remembers what wasn't ours.
#[derive(Debug)]
struct World {
    record: Record,
    sites: [Site; 2],
    forgotten: bool,
}

impl World {
    fn scene(&self) -> Scene {
        let seen = |slot: Slot| self.sites[slot as usize].observed.clone();
        let next = self.record.next.as_ref().map(|build| seen(build.slot));
        Scene { present: seen(self.record.slot()), next }
    }

    fn step(&mut self) -> Step {
        let step = next_step(&self.record, &self.scene());
        self.perform(&step);
        step
    }

    fn site(&mut self, role: Role) -> &mut Site {
        let slot = self.build(role).slot;
        &mut self.sites[slot as usize]
    }

    fn build(&mut self, role: Role) -> &mut Build {
        let build = match role {
            Role::Present => &mut self.record.build,
            Role::Next => &mut self.record.next,
        };
        build.as_mut().expect("Begin comes first")
    }

    fn perform(&mut self, step: &Step) {
        match step {
            Step::Remove => {
                for build in
                    [&mut self.record.build, &mut self.record.next, &mut self.record.retired]
                        .map(Option::take)
                {
                    self.remove(build);
                }
                let slot = self.record.slot();
                self.remove_domain(slot);
                self.forgotten = true;
            }
            Step::Discard => {
                let (slot, build) = (self.record.slot(), self.record.build.take());
                self.remove_domain(slot);
                self.remove(build);
                self.record.rebuild = None;
            }
            Step::Retire => {
                let build = self.record.retired.take();
                self.remove(build);
            }
            Step::Begin(Role::Present) => {
                let build = Build::new(self.record.spec.clone(), self.record.slot(), 1);
                self.record.build = Some(build);
            }
            Step::Begin(Role::Next) => {
                let slot = self.record.slot().other();
                self.record.next = Some(Build::new(self.record.spec.clone(), slot, 2));
            }
            Step::EnsureImage(role) => self.build(*role).base = Some(base()),
            Step::CreateOverlay(role) => {
                assert!(!self.site(*role).foreign_overlay, "a foreign overlay was replaced");
                assert!(self.build(*role).base.is_some(), "an overlay without a base");
                self.build(*role).overlay = Artifact::Made;
                self.site(*role).observed.overlay = true;
            }
            Step::WriteSeed(role) => {
                assert!(!self.site(*role).foreign_seed, "a foreign seed was replaced");
                self.build(*role).seed = Artifact::Made;
                self.site(*role).observed.seed = true;
            }
            Step::Define(role) => {
                let size = wanted_size(&self.record);
                let site = self.site(*role);
                assert!(!site.is_foreign(), "a foreign domain was redefined");
                site.observed.defined = Some(size);
                if site.observed.domain == DomainView::Absent {
                    assert!(site.observed.overlay && site.observed.seed);
                    site.observed.domain = DomainView::Off { reason: "shutoff".into() };
                }
            }
            Step::Start(role) => {
                let site = self.site(*role);
                assert!(site.observed.defined.is_some(), "an undefined domain was started");
                site.observed.domain = DomainView::Running;
                self.build(*role).started = true;
                self.record.restart = false;
            }
            Step::Stop => {
                let site = self.site(Role::Present);
                site.observed.domain = match site.observed.defined {
                    Some(_) => DomainView::Off { reason: "shutdown".into() },
                    None => DomainView::Absent,
                };
            }
            Step::Resume => self.site(Role::Present).observed.domain = DomainView::Running,
            Step::Await => {
                let next = self.record.next.as_mut().expect("one is awaited");
                assert!(next.overlay == Artifact::Made && next.seed == Artifact::Made);
                next.started = true;
                self.record.retired = self.record.build.take();
                self.record.build = self.record.next.take();
                self.record.rebuild = None;
            }
            Step::Abandon(_) => {
                self.record.retired = self.record.next.take();
                if self.record.rebuild != Some(Rebuild::Plain) {
                    self.record.rebuild = None;
                }
            }
            Step::Watch | Step::Rest | Step::Stalled { .. } | Step::Refuse(_) => {}
        }
    }

    fn remove_domain(&mut self, slot: Slot) {
        let site = &mut self.sites[slot as usize];
        if !site.is_foreign() {
            site.observed.domain = DomainView::Absent;
            site.observed.defined = None;
        }
    }

    /// As a provider removes: the domain by its UUID, and the volumes that are owned.
    fn remove(&mut self, build: Option<Build>) {
        let Some(build) = build else { return };
        self.remove_domain(build.slot);
        let site = &mut self.sites[build.slot as usize];
        site.observed.overlay &= build.overlay == Artifact::None;
        site.observed.seed &= build.seed == Artifact::None;
    }
}

fn any_domain() -> impl Strategy<Value = DomainView> {
    prop_oneof![
        Just(DomainView::Absent),
        Just(DomainView::Foreign { uuid: uuid::Uuid::from_u128(7) }),
        Just(DomainView::Off { reason: "crashed".into() }),
        Just(DomainView::Paused { reason: "ioerror".into() }),
        Just(DomainView::Paused { reason: "user".into() }),
        Just(DomainView::Running),
    ]
}

prop_compose! {
    fn any_observed()(
        domain in any_domain(),
        defined in proptest::option::of(any::<bool>()),
        overlay in any::<bool>(),
        seed in any::<bool>(),
    ) -> Observed {
        let size = |right: bool| {
            let wanted = wanted_size(&record());
            Size { vcpus: if right { wanted.vcpus } else { 7 }, ..wanted }
        };
        // A domain that doesn't run has a definition, or isn't there.
        let defined = match domain {
            DomainView::Absent | DomainView::Foreign { .. } => None,
            DomainView::Off { .. } => Some(size(defined.unwrap_or(true))),
            DomainView::Paused { .. } | DomainView::Running => defined.map(size),
        };
        Observed { domain, defined, running: None, overlay, seed }
    }
}

fn any_artifact() -> impl Strategy<Value = Artifact> {
    prop_oneof![Just(Artifact::None), Just(Artifact::Intended), Just(Artifact::Made)]
}

prop_compose! {
    fn any_build(slot: Slot)(
        same in any::<bool>(),
        has_base in any::<bool>(),
        overlay in any_artifact(),
        seed in any_artifact(),
        started in any::<bool>(),
    ) -> Build {
        let mut build = Build::new(spec(if same { "a" } else { "b" }), slot, 1);
        // The executor notes the base before it intends an overlay, and starts last.
        build.base = (has_base || overlay != Artifact::None).then(base);
        (build.overlay, build.seed) = (overlay, seed);
        build.started = started && overlay == Artifact::Made && seed == Artifact::Made;
        build
    }
}

prop_compose! {
    fn any_record()(
        deleting in any::<bool>(),
        off in any::<bool>(),
        restart in any::<bool>(),
        rebuild in prop_oneof![
            Just(None), Just(Some(Rebuild::Plain)), Just(Some(Rebuild::Overlap { patience: 60 }))
        ],
        build in proptest::option::of(any_build(Slot::A)),
        next in proptest::option::of(any_build(Slot::B)),
        retire in any::<bool>(),
    ) -> Record {
        let name = ProxyName::new("x").unwrap();
        let mut record = Record::new(name, spec("a"), Origin::Api, OnRemoval::Delete);
        record.deleting = deleting;
        record.power = if off { Power::Off } else { Power::On };
        record.restart = restart;
        // Only a guest that is there is replaced beside itself.
        let plain = |how: &Rebuild| *how == Rebuild::Plain;
        record.rebuild = rebuild.filter(|how| build.is_some() && (!off || plain(how)));
        let other = next.filter(|_| build.is_some());
        if retire { record.retired = other } else { record.next = other }
        record.build = build;
        record
    }
}

prop_compose! {
    fn any_world()(
        record in any_record(),
        a in any_observed(),
        b in any_observed(),
    ) -> World {
        let site = |observed: Observed, slot: Slot| {
            let owner = record.all_builds().find(|build| build.slot == slot);
            let owns = |part: fn(&Build) -> Artifact| {
                owner.is_some_and(|build| part(build) != Artifact::None)
            };
            Site {
                foreign_overlay: observed.overlay && !owns(|build| build.overlay),
                foreign_seed: observed.seed && !owns(|build| build.seed),
                observed,
            }
        };
        let sites = [site(a, Slot::A), site(b, Slot::B)];
        World { record, sites, forgotten: false }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// From any state, partial leftovers of every kind included, the goal or a named
    /// refusal is reached in bounded steps, and what isn't ours stays.
    #[test]
    fn every_state_leads_to_the_goal_or_to_a_refusal(mut world in any_world()) {
        let before = world.sites.clone();
        let (deleting, power) = (world.record.deleting, world.record.power);
        let mut last = None;
        for _ in 0..30 {
            let step = world.step();
            let done = step.is_settled() || world.forgotten;
            last = Some(step);
            if done {
                break;
            }
        }
        let settled = last.as_ref().is_some_and(Step::is_settled);
        prop_assert!(settled || world.forgotten, "not settled: {last:?}");
        prop_assert_eq!(world.forgotten, deleting);
        for (before, after) in before.iter().zip(&world.sites) {
            prop_assert!(!before.is_foreign() || after.is_foreign(), "a foreign domain was taken");
            let kept = |was: bool, is: bool| !was || is;
            prop_assert!(kept(before.foreign_overlay, after.observed.overlay), "overlay taken");
            prop_assert!(kept(before.foreign_seed, after.observed.seed), "seed taken");
        }
        // Settled without a refusal, the guest is as ordered, and there is no second one.
        if matches!(last, Some(Step::Watch | Step::Rest)) {
            prop_assert_eq!(matches!(last, Some(Step::Watch)), power == Power::On);
            prop_assert!(world.record.next.is_none() && world.record.retired.is_none());
            prop_assert!(!world.record.restart || power == Power::Off);
            prop_assert_eq!(world.record.rebuild, None);
        }
    }
}

fn record() -> Record {
    let name = ProxyName::new("x").unwrap();
    Record::new(name, spec("a"), Origin::Api, OnRemoval::Delete)
}

fn scene(present: Observed) -> Scene {
    Scene { present, next: None }
}

#[test]
fn refusals_name_the_thing_and_the_way_out() {
    let mut record = record();
    let foreign = uuid::Uuid::from_u128(7);
    let observed = Observed { domain: DomainView::Foreign { uuid: foreign }, ..absent() };
    let Step::Refuse(fault) = next_step(&record, &scene(observed)) else {
        panic!("a foreign domain was accepted");
    };
    assert!(fault.is_permanent());
    for part in ["proxy-x", &foreign.to_string(), &record.uuid.to_string(), "another name"] {
        assert!(fault.message.contains(part), "{fault}");
    }
    record.build = Some(Build::new(spec("a"), Slot::A, 1));
    let Step::Refuse(fault) = next_step(&record, &scene(Observed { overlay: true, ..absent() }))
    else {
        panic!("a foreign overlay was accepted");
    };
    assert!(fault.message.contains("proxy-x.qcow2"), "{fault}");
}

#[test]
fn a_running_guest_waits_for_an_order_to_be_made_anew() {
    let mut record = record();
    let mut build = Build::new(spec("b"), Slot::A, 1);
    (build.base, build.overlay, build.seed) = (Some(base()), Artifact::Made, Artifact::Made);
    build.started = true;
    record.build = Some(build);
    let size = Some(wanted_size(&record));
    let running = Observed {
        domain: DomainView::Running,
        defined: size,
        running: size,
        overlay: true,
        seed: true,
    };
    assert_eq!(next_step(&record, &scene(running.clone())), Step::Watch);
    record.rebuild = Some(Rebuild::Overlap { patience: 60 });
    assert_eq!(next_step(&record, &scene(running.clone())), Step::Begin(Role::Next));
    record.rebuild = Some(Rebuild::Plain);
    assert_eq!(next_step(&record, &scene(running)), Step::Discard);
}

#[test]
fn what_was_taken_from_a_guest_is_named() {
    let mut record = record();
    let mut build = Build::new(spec("a"), Slot::A, 1);
    (build.overlay, build.seed, build.started) = (Artifact::Made, Artifact::Made, true);
    record.build = Some(build);
    let gone = ["its domain was undefined", "its overlay is gone", "its seed is gone"];
    assert_eq!(losses(&record, &absent(), None), gone);
    let before = Some(wanted_size(&record));
    let size = Size { vcpus: 9, ..wanted_size(&record) };
    let resized = Observed {
        domain: DomainView::Off { reason: "shutdown".into() },
        defined: Some(size),
        running: None,
        overlay: true,
        seed: true,
    };
    assert_eq!(losses(&record, &resized, before), ["its domain's definition was changed"]);
}
