//! When a proxy counts as healthy: single probes that fail, or succeed, prove little.

use super::Verdict;
use crate::config::HealthSettings;

/// What has been heard of one guest's proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judge {
    healthy: bool,
    /// Whether it was ever healthy.
    proven: bool,
    /// Probes in a row that say the opposite of `healthy`.
    against: u32,
    /// Whether the last probe failed.
    missed: bool,
}

impl Judge {
    /// Hears a verdict, and tells whether the proxy counts as healthy now.
    pub fn hear(&mut self, verdict: &Verdict, settings: &HealthSettings) -> bool {
        let answered = matches!(verdict, Verdict::Healthy { .. });
        self.missed = !answered;
        if answered == self.healthy {
            self.against = 0;
            return self.healthy;
        }
        self.against = self.against.saturating_add(1);
        let enough = if answered { settings.healthy_after } else { settings.unhealthy_after };
        if self.against >= enough {
            (self.healthy, self.against) = (answered, 0);
            self.proven |= answered;
        }
        self.healthy
    }

    /// It was seen to answer elsewhere: it counts as healthy.
    pub fn answered_at_once(&mut self) {
        *self = Self { healthy: true, proven: true, against: 0, missed: false };
    }

    /// Whether it has never been healthy.
    pub fn is_first(&self) -> bool {
        !self.proven
    }

    /// Whether it is healthy and its last probe was answered.
    pub fn is_answering(&self) -> bool {
        self.healthy && !self.missed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::health::Hop;

    fn heard(judge: &mut Judge, verdicts: &str) -> String {
        let settings = HealthSettings {
            unhealthy_after: 3,
            healthy_after: 2,
            ..crate::config::Settings::builtin().unwrap().health
        };
        let hear = |letter| {
            let verdict = match letter {
                '+' => Verdict::Healthy { latency: Duration::ZERO },
                _ => Verdict::failed(Hop::Refused, String::new()),
            };
            if judge.hear(&verdict, &settings) { '+' } else { '-' }
        };
        verdicts.chars().map(hear).collect()
    }

    #[test]
    fn both_ways_take_their_number_of_probes_in_a_row() {
        let mut judge = Judge::default();
        assert_eq!(heard(&mut judge, "-+-++"), "----+");
        assert!(judge.is_answering() && !judge.is_first());
        assert_eq!(heard(&mut judge, "--+--"), "+++++");
        assert!(!judge.is_answering());
        assert_eq!(heard(&mut judge, "-+-+++"), "----++");
    }
}
