//! Random interleavings: two processes that fetch, evict, verify, prune and make
//! overlays, moved on one step at a time in any order, killed in between, while
//! somebody edits the configuration, deletes overlays and tears markers. After each
//! move the pool is looked at.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::agent::{Image, Orders, Outcome, Process, Said, Work};
use super::server::Server;
use super::*;
use crate::image::steps::Step;
use nix::sys::signal::Signal;

const TWIN: &str = "base-e-twin.qcow2";
const OVERLAYS: [&str; 2] = ["overlay-0", "overlay-1"];

/// What the server has at `/x` and `/mirror`.
fn one() -> Vec<u8> {
    numbered(1, 270_000)
}

/// And at `/other`.
fn two() -> Vec<u8> {
    numbered(2, 270_000)
}

#[derive(Debug, Clone, Copy)]
enum Move {
    /// The process takes so many steps, or begins this and takes them then.
    Go(usize, Order, usize),
    Kill(usize),
    Delete(usize),
    Tear,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    Ensure(Configured),
    Evict,
    Verify,
    Prune,
    Overlay(usize),
}

/// The configuration of the image, as it is edited.
#[derive(Debug, Clone, Copy)]
enum Configured {
    Unpinned,
    Pinned,
    Mirror,
    OtherUrl,
    OtherDigest,
    /// The same image of another entry.
    Twin,
}

impl Configured {
    fn image(self, server: &Server) -> Image {
        let at = |path: &str| Image::at(&server.at(path));
        match self {
            Self::Unpinned => at("/x"),
            Self::Pinned => at("/x").pinned(&one()),
            Self::Mirror => at("/mirror").pinned(&one()),
            Self::OtherUrl => at("/other"),
            Self::OtherDigest => at("/other").pinned(&two()),
            Self::Twin => at("/x").pinned(&one()).of("e", "twin"),
        }
    }
}

impl Order {
    fn work(self, server: &Server) -> Work {
        let (entry, key) = ("a-b".to_owned(), "c".to_owned());
        match self {
            Self::Ensure(configured) => configured.image(server).ensure(),
            Self::Evict => Work::Evict { entry, key },
            Self::Verify => Work::Verify { entry, key },
            Self::Prune => Work::Prune { entry, offered: Vec::new(), dry_run: false },
            Self::Overlay(number) => Work::Overlay {
                name: OVERLAYS[number].into(),
                base: BASE.into(),
                digest: Sha256Digest::of(&one()),
            },
        }
    }
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    use Configured::*;
    let configured =
        prop::sample::select(vec![Unpinned, Pinned, Pinned, Mirror, OtherUrl, OtherDigest, Twin]);
    let order = prop_oneof![
        6 => configured.prop_map(Order::Ensure),
        3 => Just(Order::Evict),
        1 => Just(Order::Verify),
        1 => Just(Order::Prune),
        4 => (0..2_usize).prop_map(Order::Overlay),
    ];
    let next = prop_oneof![
        // Short runs and long ones: some races need one process to stand still while
        // the other comes to its end.
        20 => (0..2_usize, order, prop_oneof![1..3_usize, 4..14_usize])
            .prop_map(|(process, order, steps)| Move::Go(process, order, steps)),
        2 => (0..2_usize).prop_map(Move::Kill),
        2 => (0..2_usize).prop_map(Move::Delete),
        1 => Just(Move::Tear),
    ];
    prop::collection::vec(next, 20..60)
}

/// A process as it is seen from here.
struct Seat {
    process: Process,
    /// What it does now.
    order: Option<Order>,
    /// The base that it downloads.
    downloads: Option<&'static str>,
}

struct World {
    home: TempDir,
    server: Server,
    seats: [Seat; 2],
    /// Overlays, and the inode of the base that each was seen over first.
    overlays: BTreeMap<&'static str, u64>,
}

impl World {
    fn new() -> Self {
        let home = home();
        let server = Server::with(|mut at| {
            let body = if at.path() == "/other" { two() } else { one() };
            at.respond("200 OK", "", &body);
        });
        let seats = [(); 2].map(|()| seat(home.path()));
        Self { home, server, seats, overlays: BTreeMap::new() }
    }

    fn make(&mut self, next: Move) {
        match next {
            Move::Go(number, order, steps) => {
                for _ in 0..steps {
                    self.go(number, order);
                    self.check();
                    if self.seats[number].order.is_none() {
                        break;
                    }
                }
            }
            Move::Kill(number) => {
                self.seats[number].process.signal(Signal::SIGKILL);
                let old = std::mem::replace(&mut self.seats[number], seat(self.home.path()));
                old.process.finish();
            }
            Move::Delete(number) => {
                let _ = std::fs::remove_file(self.home.path().join(OVERLAYS[number]));
            }
            Move::Tear => {
                let path = self.home.path().join(MARKER);
                if let Ok(bytes) = std::fs::read(&path) {
                    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
                }
            }
        }
        self.check();
    }

    /// One step of a process, or the begin of an order.
    fn go(&mut self, number: usize, order: Order) {
        let seat = &mut self.seats[number];
        if seat.order.is_none() {
            let work = serde_json::to_string(&order.work(&self.server)).unwrap();
            seat.process.tell(&work);
            seat.order = Some(order);
        } else {
            seat.process.tell("");
        }
        loop {
            match seat.process.next().expect("it lives") {
                Said::At(Step::Fetching) => seat.downloads = Some(downloaded_by(seat.order)),
                Said::At(Step::Received) => seat.downloads = None,
                Said::At(_) => {}
                Said::Outcome(outcome) => {
                    (seat.order, seat.downloads) = (None, None);
                    is_expected(&outcome);
                    // It goes on to wait for the next.
                    continue;
                }
                Said::Idle => {}
            }
            return;
        }
    }

    fn check(&mut self) {
        let home = self.home.path();
        let [first, second] = &self.seats;
        assert!(
            first.downloads.is_none() || first.downloads != second.downloads,
            "two downloads at once of {:?}",
            first.downloads
        );
        let pool = DirectoryPool::open(home).unwrap();
        for base in [BASE, TWIN] {
            if let MarkerState::Valid(marker) = marker(home, base)
                && pool.is_identical(base, &marker).unwrap()
            {
                let bytes = std::fs::read(home.join(base)).unwrap();
                assert_eq!(Sha256Digest::of(&bytes), marker.content(), "{base}: other bytes");
                assert!(bytes == one() || bytes == two(), "{base}: bytes nobody sent");
            }
        }
        for name in OVERLAYS {
            if !home.join(name).exists() {
                self.overlays.remove(name);
                continue;
            }
            assert!(home.join(BASE).exists(), "the base under {name} is gone");
            let now = inode(home, BASE);
            let before = *self.overlays.entry(name).or_insert(now);
            assert_eq!(before, now, "the base under {name} was replaced");
        }
        for name in listing(home) {
            let ours = name.starts_with(BASE) || name.starts_with(TWIN);
            assert!(ours || OVERLAYS.contains(&&*name), "{name} was left");
        }
    }

    /// Everybody comes to an end, and the pool can be put in order.
    fn settle(&mut self) {
        for _ in 0..2000 {
            let Some(busy) = self.seats.iter().position(|seat| seat.order.is_some()) else { break };
            // In turns: one may wait for the other.
            for number in [busy, 1 - busy] {
                if self.seats[number].order.is_some() {
                    self.make(Move::Go(number, Order::Verify, 1));
                }
            }
        }
        assert!(self.seats.iter().all(|seat| seat.order.is_none()), "nobody comes to an end");
        for number in 0..OVERLAYS.len() {
            self.make(Move::Delete(number));
        }
        let orders = [Order::Evict, Order::Ensure(Configured::Pinned)];
        let works = orders.map(|order| order.work(&self.server)).to_vec();
        Orders::new(self.home.path(), Work::All(works)).run().done();
        assert!(std::fs::read(self.home.path().join(BASE)).unwrap() == one());
        self.check();
    }
}

fn seat(home: &Path) -> Seat {
    let mut process = Orders::new(home, Work::Told).asking().spawn();
    assert_eq!(process.next(), Some(Said::Idle));
    Seat { process, order: None, downloads: None }
}

fn downloaded_by(order: Option<Order>) -> &'static str {
    match order {
        Some(Order::Ensure(Configured::Twin)) => TWIN,
        _ => BASE,
    }
}

/// Nothing happens here that these don't name.
fn is_expected(outcome: &Outcome) {
    let Outcome::Failed { kind, message, .. } = outcome else { return };
    let expected =
        ["BaseChanged", "Busy", "DigestMismatch", "ImageInUse", "NoSuchImage", "UrlMismatch"];
    assert!(expected.contains(&kind.as_str()), "{kind}: {message}");
}

/// How many interleavings a run has: more of them with `make soak`.
fn cases() -> u32 {
    std::env::var("PROXYD_SOAK_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(40)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_iters: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_interleaving_breaks_the_cache(moves in moves()) {
        let mut world = World::new();
        for next in moves {
            world.make(next);
        }
        world.settle();
    }
}
