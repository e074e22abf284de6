//! By which clock writers on different hosts tell the living from the dead.
//!
//! Who publishes or removes a base moves its marker now and then. Who is held up for
//! longer than the lease gives up by itself, long before anybody takes it for dead.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::image::{DEAD_AFTER, Pending, Spool, pending_writer};
use crate::model::{Fault, FaultKind, Sha256Digest};

/// How fast things have to go. The tests have less patience.
#[derive(Clone)]
pub(super) struct Pace {
    /// How often a marker is moved.
    pub(super) beat: Duration,
    /// The longest that its writer may be held up.
    pub(super) lease: Duration,
    /// A pending marker that hasn't moved for so long has no writer any more.
    pub(super) dead_after: Duration,
    #[cfg(test)]
    pub(super) hook: super::tests::hook::Hook,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(20),
            lease: Duration::from_secs(180),
            dead_after: DEAD_AFTER,
            #[cfg(test)]
            hook: super::tests::hook::Hook::default(),
        }
    }
}

/// A boundary between two steps of a publication or a removal: what was done just
/// before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Step {
    /// The marker is there, pending.
    Begun,
    /// The base has its room.
    Allocated,
    /// Some of the base was sent, so many bytes.
    Sent(u64),
    /// All of it.
    Uploaded,
    /// It was read back, and is what it should be.
    Proven,
    /// The rest of the marker was sent.
    Completed,
    /// The publication failed, and what it has left is about to be removed.
    Withdrawing,
    /// The valid marker of a base that is to go was removed.
    Unmarked,
}

impl Pace {
    /// Passes a boundary. Outside of tests that does nothing.
    #[cfg(not(test))]
    pub(super) fn passed(&self, _: Step) {}

    #[cfg(test)]
    pub(super) fn passed(&self, step: Step) {
        self.hook.pass(step);
    }
}

/// The time since the host booted, its sleep included: a writer that slept was held up.
pub(super) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// Pending markers that were seen, what they were, and since when.
#[derive(Default)]
pub(super) struct Sightings(Mutex<HashMap<String, (Sha256Digest, Duration)>>);

impl Sightings {
    /// Decides whether what was begun of `base`, as the `bytes` of its marker tell, may
    /// be swept: at once when it was this daemon in an earlier life, or when they tell
    /// nothing.
    ///
    /// # Errors
    /// `Busy` while its writer has to be taken for alive.
    pub(super) fn check(
        &self,
        base: &str,
        bytes: &[u8],
        spool: &Spool,
        pace: &Pace,
    ) -> Result<(), Fault> {
        let mut seen = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(writer) = pending_writer(bytes) else { return Ok(()) };
        if writer == spool.writer()? {
            return if Pending::of(bytes).is_some_and(|by| spool.is_alive(&by.nonce)) {
                Err(busy(&format!("this daemon is working on {base} already")))
            } else {
                Ok(())
            };
        }
        let (digest, now) = (Sha256Digest::of(bytes), now());
        let known = seen.entry(base.to_owned()).or_insert((digest, now));
        if known.0 != digest {
            *known = (digest, now);
        }
        let still = now.saturating_sub(known.1);
        // It stays known: whoever asks once more must not begin to wait again.
        if still >= pace.dead_after {
            return Ok(());
        }
        let left = Duration::from_secs((pace.dead_after - still).as_secs());
        Err(busy(&format!(
            "another proxyd ({writer}) is working on {base}; if it makes no progress, this one \
             takes over in {}",
            humantime::format_duration(left)
        )))
    }
}

/// The fault of what somebody else is at.
pub(super) fn busy(text: &str) -> Fault {
    Fault::new(FaultKind::Busy, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(nonce: &str, writer: &str) -> Result<Vec<u8>, String> {
        Pending { nonce: nonce.into(), writer: writer.into(), held: None }.render()
    }

    #[test]
    fn who_moves_lives_and_who_is_still_is_taken_for_dead_in_the_end() {
        let home = tempfile::tempdir().unwrap();
        let spool = Spool::new(home.path().into());
        let sightings = Sightings::default();
        let mut pace = Pace::default();
        let check = |bytes: &[u8], pace: &Pace| sightings.check("b", bytes, &spool, pace);
        let mut other = pending("n", "other").unwrap();
        let fault = check(&other, &pace).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Busy);
        assert!(fault.message.contains("(other)") && fault.message.contains("in 10m"), "{fault}");
        pace.dead_after = Duration::ZERO;
        assert!(check(&other, &pace).is_ok());
        pace.dead_after = Duration::from_millis(50);
        for _ in 0..3 {
            // It moves, each time after long enough.
            assert!(check(&other, &pace).is_err());
            other.push(b' ');
            std::thread::sleep(Duration::from_millis(60));
        }
        assert!(check(&other, &pace).is_err());
        std::thread::sleep(Duration::from_millis(60));
        assert!(check(&other, &pace).is_ok());
    }

    #[test]
    fn who_has_not_said_its_name_yet_is_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let spool = Spool::new(home.path().into());
        let check = |bytes: &[u8]| Sightings::default().check("b", bytes, &spool, &Pace::default());
        assert!(check(&[0; crate::image::MARKER_VOLUME_SIZE]).is_err());
        assert!(check(&[0; 10]).is_ok() && check(b"{\"a\": 1}").is_ok());
    }

    #[test]
    fn ourselves_and_nobody_are_swept_at_once_unless_at_work() {
        let home = tempfile::tempdir().unwrap();
        let spool = Spool::new(home.path().into());
        let (sightings, pace) = (Sightings::default(), Pace::default());
        let ours = pending("n", &spool.writer().unwrap()).unwrap();
        let check = |bytes: &[u8]| sightings.check("b", bytes, &spool, &pace);
        assert!(check(&ours).is_ok());
        assert!(check(b"garbage").is_ok());
        let alive = spool.begin("n");
        assert!(check(&ours).unwrap_err().message.contains("this daemon"));
        drop(alive);
        assert!(check(&ours).is_ok());
    }
}
