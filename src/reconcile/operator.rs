//! What an operator asks of a Proxy that is there, and asks about it.

use std::time::Duration;

use super::{Change, Order, Supervisor, source};
use crate::evidence::{Evidence, Subject};
use crate::health::{Hop, Prober, Verdict};
use crate::model::{Fault, FaultKind, Origin, ProxyName, ProxySpec, Secret};

impl Supervisor {
    /// What can be told of a Proxy that is not as it should be, as JSON.
    ///
    /// # Errors
    /// `NoSuchProxy`. What can't be found out is told within.
    pub async fn evidence(&self, name: &ProxyName) -> Result<String, Fault> {
        let view = self.get(name)?.view();
        let clues = match self.configured().providers.get(&view.spec.provider) {
            Ok(provider) => provider.clues(&view.guest(name)).await,
            Err(fault) => Err(fault),
        };
        let agent_wanted = self.shared.wants_agent(&view.spec.provider);
        let vendor_data =
            self.configured().settings.providers.get(&view.spec.provider).and_then(|entry| {
                entry
                    .vendor_data
                    .as_ref()
                    .map(|data| Secret::new(data.expose().as_bytes().to_vec()))
            });
        let own = [view.spec.user_data.clone(), view.spec.network_config.clone()];
        let secrets: Vec<Secret> = own.into_iter().flatten().chain(vendor_data).collect();
        let subject = Subject { name, status: &view.status, agent_wanted, secrets: &secrets };
        Ok(Evidence::new(&subject, clues).json())
    }

    /// The last `limit` bytes of a Proxy's serial console.
    ///
    /// # Errors
    /// `NoSuchProxy`, `NoSuchProvider`; `StateFailed` when the log can't be read.
    pub async fn console(&self, name: &ProxyName, limit: u64) -> Result<Vec<u8>, Fault> {
        let view = self.get(name)?.view();
        let provider = self.configured().providers.get(&view.spec.provider)?;
        provider.console(&view.guest(name), limit).await
    }

    /// Gives a Proxy another specification, made by `change` from the one it has. Tells
    /// which keys changed, and when each takes effect.
    ///
    /// # Errors
    /// `NoSuchProxy`; `InvalidArgument` for one that the configuration declares; what
    /// `change` says; what keeps the new one from being admitted.
    pub async fn update(
        &self,
        name: &ProxyName,
        change: impl FnOnce(&ProxySpec) -> Result<ProxySpec, Fault>,
    ) -> Result<Vec<Change>, Fault> {
        let _admission = self.admission.lock().await;
        let handle = self.get(name)?;
        let view = handle.view();
        if view.origin == Origin::Config {
            return Err(declared(name, "change it there and reload"));
        }
        let spec = change(&view.spec)?;
        self.check(&spec)?;
        self.check_disk(&spec)?;
        handle.order(Order::Update(Box::new(spec))).await
    }

    /// Makes sure that the disk of `spec` is not smaller than its image, as far as that
    /// is known: a guest must not be given up for one that can't be made.
    fn check_disk(&self, spec: &ProxySpec) -> Result<(), Fault> {
        let (source, _) = source::resolve(&self.configured().settings, spec)?;
        let presented = self.images().get(&source.id()).map_or(0, |image| image.virtual_size);
        source::disk_size(spec, &source.base_name(), presented).map(drop)
    }

    /// Has a Proxy's guest run, or be off.
    ///
    /// # Errors
    /// `NoSuchProxy`, `StateFailed`.
    pub async fn set_running(&self, name: &ProxyName, running: bool) -> Result<(), Fault> {
        let order = if running { Order::Start } else { Order::Stop };
        self.get(name)?.order(order).await.map(drop)
    }

    /// Has a Proxy's guest shut down and started.
    ///
    /// # Errors
    /// `NoSuchProxy`; `InvalidArgument` for one that is stopped.
    pub async fn restart(&self, name: &ProxyName) -> Result<(), Fault> {
        self.get(name)?.order(Order::Restart).await.map(drop)
    }

    /// Has a Proxy's guest made anew; with `overlap` beside the present one, which it
    /// replaces if it answers within that time.
    ///
    /// # Errors
    /// `NoSuchProxy`; `InvalidArgument` for an overlap with one that is stopped.
    pub async fn rebuild(
        &self,
        name: &ProxyName,
        overlap: Option<Option<Duration>>,
    ) -> Result<(), Fault> {
        self.get(name)?.order(Order::Rebuild { overlap }).await.map(drop)
    }

    /// Probes a Proxy at once: whether it answers, and what was found. What counts as
    /// healthy is still decided by the worker's own probes.
    ///
    /// # Errors
    /// `NoSuchProxy`.
    pub async fn probe(&self, name: &ProxyName) -> Result<(bool, String), Fault> {
        let view = self.get(name)?.view();
        let Some(address) = view.status.address else {
            let text = format!("{}: the guest has no known address", Hop::NoAddress.name());
            return Ok((false, text));
        };
        let settings = self.configured().settings;
        let target = source::target(&settings.health, &view.spec, address);
        Ok(match Prober::default().probe(&target).await {
            Verdict::Healthy { latency } => {
                let (url, proxy) = (&target.url, target.proxy);
                (true, format!("{url} answers through {proxy} in {} ms", latency.as_millis()))
            }
            Verdict::Unhealthy { hop, message } => (false, format!("{}: {message}", hop.name())),
        })
    }
}

pub(super) fn declared(name: &ProxyName, way: &str) -> Fault {
    let message = format!("Proxy {name} is declared in the configuration: {way}");
    Fault::new(FaultKind::InvalidArgument, message)
}
