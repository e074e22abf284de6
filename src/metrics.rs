//! What has happened since the daemon started, counted for Prometheus. What is now is
//! read from the Proxies themselves when it is asked for.
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

mod listener;

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub use listener::serve;

use crate::health::Hop;
use crate::model::{FaultKind, Phase};

/// Upper bounds of the latency histogram, in seconds.
const LATENCIES: [f64; 9] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProxyLabel {
    proxy: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// What one Proxy is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stock {
    /// Its name.
    pub proxy: String,
    /// Its phase.
    pub phase: Phase,
    /// Whether the health URL answers through it.
    pub healthy: bool,
    /// Whether it serves strangers.
    pub exposed: bool,
}

/// The counters, and the gauges that are set just before they are read.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    proxies: Family<PhaseLabel, Gauge>,
    healthy: Family<ProxyLabel, Gauge>,
    exposed: Family<ProxyLabel, Gauge>,
    latency: Histogram,
    misses: Family<KindLabel, Counter>,
    fetches: Family<ResultLabel, Counter>,
    bytes: Counter<u64, AtomicU64>,
    errors: Family<KindLabel, Counter>,
    /// One reading at a time: it sets the gauges first.
    reading: Mutex<()>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("proxyd");
        let latency = Histogram::new(LATENCIES);
        let (proxies, healthy, exposed) = Default::default();
        let (misses, fetches, bytes, errors) = Default::default();
        registry.register("proxies", "Proxies by phase", Family::clone(&proxies));
        registry.register(
            "proxy_healthy",
            "Whether the health URL answers through the Proxy",
            Family::clone(&healthy),
        );
        registry.register(
            "proxy_exposed",
            "Whether the Proxy serves clients that it should not",
            Family::clone(&exposed),
        );
        registry.register_with_unit(
            "probe",
            "Time that probes which were answered took",
            Unit::Seconds,
            latency.clone(),
        );
        registry.register(
            "probe_failures",
            "Probes that failed, by the hop that failed",
            Family::clone(&misses),
        );
        registry.register("image_fetches", "Images fetched, by result", Family::clone(&fetches));
        registry.register_with_unit(
            "image_fetched",
            "Bytes of images that were downloaded",
            Unit::Bytes,
            Counter::clone(&bytes),
        );
        registry.register("errors", "Steps that failed, by kind", Family::clone(&errors));
        let reading = Mutex::default();
        Self {
            registry,
            proxies,
            healthy,
            exposed,
            latency,
            misses,
            fetches,
            bytes,
            errors,
            reading,
        }
    }
}

impl Metrics {
    /// A probe was answered.
    pub fn answered(&self, latency: Duration) {
        self.latency.observe(latency.as_secs_f64());
    }

    /// A probe failed.
    pub fn missed(&self, hop: Hop) {
        self.misses.get_or_create(&KindLabel { kind: hop.name() }).inc();
    }

    /// A step failed.
    pub fn failed(&self, kind: FaultKind) {
        self.errors.get_or_create(&KindLabel { kind: kind.name() }).inc();
    }

    /// An image was, or could not be, fetched; `bytes` came over the network.
    pub fn fetched(&self, succeeded: bool, bytes: u64) {
        let result = if succeeded { "done" } else { "failed" };
        self.fetches.get_or_create(&ResultLabel { result }).inc();
        self.bytes.inc_by(bytes);
    }

    /// All of it as text.
    pub fn text(&self, stock: &[Stock]) -> String {
        let _reading = self.reading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.take_stock(stock);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn take_stock(&self, stock: &[Stock]) {
        self.healthy.clear();
        self.exposed.clear();
        for phase in Phase::ALL {
            self.proxies.get_or_create(&PhaseLabel { phase: phase.as_str() }).set(0);
        }
        for Stock { proxy, phase, healthy, exposed } in stock {
            self.proxies.get_or_create(&PhaseLabel { phase: phase.as_str() }).inc();
            let label = ProxyLabel { proxy: proxy.clone() };
            self.healthy.get_or_create(&label).set((*healthy).into());
            self.exposed.get_or_create(&label).set((*exposed).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_counted() {
        let metrics = Metrics::default();
        metrics.answered(Duration::from_millis(30));
        metrics.missed(Hop::Refused);
        metrics.missed(Hop::Refused);
        metrics.failed(FaultKind::NoSpace);
        metrics.fetched(true, 1000);
        let proxy = "web".to_owned();
        let stock = Stock { proxy, phase: Phase::Failed, healthy: false, exposed: true };
        let text = metrics.text(&[stock]);
        for line in [
            "proxyd_proxies{phase=\"Ready\"} 0",
            "proxyd_proxies{phase=\"Failed\"} 1",
            "proxyd_proxy_exposed{proxy=\"web\"} 1",
            "proxyd_probe_seconds_bucket{le=\"0.05\"} 1",
            "proxyd_probe_failures_total{kind=\"Refused\"} 2",
            "proxyd_errors_total{kind=\"NoSpace\"} 1",
            "proxyd_image_fetches_total{result=\"done\"} 1",
            "proxyd_image_fetched_bytes_total 1000",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
