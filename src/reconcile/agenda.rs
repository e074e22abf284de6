//! When a worker is due to look at its guest, and when to probe it.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Probes that are far apart are made at common moments: a process that wakes up seldom,
/// for several proxies at once, costs its host less.
const MOMENT: Duration = Duration::from_millis(500);
/// Probes that are closer than this are made on time.
const CLOSE: Duration = Duration::from_secs(10);

/// When there is something to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// At that time; at once when it is past.
    At(Instant),
    /// When ordered.
    Ordered,
}

/// When a proxy was last asked whether it serves strangers, and what it was then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) at: Instant,
    pub(super) generation: u64,
    pub(super) address: IpAddr,
}

/// The last common moment until `at`, for a delay that is not close.
fn together(at: Instant, delay: Duration) -> Instant {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    if delay < CLOSE {
        return at;
    }
    let since = at.saturating_duration_since(*BEGINNING).as_millis();
    let late = since % MOMENT.as_millis();
    at.checked_sub(Duration::from_millis(u64::try_from(late).unwrap_or(0))).unwrap_or(at)
}

/// The two clocks of a worker. They run apart: a proxy is probed on time while
/// libvirt is away.
#[derive(Debug)]
pub(super) struct Agenda {
    look: Option<Instant>,
    probe: Option<Instant>,
}

impl Default for Agenda {
    fn default() -> Self {
        Self { look: Some(Instant::now()), probe: None }
    }
}

impl Agenda {
    pub(super) fn look_now(&mut self) {
        self.look = Some(Instant::now());
    }

    pub(super) fn look_in(&mut self, delay: Duration) {
        self.look = Some(Instant::now() + delay);
    }

    pub(super) fn park(&mut self) {
        self.look = None;
    }

    pub(super) fn look_is_due(&self) -> bool {
        self.look.is_some_and(|at| at <= Instant::now())
    }

    pub(super) fn probe_in(&mut self, delay: Duration) {
        self.probe = Some(together(Instant::now() + delay, delay));
    }

    /// Has the proxy probed, if it isn't anyway.
    pub(super) fn probe_soon(&mut self) {
        self.probe.get_or_insert_with(Instant::now);
    }

    pub(super) fn no_probe(&mut self) {
        self.probe = None;
    }

    pub(super) fn probe_is_due(&self) -> bool {
        self.probe.is_some_and(|at| at <= Instant::now())
    }

    pub(super) fn is_due(&self) -> bool {
        self.look_is_due() || self.probe_is_due()
    }

    pub(super) fn due(&self) -> Due {
        let next = [self.look, self.probe].into_iter().flatten().min();
        next.map_or(Due::Ordered, Due::At)
    }
}
