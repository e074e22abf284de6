//! The one place that knows which built-in drives which entry.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kvm::Kvm;
use super::{Shared, SharedProvider};
use crate::config::{ProviderSettings, Settings};
use crate::model::{EntryName, Fault, FaultKind};

/// The providers of a configuration. Cheap to clone.
#[derive(Clone, Default)]
pub struct Registry {
    entries: Arc<BTreeMap<EntryName, Entry>>,
}

#[derive(Clone)]
struct Entry {
    settings: ProviderSettings,
    provider: SharedProvider,
}

impl Registry {
    /// The providers of `settings`. An entry that hasn't changed keeps its provider,
    /// and with it its connection.
    pub fn build(settings: &Settings, previous: &Self, shared: &Shared) -> Self {
        let entry = |wanted: &ProviderSettings| {
            let kept = previous.entries.get(&wanted.name).filter(|old| old.settings == *wanted);
            kept.cloned().unwrap_or_else(|| Entry {
                settings: wanted.clone(),
                provider: Arc::new(Kvm::new(wanted.clone(), shared)),
            })
        };
        let pairs = settings.providers.iter().map(|(name, wanted)| (name.clone(), entry(wanted)));
        Self { entries: Arc::new(pairs.collect()) }
    }

    /// Every entry with its settings and its provider.
    pub fn all(&self) -> impl Iterator<Item = (&ProviderSettings, &SharedProvider)> {
        self.entries.values().map(|entry| (&entry.settings, &entry.provider))
    }

    /// The provider of `name`.
    ///
    /// # Errors
    /// `NoSuchProvider`, naming what there is.
    pub fn get(&self, name: &EntryName) -> Result<SharedProvider, Fault> {
        self.entries.get(name).map(|entry| entry.provider.clone()).ok_or_else(|| {
            let known: Vec<_> = self.entries.keys().map(EntryName::as_str).collect();
            Fault::new(
                FaultKind::NoSuchProvider,
                format!(
                    "the configuration has no provider entry {name}; it has: {}",
                    known.join(", ")
                ),
            )
        })
    }
}
