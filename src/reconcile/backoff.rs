//! How long to wait before a step is tried again.

use std::time::Duration;

use crate::model::FaultKind;

/// The longest wait of a kind: short where recovery is seen by a cheap local look,
/// long where each attempt costs somebody else something.
fn ceiling(kind: FaultKind) -> Duration {
    let seconds = match kind {
        FaultKind::ProviderUnavailable
        | FaultKind::PoolUnavailable
        | FaultKind::NetworkUnavailable
        | FaultKind::FirmwareUnavailable
        | FaultKind::Busy => 10,
        FaultKind::FetchFailed => 300,
        _ => 60,
    };
    Duration::from_secs(seconds)
}

/// The wait after the `attempt`-th failure in a row (from 1): doubling from one
/// second to the ceiling of its kind, with a fifth of jitter either way so that many
/// Proxies don't come back in step. `jitter` is in `0.0..1.0`.
pub fn delay(kind: FaultKind, attempt: u32, jitter: f64) -> Duration {
    let doubled = Duration::from_secs(1 << attempt.saturating_sub(1).min(16));
    jittered(doubled.min(ceiling(kind)), jitter)
}

/// `delay` with a fifth of jitter either way. `jitter` is in `0.0..1.0`.
pub fn jittered(delay: Duration, jitter: f64) -> Duration {
    delay.mul_f64(0.8 + 0.4 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_to_its_ceiling() {
        let seconds = |attempt| delay(FaultKind::FetchFailed, attempt, 0.5).as_secs();
        assert_eq!([1, 2, 3, 4].map(seconds), [1, 2, 4, 8]);
        assert_eq!(seconds(u32::MAX), 300);
        assert_eq!(delay(FaultKind::PoolUnavailable, 50, 0.5), Duration::from_secs(10));
    }

    #[test]
    fn jitter_is_a_fifth_either_way() {
        let millis = |jitter| delay(FaultKind::NoSpace, 1, jitter).as_millis();
        assert_eq!((millis(0.0), millis(1.0)), (800, 1200));
    }
}
