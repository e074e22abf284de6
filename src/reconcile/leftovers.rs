//! Domains and volumes that look like parts of a guest and belong to no Proxy, such as
//! when a record was lost: an operator adopts or removes them, one by one. Another
//! daemon may share the pool, so nothing is ever removed by itself.

use std::collections::BTreeMap;

use super::Supervisor;
use crate::config::OnRemoval;
use crate::journal;
use crate::model::{
    EntryName, Fault, FaultKind, Guest, GuestFile, Origin, ProxyName, ProxySpec, Slot,
};
use crate::provider::{Owned, Stray, StrayPart};
use crate::store::{Artifact, Build, Record};

/// What is left of one guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// The Proxy that it would belong to.
    pub proxy: ProxyName,
    /// The domain's name, or that which the volumes would have.
    pub domain: String,
    /// The Proxy's UUID and the slot, when there is a domain: only that proves whose
    /// it is.
    pub identity: Option<(uuid::Uuid, Slot)>,
    /// The volumes.
    pub volumes: Vec<String>,
}

impl Supervisor {
    /// What is left of guests at `entry` without a Proxy.
    ///
    /// # Errors
    /// `NoSuchProvider`, or what keeps the host from telling.
    pub async fn leftovers(&self, entry: &EntryName) -> Result<Vec<Leftover>, Fault> {
        let strays = self.configured().providers.get(entry)?.strays().await?;
        let mut found: BTreeMap<String, Leftover> = BTreeMap::new();
        for Stray { proxy, part } in strays {
            if self.owns(&proxy, &part) {
                continue;
            }
            let (domain, identity, volume) = match part {
                StrayPart::Domain { name, uuid, slot } => (name, Some((uuid, slot)), None),
                StrayPart::Volume { name } => {
                    let Some(file) = GuestFile::of_volume(&name) else { continue };
                    (file.domain, None, Some(name))
                }
            };
            let new = Leftover { proxy, domain: domain.clone(), identity: None, volumes: vec![] };
            let leftover = found.entry(domain).or_insert(new);
            leftover.identity = leftover.identity.or(identity);
            leftover.volumes.extend(volume);
        }
        Ok(found.into_values().collect())
    }

    /// Whether a Proxy accounts for it: one that is there will report what stands in
    /// its way by itself.
    fn owns(&self, proxy: &ProxyName, part: &StrayPart) -> bool {
        let Ok(handle) = self.get(proxy) else { return false };
        match part {
            StrayPart::Domain { uuid, .. } => handle.view().uuid == *uuid,
            StrayPart::Volume { .. } => true,
        }
    }

    /// Removes what is left of the guest of `domain` at `entry`.
    ///
    /// # Errors
    /// `NoSuchProxy` when nothing is left of it; `InvalidArgument` when only volumes
    /// are: their names alone prove nothing.
    pub async fn remove_leftover(&self, entry: &EntryName, domain: &str) -> Result<(), Fault> {
        let _admission = self.admission.lock().await;
        let leftover = self.leftover(entry, domain, |leftover| leftover.domain == domain).await?;
        let (uuid, slot) = leftover.identity.ok_or_else(|| unproven(&leftover))?;
        let guest = Guest { name: leftover.proxy.clone(), uuid, slot };
        let has = |name: &String| leftover.volumes.contains(name);
        let owned = Owned { overlay: has(&guest.overlay()), seed: has(&guest.seed()) };
        self.configured().providers.get(entry)?.remove(&guest, owned).await?;
        tracing::info!(
            message_id = journal::PROXY_REMOVED,
            proxyd_proxy = %leftover.proxy,
            proxyd_provider = %entry,
            "what was left of {domain} was removed"
        );
        Ok(())
    }

    /// Makes a Proxy of what is left of one, with the specification that its guest
    /// shall be taken to have. A guest that runs goes on running.
    ///
    /// # Errors
    /// `AlreadyExists`, `NoSuchProxy` when no domain of ours is left of it,
    /// `InvalidArgument` when only volumes are.
    pub async fn adopt(&self, name: ProxyName, spec: ProxySpec) -> Result<super::Handle, Fault> {
        let _admission = self.admission.lock().await;
        if self.get(&name).is_ok() {
            let message = format!("there is a Proxy {name}: delete it first");
            return Err(Fault::new(FaultKind::AlreadyExists, message));
        }
        self.check(&spec)?;
        let entry = spec.provider.clone();
        let leftover =
            self.leftover(&entry, name.as_str(), |leftover| leftover.proxy == name).await?;
        let (uuid, slot) = leftover.identity.ok_or_else(|| unproven(&leftover))?;
        let provider = self.configured().providers.get(&entry)?;
        let base = provider.adopt(&Guest { name: name.clone(), uuid, slot }).await?;
        let mut record = Record::new(name, spec.clone(), Origin::Api, OnRemoval::Delete);
        let mut build = Build::new(spec, slot, 1);
        (build.overlay, build.seed) = (Artifact::Made, Artifact::Made);
        (build.base, build.started) = (Some(base), true);
        (record.uuid, record.builds, record.build) = (uuid, 1, Some(build));
        self.admit(record).await
    }

    async fn leftover(
        &self,
        entry: &EntryName,
        name: &str,
        wanted: impl Fn(&Leftover) -> bool,
    ) -> Result<Leftover, Fault> {
        let mut found: Vec<_> =
            self.leftovers(entry).await?.into_iter().filter(|one| wanted(one)).collect();
        // Of two guests of a Proxy, one with a domain says more.
        found.sort_by_key(|leftover| leftover.identity.is_none());
        found.into_iter().next().ok_or_else(|| {
            let shown: String = name.chars().take(80).collect();
            let message = format!(
                "nothing is left of {shown:?} at provider entry {entry}: ListLeftovers \
                 (`proxyctl provider leftovers {entry}`) tells what is"
            );
            Fault::new(FaultKind::NoSuchProxy, message)
        })
    }
}

fn unproven(leftover: &Leftover) -> Fault {
    let volumes = leftover.volumes.join(", ");
    Fault::new(
        FaultKind::InvalidArgument,
        format!(
            "of {} only volumes are left ({volumes}), and their names alone don't prove whose \
             they are: look at them, and remove them with `virsh vol-delete`",
            leftover.domain
        ),
    )
}
