//! libvirt's event loop, in a thread of its own for as long as the process lives:
//! keepalive and events need it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Once};
use std::time::{Duration, Instant};

/// How often the loop shows that it turns.
const HEARTBEAT_MILLISECONDS: i32 = 1000;
/// Without a turn for so long it is stuck.
const STUCK: Duration = Duration::from_secs(30);

static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
/// Milliseconds from the beginning to the last turn, and one; 0 before the first start.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Starts the loop, once. A connection has to be opened after that to be served by it.
pub(super) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        virt::error::clear_error_callback();
        if let Err(error) = virt::event::event_register_default_impl() {
            tracing::error!("libvirt's event loop can't be set up: {}", error.message());
            return;
        }
        beat();
        let heartbeat = |_, _| beat();
        let nothing = std::ptr::null_mut();
        if let Err(error) =
            virt::event::event_add_timeout(HEARTBEAT_MILLISECONDS, heartbeat, nothing)
        {
            tracing::error!("libvirt's event loop has no timer: {}", error.message());
        }
        let turning = || loop {
            if let Err(error) = virt::event::event_run_default_impl() {
                tracing::error!("libvirt's event loop stumbled: {}", error.message());
                std::thread::sleep(Duration::from_secs(1));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("libvirt-events".into()).spawn(turning)
        {
            tracing::error!("libvirt's event loop can't be started: {error}");
        }
    });
}

fn beat() {
    let now = u64::try_from(BEGINNING.elapsed().as_millis()).unwrap_or(u64::MAX);
    LAST.store(now.saturating_add(1), Ordering::Relaxed);
}

/// For how long the loop has not turned, when that is too long.
pub(super) fn stuck() -> Option<Duration> {
    silence(LAST.load(Ordering::Relaxed), BEGINNING.elapsed())
}

/// The time from the `last` turn until `now`, when that is too long.
fn silence(last: u64, now: Duration) -> Option<Duration> {
    let still = now.saturating_sub(Duration::from_millis(last));
    (last > 0 && still > STUCK).then_some(still)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_does_not_turn_is_noticed_once_it_was_started() {
        let long = STUCK + Duration::from_secs(5);
        assert_eq!(silence(0, long), None);
        assert_eq!(silence(1, STUCK), None);
        assert_eq!(
            silence(5000, long + Duration::from_secs(1)),
            Some(STUCK + Duration::from_secs(1))
        );
    }

    #[test]
    fn the_loop_turns() {
        assert_eq!(stuck(), None);
        start();
        let first = LAST.load(Ordering::Relaxed);
        assert!(first > 0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while LAST.load(Ordering::Relaxed) == first {
            assert!(Instant::now() < deadline, "the loop does not turn");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(stuck(), None);
    }
}
