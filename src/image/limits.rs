//! The bounds of the cache's patience and of what it takes in.

use std::time::Duration;

/// How long things may take, and how large they may be. The tests have tighter ones.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// For a connection to a server to come about.
    pub(super) connect: Duration,
    /// The longest silence of a server.
    pub(super) stall: Duration,
    /// The fewest bytes that a server has to send in that time: a trickle is a stall.
    pub(super) least: u64,
    /// Attempts in a row that gain nothing before a download is given up for now.
    pub(super) attempts: u32,
    /// The wait after the first of them; it doubles with each.
    pub(super) first_delay: Duration,
    /// The longest of these waits.
    pub(super) last_delay: Duration,
    /// The largest image, as downloaded and as unpacked: a larger one is a mistake,
    /// or an attack.
    pub(super) image_bytes: u64,
    /// What may be unpacked whatever the ratio to the bytes that it came from.
    pub(super) unpacked_bytes: u64,
    /// The largest such ratio beyond that. Disks that are mostly empty come near it.
    pub(super) unpacked_ratio: u64,
    /// How long the holder of an image's lock is waited for, before the wait is given
    /// up to be begun again later.
    pub(super) lock: Duration,
    /// The longest time between two looks whether the lock is free.
    pub(super) lock_poll: Duration,
    /// How often those who wait say so.
    pub(super) lock_note: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            stall: Duration::from_secs(30),
            least: 16 << 10,
            attempts: 5,
            first_delay: Duration::from_secs(1),
            last_delay: Duration::from_secs(30),
            image_bytes: 64 << 30,
            unpacked_bytes: 1 << 30,
            unpacked_ratio: 1000,
            lock: Duration::from_secs(3600),
            lock_poll: Duration::from_millis(500),
            lock_note: Duration::from_secs(60),
        }
    }
}

impl Limits {
    /// How long to wait after `failures` attempts in a row; `chance` in 0..1 spreads
    /// the waits of many.
    pub(super) fn delay(&self, failures: u32, chance: f64) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        let whole = self.first_delay.saturating_mul(doubled).min(self.last_delay);
        whole.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_are_spread() {
        let limits = Limits::default();
        let seconds: Vec<_> = (1..8).map(|n| limits.delay(n, 1.0).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(limits.delay(1, 0.0), Duration::from_millis(500));
        assert_eq!(limits.delay(u32::MAX, 1.0), limits.last_delay);
    }
}
