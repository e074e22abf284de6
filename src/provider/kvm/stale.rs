//! Telling a writer that works from one that died.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::model::{Fault, FaultKind};

/// A pending marker that stays the same for so long has no writer any more: one that
/// makes no progress gives up sooner.
const DEAD_AFTER: Duration = Duration::from_secs(1800);

/// Pending markers that were seen, and since when.
#[derive(Default)]
pub(super) struct Sightings(HashMap<String, (String, Instant)>);

impl Sightings {
    /// Decides whether what `who` (nonce and writer) has begun of `base` may be swept:
    /// at once when it was ourselves, in an earlier life, or when no one can be told.
    ///
    /// # Errors
    /// `Busy` while it has to be taken for alive.
    pub(super) fn check(
        &mut self,
        base: &str,
        who: Option<(String, String)>,
        ourselves: &str,
    ) -> Result<(), Fault> {
        let Some((nonce, writer)) = who.filter(|(_, writer)| writer != ourselves) else {
            self.0.remove(base);
            return Ok(());
        };
        let seen = self.0.entry(base.to_owned()).or_insert_with(|| (nonce.clone(), Instant::now()));
        if seen.0 != nonce {
            *seen = (nonce, Instant::now());
        }
        let waited = seen.1.elapsed();
        if waited >= DEAD_AFTER {
            self.0.remove(base);
            return Ok(());
        }
        let text = format!(
            "another proxyd ({writer}) is publishing {base}; if it is dead, this one takes over \
             in {}",
            humantime::format_duration(Duration::from_secs((DEAD_AFTER - waited).as_secs()))
        );
        Err(Fault::new(FaultKind::Busy, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ourselves_and_nobody_are_swept_at_once_and_others_are_waited_for() {
        let mut sightings = Sightings::default();
        let who = |writer: &str| Some(("n".to_owned(), writer.to_owned()));
        assert!(sightings.check("b", who("me"), "me").is_ok());
        assert!(sightings.check("b", None, "me").is_ok());
        let fault = sightings.check("b", who("other"), "me").unwrap_err();
        assert_eq!(fault.kind, FaultKind::Busy);
        if let Some(seen) = sightings.0.get_mut("b") {
            seen.1 = Instant::now().checked_sub(DEAD_AFTER).unwrap();
        }
        assert!(sightings.check("b", who("other"), "me").is_ok());
    }
}
