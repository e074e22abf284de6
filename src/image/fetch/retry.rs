//! How often, and after which waits, something is tried again.

use super::http::Broken;
use crate::image::limits::Limits;
use crate::image::progress::{Progress, Stage};
use crate::model::Fault;

/// Attempts in a row that gained nothing.
pub(super) struct Retry<'a> {
    limits: &'a Limits,
    failures: u32,
}

impl<'a> Retry<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self { limits, failures: 0 }
    }

    /// The last attempt got somewhere.
    pub(super) fn gained(&mut self) {
        self.failures = 0;
    }

    /// Waits before another attempt.
    ///
    /// # Errors
    /// The fault of the last one, when there is to be no other.
    pub(super) async fn wait(&mut self, broken: Broken, progress: &Progress) -> Result<(), Fault> {
        let (fault, asked) = match broken {
            Broken::Final(fault) => return Err(fault),
            Broken::Anew(fault) => (fault, None),
            Broken::Again(fault, asked) => (fault, asked),
        };
        self.failures += 1;
        let Self { limits, failures } = self;
        if *failures >= limits.attempts {
            return Err(fault);
        }
        let delay = limits.delay(*failures, rand::random());
        // What the server asks for is heeded, within our own bounds.
        let delay = asked.map_or(delay, |asked| asked.max(delay).min(limits.last_delay));
        tracing::warn!(
            "{fault}; trying again in {:.1} s (attempt {failures} of {} failed)",
            delay.as_secs_f64(),
            limits.attempts
        );
        progress.enter(Stage::Delayed(fault.message), 0);
        tokio::time::sleep(delay).await;
        Ok(())
    }
}
