//! Publishing through libvirt's storage API alone, for pools on other hosts, and for
//! hosts whose pool directory this process may not write.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use virt::connect::Connect;
use virt::storage_pool::StoragePool;

use super::connection::{CallError, Link};
use super::marked::{self, Finding, Old};
use super::pace::{Pace, Sightings};
use super::publication::{Publication, Subject};
use super::removal::Removal;
use super::token::Claim;
use super::transfer::Transfer;
use super::volumes::{self, NewVolume};
use super::{Publisher, adoption, appeared, host, inventory, users};
use crate::config::ProviderSettings;
use crate::image::{Fetcher, ImageSource, Leftover, Pending, Progress, Sighting, Spool, Stage};
use crate::model::{Fault, FaultKind, ImageKey, Pin, Sha256Digest};
use crate::store::BaseRef;

/// Bases that may be on their way at once beside the first of each entry, which no other
/// entry ever waits for.
static FURTHER: Semaphore = Semaphore::const_new(8);
/// What volumes are called that are made to see whether they can be.
const CHECK: &str = "proxyd-check-";
/// The wait before a broken publication is gone on with.
const PAUSE: Duration = Duration::from_secs(2);

/// A marker that stands where another one is to be.
struct Replaced {
    bytes: Vec<u8>,
    /// What the base was, if something backs onto it.
    held: Option<Sha256Digest>,
}

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Storage {
    settings: Arc<ProviderSettings>,
    link: Link,
    spool: Spool,
    pace: Arc<Pace>,
    sightings: Arc<Sightings>,
    /// Images that this entry may have on their way at once.
    turns: Arc<Semaphore>,
    /// Of these, the first.
    first: Arc<Semaphore>,
}

impl Storage {
    pub(super) fn new(
        settings: Arc<ProviderSettings>,
        link: Link,
        spool: Spool,
        pace: Pace,
    ) -> Self {
        let turns = Arc::new(Semaphore::new(settings.max_concurrent));
        let first = Arc::new(Semaphore::new(1));
        let (pace, sightings) = (Arc::new(pace), Arc::default());
        Self { settings, link, spool, pace, sightings, turns, first }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connect, &StoragePool) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, Fault> {
        let settings = self.settings.clone();
        self.link.run(move |connection| work(connection, &host::pool(connection, &settings)?)).await
    }

    /// The same with a connection of its own.
    async fn bulk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connect, &StoragePool) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, Fault> {
        let settings = self.settings.clone();
        self.link
            .bulk(move |connection| work(connection, &host::pool(connection, &settings)?))
            .await
    }

    async fn examine(&self, source: &ImageSource) -> Result<Finding, Fault> {
        let source = source.clone();
        self.run(move |connection, pool| marked::examine(connection, pool, &source)).await
    }

    /// Has what is there hashed, removed or sent anew, whatever it needs.
    async fn act_on(
        &self,
        finding: Finding,
        source: &ImageSource,
        (progress, cancel): (&Progress, &CancellationToken),
    ) -> Result<BaseRef, Fault> {
        match finding {
            Finding::Ready(base) => Ok(base),
            Finding::Outdated(base, old) => {
                let mut marker = old.marker.clone();
                marker.note(source);
                let name = base.file.clone();
                self.run(move |connection, pool| {
                    marked::rewrite(connection, pool, &name, &old, &marker)
                })
                .await?;
                Ok(base)
            }
            Finding::Unproven(base, old) => self.prove(source, base, old, progress, cancel).await,
            Finding::Missing => self.publish(source, None, progress, cancel).await,
            Finding::Pending(bytes, held) => {
                self.sightings.check(&source.base_name(), &bytes, &self.spool, &self.pace)?;
                let replaced = Some(Replaced { bytes, held });
                self.publish(source, replaced, progress, cancel).await
            }
            Finding::Lost(bytes, held) => {
                let replaced = Some(Replaced { bytes, held });
                self.publish(source, replaced, progress, cancel).await
            }
        }
    }

    /// Hashes a base that may not be trusted as it is. One that is what it should be has
    /// that noted in its marker; one that isn't is replaced, unless something uses it.
    async fn prove(
        &self,
        source: &ImageSource,
        base: BaseRef,
        old: Old,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        let (noted, name, transfer) =
            (source.clone(), base.file.clone(), Transfer::new(progress, cancel));
        let judged = old.bytes.clone();
        let good = self
            .bulk(move |connection, pool| {
                let (volume, identity) = marked::require(pool, &name)?;
                let found = transfer.hash(connection, &volume, &mut |_| Ok(()))?;
                if found == old.marker.content() {
                    let mut marker = old.marker.clone();
                    marker.note(&noted);
                    marker.vouch_for(identity);
                    marked::rewrite(connection, pool, &name, &old, &marker)?;
                    return Ok(true);
                }
                let path = host::pool_path(pool)?.join(&name);
                let users = users::of_base(connection, pool, &path, &mut || Ok(()))?;
                if users.is_empty() {
                    return Ok(false);
                }
                let text = format!(
                    "the base {} has the sha256 {found}, and not {} as its marker says, and it \
                     is used by {users}, so it is left alone: restore the file, or delete what \
                     uses it",
                    path.display(),
                    old.marker.content()
                );
                Err(Fault::new(users.fault_kind(), text).into())
            })
            .await?;
        if good {
            return Ok(base);
        }
        let replaced = Some(Replaced { bytes: judged, held: None });
        self.publish(source, replaced, progress, cancel).await
    }

    /// Downloads, or has it in the spool already, and publishes from there, in place of
    /// the marker that is `replaced`.
    async fn publish(
        &self,
        source: &ImageSource,
        replaced: Option<Replaced>,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        let held = replaced.as_ref().and_then(|replaced| replaced.held);
        let pin = held.map_or_else(|| source.pin.clone(), Pin::Digest);
        let source = &ImageSource { pin, ..source.clone() };
        if let Some(base) = self.adopt(source, replaced.as_ref(), progress, cancel).await? {
            return Ok(base);
        }
        let image = Arc::new(self.spool.fetch(source, progress, cancel).await?);
        let turn = self.turns.clone().acquire_owned();
        // It is never closed.
        let _turn = unless_called_off(cancel, turn).await?.ok();
        let claim = self.claim(source.base_name(), held)?;
        let alive = self.spool.begin(&claim.by.nonce);
        let replaced = replaced.map(|replaced| replaced.bytes);
        let transfer = Transfer::new(progress, cancel);
        let subject = Subject { source: source.clone(), image: image.clone(), claim, replaced };
        let work = Publication::new(subject, &self.pace, transfer);
        let work = Arc::new(Mutex::new(work));
        let state = |work: &Mutex<Publication>| {
            let work = work.lock().unwrap_or_else(PoisonError::into_inner);
            (work.can_go_on(), work.is_copy_damaged(), work.is_unsure())
        };
        loop {
            let fault = match self.attempt(&work, cancel).await {
                Ok(base) => return Ok(base),
                Err(fault) => fault,
            };
            let (can_go_on, copy_damaged, unsure) = state(&work);
            if copy_damaged {
                self.spool.discard(source, &image).await?;
            }
            if unsure {
                alive.linger(self.pace.lease);
                return Err(fault);
            }
            if fault.kind != FaultKind::ProviderUnavailable || !can_go_on {
                return Err(fault);
            }
            progress.enter(Stage::Delayed(fault.message), 0);
            unless_called_off(cancel, tokio::time::sleep(PAUSE)).await?;
        }
    }

    /// Publishes, or goes on with it, over one connection.
    async fn attempt(
        &self,
        work: &Arc<Mutex<Publication>>,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        // Who can't be reached does not get as far as to take a slot from others.
        self.run(|_, _| Ok(())).await?;
        let first = self.first.try_acquire();
        let _slot = match &first {
            Ok(_) => None,
            Err(_) => unless_called_off(cancel, FURTHER.acquire()).await?.ok(),
        };
        let work = work.clone();
        self.bulk(move |connection, pool| {
            work.lock().unwrap_or_else(PoisonError::into_inner).run((connection, pool))
        })
        .await
    }

    /// Uses what is there, if it is just what is asked for.
    async fn adopt(
        &self,
        source: &ImageSource,
        replaced: Option<&Replaced>,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Option<BaseRef>, Fault> {
        let Some(digest) = source.pin.digest() else { return Ok(None) };
        let (name, bytes) = (source.base_name(), replaced.map(|replaced| replaced.bytes.clone()));
        let there = {
            let name = name.clone();
            self.run(move |_, pool| {
                volumes::refresh(pool)?;
                Ok(volumes::file(pool, &name)?.is_some())
            })
        };
        if !there.await? {
            return Ok(None);
        }
        let claim = self.claim(name, replaced.and_then(|replaced| replaced.held))?;
        let _alive = self.spool.begin(&claim.by.nonce);
        let (pace, source) = (self.pace.clone(), source.clone());
        let transfer = Transfer::new(progress, cancel);
        self.bulk(move |connection, pool| {
            let work = (&claim, &pace);
            adoption::adopt((connection, pool), &source, digest, bytes.as_deref(), work, &transfer)
        })
        .await
    }

    fn claim(&self, base: String, held: Option<Sha256Digest>) -> Result<Claim, Fault> {
        let nonce = Uuid::new_v4().to_string();
        Ok(Claim { base, by: Pending { nonce, writer: self.spool.writer()?, held } })
    }

    fn removal(&self) -> Result<Removal, Fault> {
        Ok(Removal {
            entry: self.settings.name.clone(),
            writer: self.spool.writer()?,
            pace: self.pace.clone(),
            sightings: self.sightings.clone(),
            spool: self.spool.clone(),
        })
    }
}

/// What comes of `work`, which has no end of its own.
async fn unless_called_off<T>(
    cancel: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, Fault> {
    tokio::select! {
        () = cancel.cancelled() => Err(Fault::new(FaultKind::Canceled, "it was called off")),
        done = work => Ok(done),
    }
}

#[async_trait]
impl Publisher for Storage {
    async fn ensure(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        progress.enter(Stage::Examining, 0);
        let mut finding = self.examine(source).await?;
        if let Finding::Ready(base) = finding {
            return Ok(base);
        }
        let mut source = source.clone();
        if matches!(source.pin, Pin::Listed(_)) {
            // What is there has to stand the digest that is listed, too.
            source = Fetcher::default().resolve(&source, progress, cancel).await?;
            finding = self.examine(&source).await?;
        }
        self.act_on(finding, &source, (progress, cancel)).await
    }

    async fn survey(&self, wanted: Vec<ImageSource>) -> Result<Vec<Sighting>, Fault> {
        let entry = self.settings.name.clone();
        self.run(move |connection, pool| inventory::survey(connection, pool, &entry, &wanted)).await
    }

    async fn verify(
        &self,
        key: &ImageKey,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Sha256Digest, Fault> {
        let (entry, key) = (self.settings.name.clone(), key.clone());
        let transfer = Transfer::new(progress, cancel);
        self.bulk(move |connection, pool| {
            inventory::verify(connection, pool, (&entry, &key), &transfer)
        })
        .await
    }

    async fn evict(&self, key: &ImageKey) -> Result<u64, Fault> {
        let (removal, key) = (self.removal()?, key.clone());
        self.bulk(move |connection, pool| removal.evict((connection, pool), &key)).await
    }

    async fn prune(
        &self,
        offered: Vec<ImageSource>,
        dry_run: bool,
    ) -> Result<Vec<Leftover>, Fault> {
        let removal = self.removal()?;
        self.bulk(move |connection, pool| removal.prune((connection, pool), &offered, dry_run))
            .await
    }

    async fn writable(&self) -> Result<String, Fault> {
        self.run(|_, pool| {
            for volume in pool.list_all_volumes(0)? {
                let name = volume.name()?;
                if name.starts_with(CHECK) {
                    // Of a check that was cut short.
                    volumes::delete(pool, &name)?;
                }
            }
            let name = format!("{CHECK}{}", Uuid::new_v4().simple());
            NewVolume::file(&name, 4096).create(pool)?.ok_or_else(|| appeared(&name))?;
            volumes::delete(pool, &name)?;
            Ok("bases are published through libvirt".into())
        })
        .await
    }

    async fn overlay(&self, base: &BaseRef, overlay: &str, size: u64) -> Result<(), Fault> {
        let (base, overlay) = (base.clone(), overlay.to_owned());
        self.run(move |connection, pool| {
            NewVolume::overlay(&overlay, &base, size)
                .create(pool)?
                .ok_or_else(|| appeared(&overlay))?;
            // Whoever removes takes the marker first and looks for overlays after that:
            // one of the two sees the other.
            let checked = marked::unchanged(connection, pool, &base);
            if checked.is_err() {
                volumes::delete(pool, &overlay)?;
            }
            checked
        })
        .await
    }

    async fn unchanged(&self, base: &BaseRef) -> Result<(), Fault> {
        let base = base.clone();
        self.run(move |connection, pool| marked::unchanged(connection, pool, &base)).await
    }
}
