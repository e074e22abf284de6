//! Death at every moment: what is left is the old state or the new one, and the next
//! one to come makes it good.

use nix::sys::signal::Signal;

use super::agent::{Action, Finished, Image, Orders, Process, Work};
use super::server::Server;
use super::*;
use crate::image::inspect::tests::overlay;
use crate::image::steps::Step;

fn old() -> Vec<u8> {
    numbered(1, 300_000)
}

fn new() -> Vec<u8> {
    numbered(2, 300_000)
}

/// What the pool may hold at any moment: no half base under a valid marker, and
/// nothing with a name that isn't to stay.
fn check(home: &Path, good: &[&[u8]]) {
    if let MarkerState::Valid(marker) = marker(home, BASE)
        && let Ok(bytes) = std::fs::read(home.join(BASE))
        && DirectoryPool::open(home).unwrap().is_identical(BASE, &marker).unwrap()
    {
        let digest = Sha256Digest::of(&bytes);
        assert_eq!(marker.content(), digest, "a valid marker vouches for other bytes");
        assert!(good.iter().any(|good| *good == bytes));
    }
    for name in listing(home) {
        let known = [BASE, MARKER, LOCK, "base-a-b-c.qcow2.json.new", "theirs"];
        let twin = name.starts_with("base-e-twin.qcow2");
        assert!(known.contains(&name.as_str()) || twin, "{name} was left");
    }
}

/// A state of the pool, and work that begins in it.
struct Scene {
    name: &'static str,
    prepare: fn(&Path, &str),
    work: fn(&str) -> Work,
    steps: &'static [Step],
    /// What the work comes to, once nobody dies.
    after: fn(&Path, &Finished),
}

fn is_new(home: &Path, finished: &Finished) {
    finished.done();
    assert!(std::fs::read(home.join(BASE)).unwrap() == new());
    check(home, &[&new()]);
    assert!(!home.join("base-a-b-c.qcow2.json.new").exists());
}

fn fetched(home: &Path, url: &str) {
    Orders::new(home, Image::at(url).ensure()).run().done();
}

const PUBLICATION: [Step; 12] = [
    Step::Locked,
    Step::Fetching,
    Step::Writing,
    Step::Received,
    Step::Verified,
    Step::Durable,
    Step::MarkerDurable,
    Step::Fenced,
    Step::OldMarkerRemoved,
    Step::Linked,
    Step::LinkDurable,
    Step::MarkerLinked,
];

const SCENES: [Scene; 9] = [
    Scene {
        name: "nothing is there",
        prepare: |_, _| {},
        work: |url| Image::at(url).ensure(),
        steps: &PUBLICATION,
        after: is_new,
    },
    Scene {
        name: "debris is there",
        prepare: |home, _| std::fs::write(home.join(BASE), b"half").unwrap(),
        work: |url| Image::at(url).ensure(),
        steps: &[
            Step::Fenced,
            Step::OldMarkerRemoved,
            Step::DebrisRemoved,
            Step::Linked,
            Step::LinkDurable,
            Step::MarkerLinked,
            Step::Published,
        ],
        after: is_new,
    },
    Scene {
        name: "the base was written to",
        prepare: |home, url| {
            fetched(home, url);
            std::fs::remove_file(home.join(BASE)).unwrap();
            std::fs::write(home.join(BASE), old()).unwrap();
        },
        work: |url| Image::at(url).ensure(),
        steps: &[Step::Hashed, Step::OldMarkerRemoved, Step::DebrisRemoved, Step::Linked],
        after: is_new,
    },
    Scene {
        name: "a digest appears",
        prepare: fetched,
        work: |url| Image::at(url).pinned(&new()).ensure(),
        steps: &[Step::Hashed, Step::Fenced, Step::MarkerStaged, Step::MarkerReplaced],
        after: is_new,
    },
    Scene {
        name: "the mirror changes",
        prepare: |home, url| {
            Orders::new(home, Image::at(url).pinned(&new()).ensure()).run().done();
        },
        work: |url| Image::at(&format!("{url}?mirror")).pinned(&new()).ensure(),
        steps: &[Step::Fenced, Step::MarkerStaged, Step::MarkerReplaced],
        after: is_new,
    },
    Scene {
        name: "another entry has the same image",
        prepare: |home, url| {
            let twin = Image::at(url).of("e", "twin").pinned(&new());
            Orders::new(home, twin.ensure()).run().done();
        },
        work: |url| Image::at(&format!("{url}?mirror")).pinned(&new()).ensure(),
        steps: &[Step::Copied, Step::Verified, Step::Durable, Step::Linked, Step::MarkerLinked],
        after: is_new,
    },
    Scene {
        name: "the base is lost under an overlay",
        prepare: |home, url| {
            fetched(home, url);
            std::fs::write(home.join("theirs"), overlay(BASE)).unwrap();
            std::fs::remove_file(home.join(BASE)).unwrap();
        },
        work: |url| Image::at(url).ensure(),
        steps: &[
            Step::Fetching,
            Step::Fenced,
            Step::Linked,
            Step::LinkDurable,
            Step::MarkerStaged,
            Step::MarkerReplaced,
        ],
        after: is_new,
    },
    Scene {
        name: "an overlay is made",
        prepare: fetched,
        work: |_| Work::Overlay {
            name: "theirs".into(),
            base: BASE.into(),
            digest: Sha256Digest::of(&new()),
        },
        steps: &[Step::Fenced, Step::Unchanged],
        after: |home, finished| {
            is_new(home, finished);
            assert!(home.join("theirs").exists());
        },
    },
    Scene {
        name: "it is evicted",
        prepare: fetched,
        work: |_| Work::Evict { entry: "a-b".into(), key: "c".into() },
        steps: &[Step::Fenced, Step::EvictedMarker, Step::EvictedMarkerDurable, Step::EvictedBase],
        after: |home, finished| {
            // Gone already, or gone now.
            assert!(
                matches!(&finished.outcome, Some(super::agent::Outcome::Done(_)))
                    || finished.fault().0 == "NoSuchImage"
            );
            assert_eq!(listing(home), [LOCK]);
        },
    },
];

#[test]
fn death_at_every_step_leaves_the_old_or_the_new() {
    let server = Server::of(&new());
    let mut reached = std::collections::BTreeSet::new();
    for scene in &SCENES {
        for step in scene.steps {
            let home = home();
            (scene.prepare)(home.path(), &server.url);
            let orders = Orders::new(home.path(), (scene.work)(&server.url));
            let died = orders.clone().at(*step, Action::Kill).run();
            assert!(died.was_killed(), "{}: {step:?} is not passed: {died:?}", scene.name);
            check(home.path(), &[&new()]);
            (scene.after)(home.path(), &orders.run());
            reached.insert(*step);
        }
    }
    // Those two are other processes' doing, and no death.
    let all: std::collections::BTreeSet<_> = Step::ALL
        .into_iter()
        .filter(|step| ![Step::LockBusy, Step::FenceBusy].contains(step))
        .collect();
    assert_eq!(reached, all, "every step needs a death");
}

/// Under an overlay of somebody else, death never takes the base away.
#[test]
fn death_takes_no_base_from_under_an_overlay() {
    let server = Server::of(&new());
    for step in [Step::Locked, Step::Hashed, Step::Fenced, Step::MarkerStaged] {
        let home = home();
        std::fs::write(home.path().join(BASE), new()).unwrap();
        std::fs::write(home.path().join("theirs"), overlay(BASE)).unwrap();
        let before = inode(home.path(), BASE);
        let orders = Orders::new(home.path(), Image::at(&server.url).pinned(&new()).ensure());
        assert!(orders.clone().at(step, Action::Kill).run().was_killed(), "{step:?}");
        assert_eq!(inode(home.path(), BASE), before);
        orders.run().done();
        assert_eq!(inode(home.path(), BASE), before);
        assert_eq!(server.requests(), 0);
    }
}

/// How many deaths a run is to have: more of them with `make soak`.
fn deaths() -> usize {
    std::env::var("PROXYD_SOAK_DEATHS").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

/// Four processes fetch, evict, verify and hash the same image for as long as they
/// live, which is not long.
#[test]
fn random_deaths_under_load() {
    let server = Server::with(|mut at| {
        // In pieces, so that deaths fall into downloads, too.
        let answer = super::server::response("200 OK", "", &new());
        for piece in answer.chunks(64 << 10) {
            at.send(piece);
        }
    });
    let home = home();
    let orders = Orders::new(
        home.path(),
        Work::Forever(vec![
            Image::at(&server.url).ensure(),
            Image::at(&server.url).pinned(&new()).ensure(),
            Work::Verify { entry: "a-b".into(), key: "c".into() },
            Work::Evict { entry: "a-b".into(), key: "c".into() },
            Work::Prune { entry: "a-b".into(), offered: Vec::new(), dry_run: false },
        ]),
    );
    let mut processes: Vec<Process> = (0..4).map(|_| orders.spawn()).collect();
    for death in 0..deaths() {
        std::thread::sleep(std::time::Duration::from_micros(u64::from(rand::random::<u16>()) / 2));
        let process = std::mem::replace(&mut processes[death % 4], orders.spawn());
        process.signal(Signal::SIGKILL);
        drop(process.finish());
        // Nobody moves while the pool is looked at.
        let pool = DirectoryPool::open(home.path()).unwrap();
        let _fence = pool.fence().unwrap();
        check(home.path(), &[&new()]);
    }
    drop(processes);
    let pinned = Image::at(&server.url).pinned(&new());
    is_new(home.path(), &Orders::new(home.path(), pinned.ensure()).run());
    assert_eq!(listing(home.path()), [BASE, MARKER, LOCK]);
}
