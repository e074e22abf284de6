//! The libvirt connection of one provider entry: opened when first needed, dropped
//! when it dies, and used from threads that may block.

use std::sync::{Arc, Mutex, Once, PoisonError};

use tokio::sync::Semaphore;
use virt::connect::Connect;
use virt::error::{Error, ErrorNumber};

use crate::config::ProviderSettings;
use crate::model::{EntryName, Fault, FaultKind};
use crate::tasks;

/// Calls that one entry may have under way at once: libvirtd has few workers, and
/// all its clients share them.
const CONCURRENT_CALLS: usize = 4;

/// Keepalive: a peer that doesn't answer three pings, five seconds apart, is dead.
/// Without it a call over a dead link never returns.
const KEEPALIVE_INTERVAL_SECONDS: i32 = 5;
const KEEPALIVE_COUNT: u32 = 3;

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
    entry: EntryName,
    uri: String,
    over_ssh: bool,
    current: Arc<Mutex<Option<Connect>>>,
    permits: Arc<Semaphore>,
}

impl Link {
    pub(super) fn new(settings: &ProviderSettings) -> Self {
        Self {
            entry: settings.name.clone(),
            uri: settings.uri.clone(),
            over_ssh: settings.ssh.is_some(),
            current: Arc::default(),
            permits: Arc::new(Semaphore::new(CONCURRENT_CALLS)),
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
            CallError::Libvirt(error) => self.judge(&connection, &error),
        })
    }

    fn connection(&self) -> Result<Connect, Fault> {
        // Held while dialling: a second caller would only dial the same.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = current.as_ref().filter(|open| open.is_alive().unwrap_or(false)) {
            return Ok(open.clone());
        }
        *current = None;
        let open = self.dial()?;
        tracing::info!(proxyd_provider = %self.entry, "connected to {}", self.uri);
        Ok(current.insert(open).clone())
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
                    self.entry
                ),
            ));
        }
        start_event_loop();
        let open = Connect::open(Some(&self.uri)).map_err(|error| self.unreachable(&error))?;
        // A driver inside this process has no peer to ping and says so.
        let _ = open.set_keep_alive(KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_COUNT);
        Ok(open)
    }

    fn judge(&self, connection: &Connect, error: &Error) -> Fault {
        if connection.is_alive().unwrap_or(false) {
            return Fault::new(FaultKind::DomainFailed, format!("libvirt: {}", error.message()));
        }
        self.unreachable(error)
    }

    fn unreachable(&self, error: &Error) -> Fault {
        Fault::new(
            FaultKind::ProviderUnavailable,
            format!(
                "provider entry {}: libvirt at {} can't be reached ({}): check that it is running \
                 (`systemctl status libvirtd`) and that proxyd may use its socket (group libvirt)",
                self.entry,
                self.uri,
                error.message()
            ),
        )
    }
}

/// Runs libvirt's event loop, which keepalive needs, in a thread of its own for as
/// long as the process lives.
fn start_event_loop() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        virt::error::clear_error_callback();
        if let Err(error) = virt::event::event_register_default_impl() {
            tracing::error!("libvirt's event loop can't be set up: {}", error.message());
            return;
        }
        let looping = || loop {
            if let Err(error) = virt::event::event_run_default_impl() {
                tracing::error!("libvirt's event loop stumbled: {}", error.message());
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("libvirt-events".into()).spawn(looping)
        {
            tracing::error!("libvirt's event loop can't be started: {error}");
        }
    });
}
