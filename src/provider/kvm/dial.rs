//! Opening a connection to libvirt, here or on another host, a few at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use virt::connect::Connect;

use super::event_loop;
use super::tunnel::{Route, Tunnel};
use crate::config::{ProviderSettings, SshSettings};
use crate::model::{EntryName, Fault, FaultKind};
use crate::provider::Places;

/// Connections to other hosts, of whichever entries, that may be opened at once: some for
/// hosts that failed the last time, and others that these never hold up.
static FIRST: Gate = Gate::new(32);
static AGAIN: Gate = Gate::new(16);
/// The same to one host: sshd turns away some of more than ten that have not logged in
/// yet (`MaxStartups`).
const TO_ONE_HOST: usize = 6;
static HOSTS: Mutex<BTreeMap<String, Weak<Gate>>> = Mutex::new(BTreeMap::new());

/// When a peer that doesn't answer is dead. Without that a call over a dead link never
/// returns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keepalive {
    seconds: i32,
    count: u32,
}

/// For calls that are answered at once.
pub(super) const CALLS: Keepalive = Keepalive { seconds: 5, count: 3 };
/// For bulk, behind which a ping waits in every buffer of a slow line. That the line is
/// dead ssh notices sooner.
pub(super) const BULK: Keepalive = Keepalive { seconds: 30, count: 6 };

/// Opens the connections of one entry.
pub(super) struct Dialer {
    entry: EntryName,
    uri: String,
    route: Option<(Route, Arc<Gate>)>,
}

/// An open connection, and the way it goes.
pub(super) struct Line {
    // Before the tunnel, so that it is closed first.
    connection: Connect,
    tunnel: Option<Tunnel>,
}

impl Line {
    pub(super) fn connection(&self) -> &Connect {
        &self.connection
    }

    pub(super) fn is_alive(&self) -> bool {
        self.connection.is_alive().unwrap_or(false)
    }
}

impl Dialer {
    pub(super) fn new(settings: &ProviderSettings, places: &Places) -> Self {
        let (entry, uri) = (settings.name.clone(), settings.uri.clone());
        let route = |ssh: &SshSettings| {
            let destination = &ssh.destination;
            let host = format!("{} {:?}", destination.host, destination.port);
            (Route::new(ssh, places), gate_of(host))
        };
        Self { entry, uri, route: settings.ssh.as_ref().map(route) }
    }

    pub(super) fn entry(&self) -> &EntryName {
        &self.entry
    }

    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    /// Who is logged in to where, when that is another host.
    pub(super) fn login(&self) -> Option<String> {
        self.route.as_ref().map(|(route, _)| route.shown())
    }

    /// Opens a connection, after those `again` or for the first time.
    ///
    /// # Errors
    /// `ProviderUnavailable`, with what to look at.
    pub(super) fn dial(&self, again: bool, keepalive: Keepalive) -> Result<Line, Fault> {
        let all = if again { &AGAIN } else { &FIRST };
        match &self.route {
            Some((_, host)) => host.pass(|| all.pass(|| self.open(keepalive))),
            None => self.open(keepalive),
        }
    }

    fn open(&self, keepalive: Keepalive) -> Result<Line, Fault> {
        event_loop::start();
        let tunnel = match &self.route {
            Some((route, _)) => Some(route.open().map_err(|fault| self.named(&fault.message))?),
            None => None,
        };
        let uri = tunnel.as_ref().map_or_else(|| self.uri.clone(), Tunnel::uri);
        let connection = Connect::open(Some(&uri))
            .map_err(|error| self.unreachable(error.message(), tunnel.as_ref()))?;
        if let Some(tunnel) = &tunnel {
            tunnel.settle();
        }
        // A driver inside this process has no peer to ping and says so.
        let _ = connection.set_keep_alive(keepalive.seconds, keepalive.count);
        Ok(Line { connection, tunnel })
    }

    /// The fault of a connection that broke.
    pub(super) fn broken(&self, line: Option<&Line>, why: &str) -> Fault {
        self.unreachable(why, line.and_then(|line| line.tunnel.as_ref()))
    }

    fn unreachable(&self, why: &str, tunnel: Option<&Tunnel>) -> Fault {
        let advice = match (&self.route, tunnel) {
            (Some((route, _)), Some(tunnel)) => route.advice(tunnel),
            (Some((route, _)), None) => format!("check the network to {}", route.shown()),
            (None, _) => "check that it is running (`systemctl status libvirtd`) and that proxyd \
                          may use its socket (group libvirt)"
                .to_owned(),
        };
        self.named(&format!("libvirt at {} can't be reached ({why}): {advice}", self.uri))
    }

    fn named(&self, text: &str) -> Fault {
        let text = format!("provider entry {}: {text}", self.entry);
        Fault::new(FaultKind::ProviderUnavailable, text)
    }
}

/// How long to leave a host alone after so many dials in a row have failed: whoever
/// comes meanwhile is told the same. Many workers that miss one host must not dial it
/// one after the other, nor a fleet that is gone keep this host busy.
pub(super) fn pause(failures: u32, remote: bool) -> Duration {
    let most = if remote { 5 } else { 0 };
    Duration::from_secs(1 << failures.saturating_sub(1).min(most))
}

/// The gate to `host` that all of its entries share.
fn gate_of(host: String) -> Arc<Gate> {
    let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    hosts.retain(|_, gate| gate.strong_count() > 0);
    if let Some(gate) = hosts.get(&host).and_then(Weak::upgrade) {
        return gate;
    }
    let gate = Arc::new(Gate::new(TO_ONE_HOST));
    hosts.insert(host, Arc::downgrade(&gate));
    gate
}

/// Lets so many through at once.
struct Gate {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Gate {
    const fn new(free: usize) -> Self {
        Self { free: Mutex::new(free), freed: Condvar::new() }
    }

    fn pass<T>(&self, work: impl FnOnce() -> T) -> T {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        let done = work();
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.freed.notify_one();
        done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_gate_lets_so_many_through() {
        let gate = Gate::new(2);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    gate.pass(|| {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(5));
                        now.fetch_sub(1, Ordering::SeqCst);
                    });
                });
            }
        });
        assert_eq!(*gate.free.lock().unwrap(), 2);
        assert!(most.load(Ordering::SeqCst) <= 2);
    }

    #[test]
    fn entries_of_one_host_share_its_gate() {
        let [one, same, other] =
            ["a Some(22)", "a Some(22)", "b None"].map(|of| gate_of(of.into()));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        drop((one, same));
        gate_of("b None".into());
        assert!(!HOSTS.lock().unwrap().contains_key("a Some(22)"), "nobody needs it any more");
    }

    #[test]
    fn another_host_is_left_alone_for_longer_and_longer() {
        let seconds = |remote| [1, 2, 3, 6, 99].map(|failures| pause(failures, remote).as_secs());
        assert_eq!(seconds(true), [1, 2, 4, 32, 32]);
        assert_eq!(seconds(false), [1; 5]);
    }
}
