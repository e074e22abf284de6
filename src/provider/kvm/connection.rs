//! The libvirt connection of one provider entry: opened when first needed, dropped
//! when it dies, and used from threads that may block.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{Semaphore, watch};
use virt::connect::Connect;
use virt::error::{Error, ErrorNumber};

use super::dial::{self, Dialer, Line};
use super::events::{self, Listener, Subscription};
use crate::config::ProviderSettings;
use crate::journal;
use crate::model::{Fault, FaultKind};
use crate::provider::{Bells, LinkState, Places};
use crate::tasks;

/// Calls that one entry may have under way at once: libvirtd has few workers, and
/// all its clients share them.
const CONCURRENT_CALLS: usize = 4;

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
    session: Arc<Mutex<Session>>,
    permits: Arc<Semaphore>,
    ear: Arc<Ear>,
}

/// What hears of a connection, and tells. It does not hold the connection, which holds
/// it.
struct Ear {
    dialer: Dialer,
    state: watch::Sender<LinkState>,
    bells: Bells,
}

/// What there is of a connection.
#[derive(Default)]
struct Session {
    // Before the connection, so that it is dropped first.
    _events: Option<Subscription>,
    line: Option<Line>,
    failed: Option<Failed>,
}

/// Dials in a row that failed, and what came of the last.
struct Failed {
    times: u32,
    /// When; never, once it may be dialled at once.
    at: Option<Instant>,
    fault: Fault,
}

impl Link {
    pub(super) fn new(settings: &ProviderSettings, bells: Bells, places: &Places) -> Self {
        let state = watch::Sender::new(LinkState::Connecting);
        Self {
            session: Arc::default(),
            permits: Arc::new(Semaphore::new(CONCURRENT_CALLS)),
            ear: Arc::new(Ear { dialer: Dialer::new(settings, places), state, bells }),
        }
    }

    /// How the connection is, as it changes.
    pub(super) fn state(&self) -> watch::Receiver<LinkState> {
        self.ear.state.subscribe()
    }

    /// Who is logged in to where, when that is another host.
    pub(super) fn login(&self) -> Option<String> {
        self.ear.dialer.login()
    }

    /// Has the next call dial, however lately that failed.
    pub(super) fn dial_at_once(&self) {
        if let Some(failed) = &mut self.session().failed {
            failed.at = None;
        }
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
            CallError::Libvirt(error) => {
                let dead = || self.ear.dialer.broken(self.session().line.as_ref(), error.message());
                judge(&connection, &error, dead)
            }
        })
    }

    /// The same with a connection for this work alone, which moves so many bytes that
    /// it would hold up all others.
    pub(super) async fn bulk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connect) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, Fault> {
        let link = self.clone();
        tasks::blocking(move || {
            // Who can't be reached is not dialled once more for this.
            link.connection()?;
            let line = link.ear.dialer.dial(false, dial::BULK)?;
            work(line.connection()).map_err(|error| match error {
                CallError::Fault(fault) => fault,
                CallError::Libvirt(error) => {
                    let dead = || link.ear.dialer.broken(Some(&line), error.message());
                    judge(line.connection(), &error, dead)
                }
            })
        })
        .await
    }

    fn session(&self) -> std::sync::MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> Result<Connect, Fault> {
        // Held while dialling: a second caller would only dial the same.
        let mut session = self.session();
        if let Some(line) = session.line.as_ref().filter(|line| line.is_alive()) {
            return Ok(line.connection().clone());
        }
        let times = session.failed.as_ref().map_or(0, |failed| failed.times);
        if let Some(Failed { at: Some(at), fault, .. }) = &session.failed
            && at.elapsed() < dial::pause(times, self.login().is_some())
        {
            return Err(fault.clone());
        }
        // The dead connection goes first, and with it what was registered with it.
        *session = Session::default();
        match self.ear.dialer.dial(times > 0, dial::CALLS) {
            Ok(line) => {
                let connection = line.connection().clone();
                *session = self.opened(line);
                Ok(connection)
            }
            Err(fault) => {
                let failed =
                    Failed { times: times + 1, at: Some(Instant::now()), fault: fault.clone() };
                session.failed = Some(failed);
                self.ear.lost(&fault.message);
                Err(fault)
            }
        }
    }

    /// Has libvirt tell what happens, and everybody who waited look again.
    fn opened(&self, line: Line) -> Session {
        let listener: Arc<dyn Listener> = self.ear.clone();
        let events = events::subscribe(line.connection(), &listener);
        let version = line.connection().lib_version().map(shown_version).unwrap_or_default();
        self.ear.connected(version);
        Session { _events: Some(events), line: Some(line), failed: None }
    }
}

/// What a plain error of libvirt means: that of a `dead` connection is no word of the
/// host's.
fn judge(connection: &Connect, error: &Error, dead: impl FnOnce() -> Fault) -> Fault {
    if connection.is_alive().unwrap_or(false) {
        return Fault::new(FaultKind::DomainFailed, format!("libvirt: {}", error.message()));
    }
    dead()
}

impl Ear {
    fn connected(&self, version: String) {
        let (entry, uri) = (self.dialer.entry(), self.dialer.uri());
        tracing::info!(
            message_id = journal::PROVIDER_CONNECTED,
            proxyd_provider = %entry,
            "provider entry {entry}: connected to {uri} (libvirt {version})"
        );
        self.state.send_replace(LinkState::Connected { version });
        self.bells.ring_all(entry);
    }

    /// Tells that there is no connection; the journal once.
    fn lost(&self, why: &str) {
        let lost = LinkState::Failed { message: why.to_owned() };
        let mut first = false;
        self.state.send_if_modified(|state| {
            first = !matches!(state, LinkState::Failed { .. });
            let changed = *state != lost;
            *state = lost;
            changed
        });
        if first {
            tracing::warn!(
                message_id = journal::PROVIDER_LOST,
                proxyd_provider = %self.dialer.entry(),
                proxyd_error = FaultKind::ProviderUnavailable.name(),
                "{why}"
            );
        }
    }
}

impl Listener for Ear {
    fn domain(&self, uuid: uuid::Uuid) {
        self.bells.ring(uuid);
    }

    fn closed(&self) {
        self.lost(&self.dialer.broken(None, "the connection was lost").message);
        self.bells.ring_all(self.dialer.entry());
    }
}

/// libvirt's number for a version, as people write it.
pub(super) fn shown_version(version: u32) -> String {
    format!("{}.{}.{}", version / 1_000_000, version / 1000 % 1000, version % 1000)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

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
        let link = Link::new(&settings, bells, &Places::default());
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
        let link = Link::new(&settings, Bells::default(), &Places::default());
        let first = link.run(|_| Ok(())).await.unwrap_err();
        assert_eq!(first.kind, FaultKind::ProviderUnavailable);
        // Mended, it is still not dialled within the pause.
        settings.uri = "test:///default".into();
        let ear = Ear {
            dialer: Dialer::new(&settings, &Places::default()),
            state: watch::Sender::new(LinkState::Connecting),
            bells: Bells::default(),
        };
        let mended = Link { ear: Arc::new(ear), ..link.clone() };
        assert_eq!(mended.run(|_| Ok(())).await, Err(first));
        assert!(matches!(*link.state().borrow(), LinkState::Failed { .. }));
        tokio::time::sleep(dial::pause(1, false)).await;
        mended.run(|_| Ok(())).await.unwrap();
        assert!(matches!(*mended.state().borrow(), LinkState::Connected { .. }));
    }

    #[tokio::test]
    async fn a_link_that_nobody_holds_is_gone() {
        let link = Link::new(&settings("default-pool"), Bells::default(), &Places::default());
        link.run(|_| Ok(())).await.unwrap();
        let session = Arc::downgrade(&link.session);
        drop(link);
        assert!(session.upgrade().is_none(), "its own events hold the connection");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn few_calls_are_under_way_at_once() {
        let link = Link::new(&settings("default-pool"), Bells::default(), &Places::default());
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
}
