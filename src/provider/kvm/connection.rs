//! The libvirt connection of one provider entry: opened when first needed, dropped
//! when it dies, and used from threads that may block.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use virt::connect::Connect;
use virt::error::{Error, ErrorNumber};

use super::event_loop;
use super::events::{self, Listener, Subscription};
use crate::config::ProviderSettings;
use crate::journal;
use crate::model::{EntryName, Fault, FaultKind};
use crate::provider::{Bells, LinkState};
use crate::tasks;

/// Calls that one entry may have under way at once: libvirtd has few workers, and
/// all its clients share them.
const CONCURRENT_CALLS: usize = 4;

/// Keepalive: a peer that doesn't answer three pings, five seconds apart, is dead.
/// Without it a call over a dead link never returns.
const KEEPALIVE_INTERVAL_SECONDS: i32 = 5;
const KEEPALIVE_COUNT: u32 = 3;

/// After a dial that failed, whoever comes within this time is told the same: many
/// workers that miss one host must not dial it one after the other.
const REDIAL_PAUSE: Duration = Duration::from_secs(1);

/// Connections, of whichever entry, that may be opened at once.
static DIALS: Gate = Gate { free: Mutex::new(8), freed: Condvar::new() };

/// Why a call failed: libvirt's word for it, or a fault that is already named.
#[derive(Debug)]
pub(super) enum CallError {
    Libvirt(Error),
    Fault(Fault),
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Libvirt(error)
    }
}

impl From<Fault> for CallError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Whether `error` has the number `wanted`.
pub(super) fn is(error: &Error, wanted: ErrorNumber) -> bool {
    error.code().is(wanted)
}

/// A lookup whose target may not exist: `missing` is the number that says so.
pub(super) fn found<T>(
    result: Result<T, Error>,
    missing: ErrorNumber,
) -> Result<Option<T>, CallError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is(&error, missing) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The connection of one entry. Cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    over_ssh: bool,
    session: Arc<Mutex<Session>>,
    permits: Arc<Semaphore>,
    ear: Arc<Ear>,
}

/// What hears of a connection, and tells. It does not hold the connection, which holds
/// it.
struct Ear {
    entry: EntryName,
    uri: String,
    state: watch::Sender<LinkState>,
    bells: Bells,
}

/// What there is of a connection.
#[derive(Default)]
struct Session {
    // Before the connection, so that it is dropped first.
    _events: Option<Subscription>,
    open: Option<Connect>,
    failed: Option<(Instant, Fault)>,
}

impl Link {
    pub(super) fn new(settings: &ProviderSettings, bells: Bells) -> Self {
        let (entry, uri) = (settings.name.clone(), settings.uri.clone());
        let state = watch::Sender::new(LinkState::Connecting);
        Self {
            over_ssh: settings.ssh.is_some(),
            session: Arc::default(),
            permits: Arc::new(Semaphore::new(CONCURRENT_CALLS)),
            ear: Arc::new(Ear { entry, uri, state, bells }),
        }
    }

    /// How the connection is, as it changes.
    pub(super) fn state(&self) -> watch::Receiver<LinkState> {
        self.ear.state.subscribe()
    }

    /// Runs `work` with the connection, on a thread that may block.
    ///
    /// # Errors
    /// `ProviderUnavailable` when libvirt can't be reached or the connection broke;
    /// else what `work` says, a plain libvirt error as `DomainFailed`.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connect) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, Fault> {
        // The semaphore is never closed, so this can't fail.
        let _permit = self.permits.clone().acquire_owned().await.ok();
        let link = self.clone();
        tasks::blocking(move || link.run_blocking(work)).await
    }

    /// The same from a thread that may block.
    pub(super) fn run_blocking<T>(
        &self,
        work: impl FnOnce(&Connect) -> Result<T, CallError>,
    ) -> Result<T, Fault> {
        let connection = self.connection()?;
        work(&connection).map_err(|error| match error {
            CallError::Fault(fault) => fault,
            CallError::Libvirt(error) => self.judge(&connection, &error),
        })
    }

    fn connection(&self) -> Result<Connect, Fault> {
        // Held while dialling: a second caller would only dial the same.
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = session.open.as_ref().filter(|open| open.is_alive().unwrap_or(false)) {
            return Ok(open.clone());
        }
        if let Some((at, fault)) = &session.failed
            && at.elapsed() < REDIAL_PAUSE
        {
            return Err(fault.clone());
        }
        // The dead connection goes first, and with it what was registered with it.
        *session = Session::default();
        match DIALS.pass(|| self.dial()) {
            Ok(open) => {
                *session = self.opened(open);
                session.open.clone().ok_or_else(|| self.ear.unreachable("it has gone"))
            }
            Err(fault) => {
                session.failed = Some((Instant::now(), fault.clone()));
                self.ear.lost(&fault.message);
                Err(fault)
            }
        }
    }

    /// Has libvirt tell what happens, and everybody who waited look again.
    fn opened(&self, open: Connect) -> Session {
        let listener: Arc<dyn Listener> = self.ear.clone();
        let events = events::subscribe(&open, &listener);
        self.ear.connected(open.lib_version().map(shown_version).unwrap_or_default());
        Session { _events: Some(events), open: Some(open), failed: None }
    }

    fn dial(&self) -> Result<Connect, Fault> {
        if self.over_ssh {
            // libvirt's ssh transport does not check host keys against the configured
            // ones, and a connection without that check is none.
            return Err(Fault::new(
                FaultKind::InvalidConfig,
                format!(
                    "provider entry {}: connections over SSH are not supported by this version: \
                     use a local URI such as qemu:///system",
                    self.ear.entry
                ),
            ));
        }
        event_loop::start();
        let open = Connect::open(Some(&self.ear.uri))
            .map_err(|error| self.ear.unreachable(error.message()))?;
        // A driver inside this process has no peer to ping and says so.
        let _ = open.set_keep_alive(KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_COUNT);
        Ok(open)
    }

    fn judge(&self, connection: &Connect, error: &Error) -> Fault {
        if connection.is_alive().unwrap_or(false) {
            return Fault::new(FaultKind::DomainFailed, format!("libvirt: {}", error.message()));
        }
        self.ear.unreachable(error.message())
    }
}

impl Ear {
    fn connected(&self, version: String) {
        let Self { entry, uri, .. } = self;
        tracing::info!(
            message_id = journal::PROVIDER_CONNECTED,
            proxyd_provider = %entry,
            "provider entry {entry}: connected to {uri} (libvirt {version})"
        );
        self.state.send_replace(LinkState::Connected { version });
        self.bells.ring_all(entry);
    }

    /// Tells once that there is no connection.
    fn lost(&self, why: &str) {
        let lost = LinkState::Failed { message: why.to_owned() };
        let first = self.state.send_if_modified(|state| {
            let first = !matches!(state, LinkState::Failed { .. });
            *state = lost;
            first
        });
        if first {
            tracing::warn!(
                message_id = journal::PROVIDER_LOST,
                proxyd_provider = %self.entry,
                proxyd_error = FaultKind::ProviderUnavailable.name(),
                "{why}"
            );
        }
    }

    fn unreachable(&self, why: &str) -> Fault {
        Fault::new(
            FaultKind::ProviderUnavailable,
            format!(
                "provider entry {}: libvirt at {} can't be reached ({why}): check that it is \
                 running (`systemctl status libvirtd`) and that proxyd may use its socket (group \
                 libvirt)",
                self.entry, self.uri
            ),
        )
    }
}

impl Listener for Ear {
    fn domain(&self, uuid: uuid::Uuid) {
        self.bells.ring(uuid);
    }

    fn closed(&self) {
        self.lost(&self.unreachable("the connection was lost").message);
        self.bells.ring_all(&self.entry);
    }
}

/// libvirt's number for a version, as people write it.
pub(super) fn shown_version(version: u32) -> String {
    format!("{}.{}.{}", version / 1_000_000, version / 1000 % 1000, version % 1000)
}

/// Lets so many through at once.
struct Gate {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Gate {
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

    use futures_util::future::join_all;
    use tokio::sync::Notify;

    use super::*;
    use crate::provider::kvm::tests::settings;

    /// The domain that every `test:///default` begins with.
    const DOMAIN: &str = "6695eb01-f6a4-8304-79aa-97f2502e193f";

    #[tokio::test]
    async fn what_happens_to_a_domain_rings_its_bell() {
        let (bells, notify) = (Bells::default(), Arc::new(Notify::new()));
        let settings = settings("default-pool");
        let domain: uuid::Uuid = DOMAIN.parse().unwrap();
        bells.hang(&settings.name, &[domain], &notify);
        let link = Link::new(&settings, bells);
        let destroy = |connection: &Connect| {
            Ok(connection.lookup_domain_by_uuid_string(DOMAIN)?.destroy()?)
        };
        assert_eq!(*link.state().borrow(), LinkState::Connecting);
        link.run(|_| Ok(())).await.unwrap();
        assert!(matches!(*link.state().borrow(), LinkState::Connected { .. }));
        let heard = || tokio::time::timeout(Duration::from_secs(20), notify.notified());
        heard().await.expect("the new connection rings");
        link.run(destroy).await.unwrap();
        heard().await.expect("the event rings");
    }

    #[tokio::test]
    async fn a_dial_that_failed_is_not_repeated_at_once_and_is_told() {
        let mut settings = settings("default-pool");
        settings.uri = "test:///nowhere/at/all.xml".into();
        let link = Link::new(&settings, Bells::default());
        let first = link.run(|_| Ok(())).await.unwrap_err();
        assert_eq!(first.kind, FaultKind::ProviderUnavailable);
        // Mended, it is still not dialled within the pause.
        let ear = Ear {
            entry: settings.name.clone(),
            uri: "test:///default".into(),
            state: watch::Sender::new(LinkState::Connecting),
            bells: Bells::default(),
        };
        let mended = Link { ear: Arc::new(ear), ..link.clone() };
        assert_eq!(mended.run(|_| Ok(())).await, Err(first));
        assert!(matches!(*link.state().borrow(), LinkState::Failed { .. }));
        tokio::time::sleep(REDIAL_PAUSE).await;
        mended.run(|_| Ok(())).await.unwrap();
        assert!(matches!(*mended.state().borrow(), LinkState::Connected { .. }));
    }

    #[tokio::test]
    async fn a_link_that_nobody_holds_is_gone() {
        let link = Link::new(&settings("default-pool"), Bells::default());
        link.run(|_| Ok(())).await.unwrap();
        let session = Arc::downgrade(&link.session);
        drop(link);
        assert!(session.upgrade().is_none(), "its own events hold the connection");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn few_calls_are_under_way_at_once() {
        let link = Link::new(&settings("default-pool"), Bells::default());
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let calls = (0..32).map(|_| {
            let (now, most) = (now.clone(), most.clone());
            link.run(move |_| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        });
        assert!(join_all(calls).await.into_iter().all(|done| done.is_ok()));
        assert!((1..=CONCURRENT_CALLS).contains(&most.load(Ordering::SeqCst)));
    }

    #[test]
    fn a_gate_lets_so_many_through() {
        let gate = Gate { free: Mutex::new(2), freed: Condvar::new() };
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
}
