//! What can be told of a Proxy that is not as it should be: the step that holds it up,
//! the cause as far as it shows from outside, and the tails of console and QEMU log.

mod console;
mod diagnosis;
mod qemu_log;
mod scrub;

use std::path::PathBuf;

use serde::Serialize;

pub use diagnosis::{Cause, Diagnosis, Known, diagnose};

use self::scrub::Scrubber;
use crate::model::{Condition, ConditionKind, Fault, ProxyName, ProxyStatus, Secret};
use crate::provider::{AgentView, Clues, DomainView, LeaseView, Tail};

/// Bytes of console and log that evidence holds of each, from their end.
const TAIL: usize = 16 << 10;

/// Everything about one Proxy at one time, for `Evidence` on the bus.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    proxy: String,
    phase: &'static str,
    healthy: bool,
    /// The step under way or the fault that holds it up.
    step: &'static str,
    message: String,
    permanent: bool,
    conditions: Vec<ConditionRow>,
    /// What the last probe found: the hop that failed, or that it was answered.
    last_probe: String,
    /// The most likely cause; absent when nothing is amiss or nothing is known.
    diagnosis: Option<Diagnosis>,
    /// What was found on the host; absent when it could not be asked.
    guest: Option<GuestRow>,
    /// Why the host could not be asked.
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct ConditionRow {
    kind: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GuestRow {
    domain: &'static str,
    domain_reason: Option<String>,
    domain_type: String,
    agent: &'static str,
    lease: Option<String>,
    console: TailRow,
    qemu_log: TailRow,
}

#[derive(Debug, Serialize)]
struct TailRow {
    path: PathBuf,
    tail: Option<String>,
    error: Option<String>,
}

/// Whom the evidence is about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The Proxy's name.
    pub name: &'a ProxyName,
    /// How it is.
    pub status: &'a ProxyStatus,
    /// Whether vendor-data brings it a guest agent.
    pub agent_wanted: bool,
    /// What it was given, no secret of which may be told.
    pub secrets: &'a [Secret],
}

impl Evidence {
    /// What is told of the Proxy whose provider gave `clues`. What looks like a secret,
    /// and every secret that its user-data names as one, is taken out.
    pub fn new(subject: &Subject<'_>, clues: Result<Clues, Fault>) -> Self {
        let Subject { name, status, agent_wanted, secrets } = *subject;
        let scrubber = Scrubber::new(secrets);
        let known = Known { heard: status.is_heard(), agent_wanted };
        let found = clues.as_ref().ok().filter(|_| !status.healthy());
        let found = found.and_then(|clues| diagnose(clues, known));
        Self {
            proxy: name.to_string(),
            phase: status.phase.as_str(),
            healthy: status.healthy(),
            step: status.reason.as_str(),
            message: status.message.clone(),
            permanent: status.permanent,
            conditions: status.conditions.iter().map(condition_row).collect(),
            last_probe: last_probe(status),
            diagnosis: found,
            error: clues.as_ref().err().map(ToString::to_string),
            guest: clues.ok().map(|clues| guest_row(clues, &scrubber)),
        }
    }

    /// As JSON, for people to read as well.
    pub fn json(&self) -> String {
        // Strings, booleans and lists of such always have a JSON form.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn last_probe(status: &ProxyStatus) -> String {
    let found = status.conditions.iter().find(|found| found.kind == ConditionKind::Healthy);
    match found {
        Some(found) if found.holds => "answered".into(),
        Some(found) if !found.message.is_empty() => found.message.clone(),
        _ => "none yet".into(),
    }
}

fn condition_row(condition: &Condition) -> ConditionRow {
    let Condition { kind, holds, reason, message, .. } = condition;
    ConditionRow { kind: kind.as_str(), holds: *holds, reason, message: message.clone() }
}

fn guest_row(clues: Clues, scrubber: &Scrubber) -> GuestRow {
    let (domain, domain_reason) = match clues.domain {
        DomainView::Absent => ("absent", None),
        DomainView::Foreign { uuid } => ("foreign", Some(format!("its UUID is {uuid}"))),
        DomainView::Off { reason } => ("off", Some(reason)),
        DomainView::Paused { reason } => ("paused", Some(reason)),
        DomainView::Running => ("running", None),
    };
    GuestRow {
        domain,
        domain_reason,
        domain_type: clues.domain_type,
        agent: match clues.agent {
            AgentView::Connected => "connected",
            AgentView::Disconnected => "disconnected",
            AgentView::NoChannel => "no channel",
        },
        lease: match clues.lease {
            LeaseView::Leased(ip) => Some(ip.to_string()),
            LeaseView::NotYet | LeaseView::NotKept => None,
        },
        console: tail_row(clues.console, |bytes| scrubber.clean(&console::plain(bytes))),
        qemu_log: tail_row(clues.log, |bytes| {
            scrubber.clean(qemu_log::latest(&String::from_utf8_lossy(bytes)))
        }),
    }
}

fn tail_row(log: Tail, read: impl Fn(&[u8]) -> String) -> TailRow {
    let (tail, error) = match log.content {
        Ok(bytes) => (Some(ending(&read(&bytes))), None),
        Err(error) => (None, Some(error)),
    };
    TailRow { path: log.path, tail, error }
}

/// The end of `text`, in whole lines if it has any.
fn ending(text: &str) -> String {
    let least = text.len().saturating_sub(TAIL);
    let from = (least..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let end = &text[from..];
    match end.find('\n') {
        Some(at) if from > 0 => end[at + 1..].to_owned(),
        _ => end.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject<'a>(name: &'a ProxyName, status: &'a ProxyStatus) -> Subject<'a> {
        Subject { name, status, agent_wanted: true, secrets: &[] }
    }

    fn clues() -> Clues {
        let tail = |content| Tail { path: "/log".into(), content };
        Clues {
            domain: DomainView::Running,
            domain_type: "qemu".into(),
            agent: AgentView::Disconnected,
            lease: LeaseView::NotYet,
            console: tail(Ok(("x".repeat(TAIL) + "\nBooting\n").into())),
            log: tail(Err("gone".into())),
        }
    }

    #[test]
    fn evidence_is_json_with_the_cause_and_both_tails() {
        let name = ProxyName::new("web").unwrap();
        let evidence = Evidence::new(&subject(&name, &ProxyStatus::pending()), Ok(clues()));
        let json: serde_json::Value = serde_json::from_str(&evidence.json()).unwrap();
        assert_eq!(json["diagnosis"]["cause"], "NotBooted");
        assert_eq!(json["guest"]["console"]["tail"], "Booting\n");
        assert_eq!(json["guest"]["qemuLog"]["error"], "gone");
        assert_eq!(json["step"], "Queued");
        assert_eq!(json["lastProbe"], "none yet");
    }

    #[test]
    fn without_the_host_it_says_why() {
        let fault = Fault::new(crate::model::FaultKind::ProviderUnavailable, "no libvirt");
        let name = ProxyName::new("web").unwrap();
        let evidence = Evidence::new(&subject(&name, &ProxyStatus::pending()), Err(fault));
        let json: serde_json::Value = serde_json::from_str(&evidence.json()).unwrap();
        assert_eq!(json["error"], "no libvirt");
        assert!(json["guest"].is_null());
    }

    #[test]
    fn a_tail_cuts_no_letter() {
        let text = "ü".repeat(TAIL);
        assert!(ending(&text).len() <= TAIL);
    }
}
