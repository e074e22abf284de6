//! Why a guest that runs is not heard of, or why it does not run: told apart by what
//! can be seen from outside.

use serde::Serialize;

use super::console::{Console, Mark, plain};
use super::qemu_log;
use crate::provider::{AgentView, Clues, DomainView, LeaseView, Tail};

/// The topic of the script that brings the guest agent.
const AGENT: &str = "agent";
/// The topic of the preset's script.
const SQUID: &str = "squid";
/// What that script says of an agent that it could not start.
const NOT_STARTED: &str = "qemu-guest-agent is installed and does not start";

/// What holds a guest up, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Cause {
    /// QEMU has ended.
    Died,
    /// QEMU, or somebody, has stopped the guest and kept it.
    Paused,
    /// No kernel has said anything.
    NotBooted,
    /// It boots, or cloud-init is at work.
    Booting,
    /// The libvirt network's DHCP server has given it no address.
    NoLease,
    /// cloud-init is through and the script did not run.
    VendorDataOff,
    /// Nothing was to bring the agent.
    AgentNotWanted,
    /// The script is at work.
    ScriptRunning,
    /// The script gave up.
    ScriptFailed,
    /// The agent is there and does not run.
    AgentNotStarted,
    /// The agent answers and tells no address.
    AgentWithoutAddress,
    /// The preset's script gave up.
    PresetFailed,
}

/// A cause, what it rests on, and the way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// In one word.
    pub cause: Cause,
    /// For people. Nothing in it comes from the guest.
    pub message: String,
    /// The guest's or QEMU's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

impl Diagnosis {
    fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into(), words: None }
    }

    fn with(self, words: impl Into<String>) -> Self {
        Self { words: Some(words.into()).filter(|words| !words.is_empty()), ..self }
    }
}

/// What is known besides of a guest whose proxy does not answer.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Whether its agent has told its address.
    pub heard: bool,
    /// Whether vendor-data was to bring the guest agent.
    pub agent_wanted: bool,
}

/// Why the guest's proxy does not answer; nothing when that can't be told from outside.
pub fn diagnose(clues: &Clues, known: Known) -> Option<Diagnosis> {
    let console = clues.console.content.as_deref().ok().map(plain);
    let console = console.as_deref().map(Console::of);
    let failed = console.filter(|_| clues.domain == DomainView::Running).and_then(preset);
    failed.or_else(|| if known.heard { None } else { unheard(clues, console, known.agent_wanted) })
}

/// Why the guest is not heard of; nothing when it has no domain of its own.
fn unheard(clues: &Clues, console: Option<Console<'_>>, agent_wanted: bool) -> Option<Diagnosis> {
    match &clues.domain {
        DomainView::Absent | DomainView::Foreign { .. } => None,
        DomainView::Off { reason } => Some(down(clues, Cause::Died, "is off", reason)),
        DomainView::Paused { reason } => Some(down(clues, Cause::Paused, "is paused", reason)),
        DomainView::Running if clues.agent == AgentView::Connected => {
            let why = "the guest agent is connected and tells no address: look at the network \
                       configuration in the guest";
            Some(Diagnosis::new(Cause::AgentWithoutAddress, why))
        }
        DomainView::Running => Some(match console {
            Some(console) => silent(clues, console, agent_wanted),
            None => unseen(clues),
        }),
    }
}

/// That the preset's script has given up, if it has said so.
fn preset(console: Console<'_>) -> Option<Diagnosis> {
    let Some(Mark::Failed(why)) = console.mark(SQUID) else { return None };
    let message = "the preset's script could not make squid serve: its own words are on the \
                   console and in /var/log/cloud-init-output.log of the guest";
    Some(Diagnosis::new(Cause::PresetFailed, message).with(why))
}

/// A guest that went down, in QEMU's own words where there are any.
fn down(clues: &Clues, cause: Cause, how: &str, reason: &str) -> Diagnosis {
    let advice = if clues.domain_type == "kvm" {
        ": if KVM does not work on this host, set virtType to \"qemu\" for software emulation"
    } else {
        ""
    };
    let log = clues.log.content.as_deref().unwrap_or_default();
    let words = qemu_log::words(&String::from_utf8_lossy(log));
    let told = words.as_ref().map(|words| format!("; QEMU says: {words}")).unwrap_or_default();
    let message = format!("the domain {how} ({reason}){told}{advice}");
    Diagnosis::new(cause, message).with(words.unwrap_or_default())
}

fn silent(clues: &Clues, console: Console<'_>, agent_wanted: bool) -> Diagnosis {
    match console.mark(AGENT) {
        Some(Mark::Failed(why)) if why == NOT_STARTED => not_started(clues),
        Some(Mark::Failed(why)) => failed(clues).with(why),
        Some(Mark::Said(said)) if said.ends_with("runs") => not_started(clues),
        Some(Mark::Said(said)) => no_lease(clues).unwrap_or_else(running).with(said),
        None if !console.booted() => not_booted(&clues.console).with(console.last_line()),
        None => no_lease(clues).unwrap_or_else(|| {
            if !console.is_final() {
                let why = "the guest has booted; cloud-init has not come to its scripts yet";
                Diagnosis::new(Cause::Booting, why).with(console.last_line())
            } else if agent_wanted {
                vendor_data_off()
            } else {
                not_wanted()
            }
        }),
    }
}

/// Without a console there is the lease alone.
fn unseen(clues: &Clues) -> Diagnosis {
    no_lease(clues).unwrap_or_else(|| {
        let path = clues.console.path.display();
        let why = format!("the guest agent is not connected, and the console {path} can't be read");
        Diagnosis::new(Cause::Booting, why)
    })
}

fn no_lease(clues: &Clues) -> Option<Diagnosis> {
    (clues.lease == LeaseView::NotYet).then(|| {
        let why = "the network's DHCP server has given the guest no address: look at the guest's \
                   network configuration, and at the server (`virsh net-dhcp-leases NETWORK`)";
        Diagnosis::new(Cause::NoLease, why)
    })
}

fn not_booted(console: &Tail) -> Diagnosis {
    let path = console.path.display();
    let why = format!(
        "no kernel has said anything on the serial console: the image may not boot with this \
         firmware, or its kernel has no console=ttyS0; the console is logged in {path}"
    );
    Diagnosis::new(Cause::NotBooted, why)
}

fn running() -> Diagnosis {
    let why = "the script in vendor-data is bringing the guest agent";
    Diagnosis::new(Cause::ScriptRunning, why)
}

/// What failed for want of an address is a matter of the address.
fn failed(clues: &Clues) -> Diagnosis {
    no_lease(clues).unwrap_or_else(|| {
        let why = "the script in vendor-data could not install the guest agent: its own words are \
                   on the console and in /var/log/cloud-init-output.log of the guest";
        Diagnosis::new(Cause::ScriptFailed, why)
    })
}

fn not_started(clues: &Clues) -> Diagnosis {
    let channel = match clues.agent {
        AgentView::NoChannel => ": the domain has no channel for it",
        _ => ": look at `journalctl -u qemu-guest-agent` in the guest",
    };
    let why = format!("the guest agent is installed and is not connected{channel}");
    Diagnosis::new(Cause::AgentNotStarted, why)
}

fn vendor_data_off() -> Diagnosis {
    let why = "cloud-init is through and the script that brings the guest agent did not run: the \
               user-data switches vendor-data or its scripts off (vendor_data, disabled_handlers, \
               cloud_final_modules); allow them, or install qemu-guest-agent in the user-data or \
               in the image";
    Diagnosis::new(Cause::VendorDataOff, why)
}

fn not_wanted() -> Diagnosis {
    let why = "the guest agent is not in the image, and installGuestAgent is false: install \
               qemu-guest-agent in the user-data or in the image, or set it to true";
    Diagnosis::new(Cause::AgentNotWanted, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNHEARD: Known = Known { heard: false, agent_wanted: true };

    const BOOT: &str = "BdsDxe: loading Boot0001\n[    0.0] Linux version 6.12\n";
    const DONE: &str = "[ 60.1] cloud-init[4]: Cloud-init v. 25.1.4 finished at Tue. Up 60 s\n";

    fn clues(console: &str, lease: LeaseView) -> Clues {
        let tail = |text: &str| Tail { path: "/log".into(), content: Ok(text.into()) };
        Clues {
            domain: DomainView::Running,
            domain_type: "kvm".into(),
            agent: AgentView::Disconnected,
            lease,
            console: tail(console),
            log: tail("2026Z qemu-system-x86_64: error: failed to set MSR 0x10a to 0x0\n"),
        }
    }

    fn leased() -> LeaseView {
        LeaseView::Leased("192.0.2.7".parse().unwrap())
    }

    fn cause(console: &str, lease: LeaseView) -> Cause {
        diagnose(&clues(console, lease), UNHEARD).unwrap().cause
    }

    #[test]
    fn the_causes_are_told_apart() {
        let said =
            |line: &str| format!("{BOOT}[ 50.] cloud-init[4]: proxyd: agent: {line}\n{DONE}");
        let failed = said("failed: qemu-guest-agent can't be installed after 5 attempts: E: x");
        let cases = [
            (String::new(), leased(), Cause::NotBooted),
            ("BdsDxe: loading\n  Booting `Debian GNU/Linux'".into(), leased(), Cause::NotBooted),
            (BOOT.into(), LeaseView::NotYet, Cause::NoLease),
            (BOOT.into(), LeaseView::NotKept, Cause::Booting),
            (BOOT.into(), leased(), Cause::Booting),
            (format!("{BOOT}{DONE}"), leased(), Cause::VendorDataOff),
            (format!("{BOOT}{DONE}"), LeaseView::NotYet, Cause::NoLease),
            (said("installing qemu-guest-agent"), leased(), Cause::ScriptRunning),
            (failed.clone(), leased(), Cause::ScriptFailed),
            (failed.clone(), LeaseView::NotKept, Cause::ScriptFailed),
            (failed, LeaseView::NotYet, Cause::NoLease),
            (said(&format!("failed: {NOT_STARTED}")), leased(), Cause::AgentNotStarted),
            (said("qemu-guest-agent runs"), leased(), Cause::AgentNotStarted),
        ];
        for (console, lease, wanted) in cases {
            assert_eq!(cause(&console, lease.clone()), wanted, "{lease:?} {console}");
        }
    }

    /// The script and its reader agree on the words.
    #[test]
    fn the_script_says_what_is_looked_for() {
        let script = include_str!("../seed/agent.sh");
        assert!(script.contains(&format!("failed: {NOT_STARTED}")));
        assert!(script.contains("topic=agent") && script.contains("agent runs\""));
        assert!(include_str!("../seed/squid.sh").contains("topic=squid"));
    }

    #[test]
    fn the_guests_words_stay_out_of_the_message() {
        let console = format!("{BOOT}proxyd: agent: failed: http://user:pw@mirror\n");
        let found = diagnose(&clues(&console, leased()), UNHEARD).unwrap();
        assert!(!found.message.contains("pw"), "{found:?}");
        assert_eq!(found.words.as_deref(), Some("http://user:pw@mirror"));
    }

    #[test]
    fn a_guest_that_died_speaks_in_qemus_words_and_says_the_way_out() {
        let mut clues = clues("", leased());
        clues.domain = DomainView::Off { reason: "crashed".into() };
        let found = diagnose(&clues, UNHEARD).unwrap();
        assert_eq!(found.cause, Cause::Died);
        for part in ["crashed", "failed to set MSR 0x10a", "virtType", "\"qemu\""] {
            assert!(found.message.contains(part), "{}", found.message);
        }
        clues.domain_type = "qemu".into();
        assert!(!diagnose(&clues, UNHEARD).unwrap().message.contains("virtType"));
        clues.domain = DomainView::Paused { reason: "ioerror".into() };
        let found = diagnose(&clues, UNHEARD).unwrap();
        assert_eq!(found.cause, Cause::Paused);
        assert!(found.message.contains("is paused (ioerror)"), "{}", found.message);
        clues.domain = DomainView::Absent;
        assert_eq!(diagnose(&clues, UNHEARD), None);
    }

    #[test]
    fn a_preset_that_failed_is_told_while_the_proxy_does_not_serve() {
        let console = format!("{BOOT}proxyd: squid: failed: squid can't be installed\n");
        let heard = Known { heard: true, ..UNHEARD };
        let found = diagnose(&clues(&console, leased()), heard).unwrap();
        assert_eq!(found.cause, Cause::PresetFailed);
        assert_eq!(diagnose(&clues(BOOT, leased()), heard), None);
    }

    #[test]
    fn what_nobody_asked_for_is_not_missed() {
        let clues = clues(&format!("{BOOT}{DONE}"), leased());
        assert_eq!(
            diagnose(&clues, Known { agent_wanted: false, ..UNHEARD }).unwrap().cause,
            Cause::AgentNotWanted
        );
    }

    #[test]
    fn an_agent_that_is_connected_is_not_looked_for() {
        let mut clues = clues("", LeaseView::NotYet);
        clues.agent = AgentView::Connected;
        assert_eq!(diagnose(&clues, UNHEARD).unwrap().cause, Cause::AgentWithoutAddress);
    }
}
