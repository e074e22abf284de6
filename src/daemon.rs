//! Puts the parts together, in the order in which each may rely on the one before,
//! and takes them apart again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::config::{self, MetricsListen, Settings};
use crate::dbus::{self, Bus, Polkit, Services};
use crate::image::Spool;
use crate::journal;
use crate::metrics::{self, Metrics, Stock};
use crate::model::{ConditionKind, Fault};
use crate::provider::{self, Bells, Places, Registry, Shared};
use crate::reconcile::{Configured, Event, Handle, Supervisor, Surroundings};
use crate::store::Store;
use crate::tasks;

/// Events that may wait for the bus.
const EVENTS: usize = 16;
/// How often the status line for systemd is brought up to date, and the bus asked
/// whether it is still there.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);
/// How long work under way may take to stop; systemd's own limit is longer.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file.
    pub config: ConfigPath,
    /// Where the records are.
    pub state: PathBuf,
    /// Where downloads wait that libvirt then takes.
    pub cache: PathBuf,
    /// Where what ssh needs is.
    pub places: Places,
    /// The bus to serve on; the system bus when absent.
    pub bus: Option<String>,
}

/// Where the configuration is.
#[derive(Debug, Clone)]
pub enum ConfigPath {
    /// At the default place; without the file the built-in configuration holds.
    Default(PathBuf),
    /// Where the operator says; it has to be there.
    Given(PathBuf),
}

impl ConfigPath {
    /// Reads and validates the configuration.
    ///
    /// # Errors
    /// `InvalidConfig`, listing every error.
    pub fn load(&self) -> Result<Settings, Fault> {
        let loaded = match (self, config::load(self.path())) {
            (Self::Default(_), Err(error)) if error.is_not_found() => Settings::builtin(),
            (_, loaded) => loaded,
        };
        Ok(loaded?)
    }

    fn path(&self) -> &Path {
        match self {
            Self::Default(path) | Self::Given(path) => path,
        }
    }
}

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// What keeps it from starting: configuration, state directory or bus; or the loss
/// of the bus.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let settings = options.config.load()?;
    let store = Store::open(&options.state)?;
    let (records, set_aside) = store.load()?;
    for aside in set_aside {
        tracing::error!(
            message_id = journal::RECORD_SET_ASIDE,
            "a record can't be read and was set aside as {}: {}",
            aside.path.display(),
            aside.error
        );
    }
    let (events, presented) = mpsc::channel(EVENTS);
    let (bells, metrics) = (Bells::default(), Arc::new(Metrics::default()));
    let (spool, places) = (Spool::new(options.cache.clone()), options.places.clone());
    let shared = Shared { spool, bells: bells.clone(), places };
    let configured = configure(settings, &Registry::default(), &shared);
    let supervisor = Supervisor::new(Surroundings {
        store,
        configured,
        events,
        bells,
        metrics: metrics.clone(),
        stop: CancellationToken::new(),
    });
    let pages = Pages { metrics, supervisor: supervisor.clone(), served: Mutex::default() };
    let config = options.config.clone();
    let reload = Arc::new(Reload { config, supervisor, shared, pages });
    reload.pages.serve().await;
    let bus = serve(&options, &reload, presented).await?;
    reload.supervisor.resume(records).await;
    bus.present_images(&reload.supervisor).await.context("the images can't be presented")?;
    bus.claim().await.with_context(|| {
        format!("the bus name {} can't be taken (is the bus policy installed?)", dbus::BUS_NAME)
    })?;
    notify(&[NotifyState::Ready]);
    tracing::info!("serving {} with {}", dbus::BUS_NAME, options.config.path().display());
    let outcome = attend(&bus, &reload).await;
    stop(&bus, &reload.supervisor).await;
    outcome
}

fn configure(settings: Settings, previous: &Registry, shared: &Shared) -> Configured {
    let providers = Registry::build(&settings, previous, shared);
    Configured { settings: Arc::new(settings), providers }
}

async fn serve(
    options: &Options,
    reload: &Arc<Reload>,
    events: mpsc::Receiver<Event>,
) -> anyhow::Result<Bus> {
    let reloader = reload.clone();
    let services = Services {
        supervisor: reload.supervisor.clone(),
        authorizer: Arc::new(Polkit),
        reloader: Arc::new(move || {
            let reload = reloader.clone();
            Box::pin(async move { reload.run().await })
        }),
    };
    let bus = Bus::serve(options.bus.as_deref(), services.clone())
        .await
        .context("the bus can't be reached")?;
    bus.present(services, events).await;
    Ok(bus)
}

/// Reads the configuration again and puts it in force.
struct Reload {
    config: ConfigPath,
    supervisor: Arc<Supervisor>,
    shared: Shared,
    pages: Pages,
}

impl Reload {
    async fn run(&self) -> Result<(), Fault> {
        let moment = NotifyState::monotonic_usec_now().ok();
        notify(&[Some(NotifyState::Reloading), moment].into_iter().flatten().collect::<Vec<_>>());
        let outcome = self.apply().await;
        match &outcome {
            Ok(()) => tracing::info!(
                message_id = journal::RELOADED,
                "the configuration {} is in force",
                self.config.path().display()
            ),
            Err(fault) => tracing::error!(
                message_id = journal::RELOAD_REFUSED,
                proxyd_error = fault.kind.name(),
                "the configuration {} was refused and the old one stays:\n{fault}",
                self.config.path().display()
            ),
        }
        notify(&[NotifyState::Ready]);
        outcome
    }

    async fn apply(&self) -> Result<(), Fault> {
        let config = self.config.clone();
        let settings = tasks::blocking(move || config.load()).await?;
        let previous = self.supervisor.configured().providers;
        let configured = configure(settings, &previous, &self.shared);
        self.supervisor.reconfigure(configured).await;
        self.pages.serve().await;
        Ok(())
    }
}

/// The metrics' page, served where the configuration says.
struct Pages {
    metrics: Arc<Metrics>,
    supervisor: Arc<Supervisor>,
    served: Mutex<Option<(MetricsListen, CancellationToken)>>,
}

impl Pages {
    /// Serves it at the place that is configured now. That it can't be is no reason for
    /// the Proxies to suffer.
    async fn serve(&self) {
        let wanted = self.supervisor.configured().settings.metrics.clone();
        let mut served = self.served.lock().await;
        if served.as_ref().map(|(at, _)| at) == wanted.as_ref() {
            return;
        }
        if let Some((_, stop)) = served.take() {
            stop.cancel();
        }
        let Some(at) = wanted else { return };
        let (metrics, supervisor) = (self.metrics.clone(), self.supervisor.clone());
        let page = Arc::new(move || metrics.text(&stock(&supervisor)));
        let stop = CancellationToken::new();
        match metrics::serve(&at, page, stop.clone()).await {
            Ok(()) => *served = Some((at, stop)),
            Err(error) => tracing::error!("the metrics can't be served at {at:?}: {error}"),
        }
    }
}

fn stock(supervisor: &Supervisor) -> Vec<Stock> {
    let row = |handle: &Handle| {
        let status = &handle.view().status;
        Stock {
            proxy: handle.name().to_string(),
            phase: status.phase,
            healthy: status.healthy(),
            exposed: status.holds(ConditionKind::Exposed),
        }
    };
    supervisor.list().iter().map(row).collect()
}

/// Waits for signals, and keeps the status line up to date meanwhile.
async fn attend(bus: &Bus, reload: &Reload) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut tick = tokio::time::interval(STATUS_INTERVAL);
    let mut shown = String::new();
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            // A refusal is in the journal, and the old configuration stays.
            _ = hangup.recv() => { let _ = reload.run().await; }
            _ = tick.tick() => {
                status(&reload.supervisor, &mut shown);
                bus.check().await.context("the bus is gone")?;
                show_life();
            }
        }
    }
}

/// Tells systemd's watchdog that this process lives, as long as libvirt's event loop
/// does: stuck, it can't be helped from within, and a new process resumes everything.
fn show_life() {
    match provider::event_loop_stuck() {
        None => notify(&[NotifyState::Watchdog]),
        Some(still) => tracing::error!(
            "libvirt's event loop has not turned for {} s: systemd will start proxyd again",
            still.as_secs()
        ),
    }
}

fn status(supervisor: &Supervisor, shown: &mut String) {
    let handles = supervisor.list();
    let healthy = handles.iter().filter(|handle| handle.view().status.healthy()).count();
    let now = format!("{} proxies, {healthy} healthy", handles.len());
    if now != *shown {
        notify(&[NotifyState::Status(&now)]);
        *shown = now;
    }
}

async fn stop(bus: &Bus, supervisor: &Supervisor) {
    notify(&[NotifyState::Stopping, NotifyState::Status("putting down the work under way")]);
    // Whoever calls now shall be told that nobody is there, rather than wait.
    if let Err(error) = bus.release().await {
        tracing::debug!("the bus name can't be given back: {error}");
    }
    if tokio::time::timeout(STOP_TIMEOUT, supervisor.shutdown()).await.is_err() {
        tracing::warn!("some work did not stop within {STOP_TIMEOUT:?}; it is resumed at start");
    }
}

/// Tells systemd, when it listens.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd can't be told: {error}");
    }
}
