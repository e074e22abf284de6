//! Publishing through libvirt's storage API alone, for hosts whose pool directory
//! this process may not write.
//!
//! There is no rename and no lock there, but creating a volume is test-and-set. So
//! the marker volume is both fence and commit record: who creates it may publish, and
//! completes it through an upload that it has held open since, last of all. An upload
//! is bound to the file it began on, so a writer that was taken for dead, and whose
//! marker was deleted, can't write into its successor's.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use virt::connect::Connect;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use super::connection::{CallError, Link};
use super::stale::Sightings;
use super::transfer::{Transfer, read_marker};
use super::volumes::{self, NewVolume};
use super::{Publisher, appeared, host, inventory, users};
use crate::config::ProviderSettings;
use crate::image::{
    self, Fetcher, ImageSource, Leftover, MARKER_VOLUME_SIZE, Marker, MarkerState, Progress,
    Sighting, Spool, Stage, Verdict, Verified, marker_file_name,
};
use crate::model::{Fault, FaultKind, ImageKey, Sha256Digest};
use crate::store::BaseRef;
use crate::tasks;

pub(super) struct Storage {
    settings: Arc<ProviderSettings>,
    link: Link,
    spool: Spool,
    /// One publication at a time; who publishes elsewhere is told by the marker.
    publishing: Mutex<Sightings>,
}

/// What is to be done for a base.
enum Finding {
    /// It is as it should be.
    Ready(BaseRef),
    /// Its bytes have to be hashed before they may be trusted.
    Unproven(BaseRef, Sha256Digest),
    /// Somebody is publishing it, or has died doing so: nonce and writer.
    Pending(Option<(String, String)>),
    /// It has to be fetched.
    Missing,
}

impl Storage {
    pub(super) fn new(settings: Arc<ProviderSettings>, link: Link, spool: Spool) -> Self {
        Self { settings, link, spool, publishing: Mutex::default() }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connect, &StoragePool) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, Fault> {
        let settings = self.settings.clone();
        self.link.run(move |connection| work(connection, &host::pool(connection, &settings)?)).await
    }

    async fn examine(&self, source: &ImageSource) -> Result<Finding, Fault> {
        let source = source.clone();
        self.run(move |connection, pool| examine(connection, pool, &source)).await
    }

    /// Hashes a base that may not be trusted as it is.
    async fn prove(
        &self,
        base: BaseRef,
        wanted: Sha256Digest,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        let name = base.file.clone();
        let transfer = Transfer::new(progress, cancel);
        let found = self
            .run(move |connection, pool| transfer.hash(connection, &require(pool, &name)?))
            .await?;
        if found == wanted {
            return Ok(base);
        }
        let text = format!(
            "the base {} has the sha256 {found}, and not {wanted} as its marker says: restore \
             the volume, or delete it and its marker {}",
            base.path.display(),
            marker_file_name(&base.file)
        );
        Err(Fault::new(FaultKind::BaseChanged, text))
    }

    /// Fetches into the spool, and publishes from there.
    async fn publish(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        let spool = self.spool.clone();
        let spool = Arc::new(tasks::blocking(move || spool.open()).await?);
        let verified = Fetcher::default().download(&spool, source, progress, cancel).await?;
        let writer = self.spool.clone();
        let writer = tasks::blocking(move || writer.writer()).await?;
        let source = source.clone();
        let transfer = Transfer::new(progress, cancel);
        self.run(move |connection, pool| {
            let work = Publication { connection, pool, source: &source, transfer };
            work.run(&verified, &writer)
        })
        .await
    }

    /// The refusal of what is not done through the storage API yet.
    fn by_hand(&self, what: &str) -> Fault {
        let text = format!(
            "provider entry {} is of type kvm2, for which proxyd can't {what} yet: when nothing \
             uses it, delete the marker and then the base by `virsh vol-delete --pool {}`",
            self.settings.name, self.settings.pool
        );
        Fault::new(FaultKind::InvalidArgument, text)
    }

    /// Removes what a writer that died has left, the marker first.
    async fn sweep(&self, source: &ImageSource) -> Result<(), Fault> {
        let source = source.clone();
        self.run(move |connection, pool| {
            let name = source.base_name();
            refuse_if_used(connection, pool, &name)?;
            volumes::delete(pool, &marker_file_name(&name))?;
            volumes::delete(pool, &name)
        })
        .await
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
        if let Finding::Ready(base) = self.examine(source).await? {
            return Ok(base);
        }
        let mut sightings = self.publishing.lock().await;
        let source = &Fetcher::default().resolve(source, progress, cancel).await?;
        match self.examine(source).await? {
            Finding::Ready(base) => Ok(base),
            Finding::Unproven(base, wanted) => self.prove(base, wanted, progress, cancel).await,
            Finding::Missing => self.publish(source, progress, cancel).await,
            Finding::Pending(who) => {
                let spool = self.spool.clone();
                let ourselves = tasks::blocking(move || spool.writer()).await?;
                sightings.check(&source.base_name(), who, &ourselves)?;
                self.sweep(source).await?;
                self.publish(source, progress, cancel).await
            }
        }
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
        self.run(move |connection, pool| {
            inventory::verify(connection, pool, (&entry, &key), &transfer)
        })
        .await
    }

    async fn evict(&self, key: &ImageKey) -> Result<u64, Fault> {
        Err(self.by_hand(&format!("evict the image {key}")))
    }

    async fn prune(&self, _: Vec<ImageSource>, _: bool) -> Result<Vec<Leftover>, Fault> {
        Err(self.by_hand("prune images"))
    }

    async fn writable(&self) -> Result<String, Fault> {
        Ok("bases are published through libvirt".into())
    }

    async fn overlay(&self, base: &BaseRef, overlay: &str, size: u64) -> Result<(), Fault> {
        let (base, overlay) = (base.clone(), overlay.to_owned());
        self.run(move |connection, pool| {
            NewVolume::overlay(&overlay, &base, size)
                .create(pool)?
                .ok_or_else(|| appeared(&overlay))?;
            // Whoever evicts deletes the marker first and looks for overlays after
            // that: one of the two sees the other.
            let checked = unchanged(connection, pool, &base);
            if checked.is_err() {
                volumes::delete(pool, &overlay)?;
            }
            checked
        })
        .await
    }

    async fn unchanged(&self, base: &BaseRef) -> Result<(), Fault> {
        let base = base.clone();
        self.run(move |connection, pool| unchanged(connection, pool, &base)).await
    }
}

fn unchanged(connection: &Connect, pool: &StoragePool, base: &BaseRef) -> Result<(), CallError> {
    let (state, _) = read_marker(connection, pool, &base.file)?;
    let intact = matches!(&state, MarkerState::Valid(marker) if marker.sha256 == base.digest);
    if intact && volumes::lookup(pool, &base.file)?.is_some() {
        return Ok(());
    }
    let text = format!(
        "the base {} is no longer the one with the sha256 {}: restore it and its marker, or \
         delete the Proxy and create it again",
        base.path.display(),
        base.digest
    );
    Err(Fault::new(FaultKind::BaseChanged, text).into())
}

fn examine(
    connection: &Connect,
    pool: &StoragePool,
    source: &ImageSource,
) -> Result<Finding, CallError> {
    let name = source.base_name();
    let (state, bytes) = read_marker(connection, pool, &name)?;
    let base = volumes::lookup(pool, &name)?;
    match (state, base) {
        (MarkerState::Valid(marker), base) => {
            let path = host::pool_path(pool)?.join(&name);
            let verdict = image::judge(&path, source, &marker)?;
            match (base, verdict) {
                (None, _) => Ok(Finding::Pending(None)),
                (Some(volume), Verdict::NewlyPinned) => {
                    Ok(Finding::Unproven(reference(&volume, &marker)?, marker.content()))
                }
                (Some(volume), _) => Ok(Finding::Ready(reference(&volume, &marker)?)),
            }
        }
        (MarkerState::Absent, None) => Ok(Finding::Missing),
        // A base without a marker is what a sweep that was cut short leaves.
        (MarkerState::Absent, Some(_)) => Ok(Finding::Pending(None)),
        (MarkerState::Garbage, _) => Ok(Finding::Pending(Marker::writer_of(&bytes))),
        (MarkerState::Newer, _) => {
            let path = host::pool_path(pool)?.join(marker_file_name(&name));
            Err(image::of_later_version(&path).into())
        }
    }
}

fn reference(volume: &StorageVol, marker: &Marker) -> Result<BaseRef, CallError> {
    Ok(BaseRef {
        file: volume.name()?,
        path: volume.path()?.into(),
        digest: marker.sha256,
        format: marker.format,
        virtual_size: marker.virtual_size,
    })
}

fn require(pool: &StoragePool, name: &str) -> Result<StorageVol, CallError> {
    volumes::lookup(pool, name)?.ok_or_else(|| {
        Fault::new(FaultKind::Busy, format!("the volume {name} has gone meanwhile")).into()
    })
}

/// A base that something uses is never removed, whatever its marker says.
fn refuse_if_used(connection: &Connect, pool: &StoragePool, name: &str) -> Result<(), CallError> {
    let Some(base) = volumes::lookup(pool, name)? else { return Ok(()) };
    let path = std::path::PathBuf::from(base.path()?);
    let mut users = users::find(connection, &path)?;
    // What libvirt knows of the pool may be older than an overlay made elsewhere.
    pool.refresh(0).map_err(|error| volumes::pool_error(pool, &error))?;
    users.extend(super::transfer::overlays_of(pool, &path)?);
    if users.is_empty() {
        return Ok(());
    }
    let text = format!(
        "{} has no valid marker, and {} backs onto it, so it is left alone: restore the marker, \
         or delete what uses it",
        path.display(),
        users.join(", ")
    );
    Err(Fault::new(FaultKind::BaseChanged, text).into())
}

/// One publication, from the marker's creation to its completion.
struct Publication<'a> {
    connection: &'a Connect,
    pool: &'a StoragePool,
    source: &'a ImageSource,
    transfer: Transfer,
}

impl Publication<'_> {
    fn run(&self, verified: &Verified, writer: &str) -> Result<BaseRef, CallError> {
        let nonce = Uuid::new_v4().to_string();
        let marker = verified.marker(self.source);
        let misfit = |why: String| CallError::from(Fault::new(FaultKind::StateFailed, why));
        let parts = marker.clone().render_in_two(&nonce, writer).map_err(misfit)?;
        let token = self.take_token(&parts[0])?;
        let outcome = self
            .upload(verified)
            .and_then(|volume| self.commit(token, &parts[1], &nonce).map(|()| volume));
        match outcome {
            Ok(volume) => reference(&volume, &marker),
            Err(error) => {
                self.withdraw(&nonce);
                Err(error)
            }
        }
    }

    fn marker_name(&self) -> String {
        marker_file_name(&self.source.base_name())
    }

    /// Creates the marker volume, and opens the upload that will complete it.
    fn take_token(&self, pending: &[u8]) -> Result<Stream, CallError> {
        let name = self.marker_name();
        let size = MARKER_VOLUME_SIZE as u64;
        let volume = NewVolume {
            name: &name,
            format: "raw",
            capacity: size,
            allocation: size,
            mode: Some("0444"),
            backing: None,
        };
        let volume = volume.create(self.pool)?.ok_or_else(|| {
            let text = format!("somebody else has begun to publish {}", self.source.base_name());
            Fault::new(FaultKind::Busy, text)
        })?;
        let stream = Stream::new(self.connection, 0)?;
        volume.upload(&stream, 0, size, 0)?;
        volumes::send(&stream, pending)?;
        Ok(stream)
    }

    /// Uploads the base and reads it back: libvirt takes a short upload for a whole
    /// one, and syncs nothing.
    fn upload(&self, verified: &Verified) -> Result<StorageVol, CallError> {
        let name = self.source.base_name();
        let volume = NewVolume {
            name: &name,
            // As raw and of exactly its length: libvirt would write a header of its own.
            format: "raw",
            capacity: verified.size(),
            allocation: verified.size(),
            mode: Some("0444"),
            backing: None,
        };
        let volume = volume.create(self.pool)?.ok_or_else(|| appeared(&name))?;
        let read = |buffer: &mut [u8], offset| verified.file().read_at(buffer, offset);
        self.transfer.upload(self.connection, &volume, verified.size(), read)?;
        let found = self.transfer.hash(self.connection, &volume)?;
        if found == verified.content() {
            return Ok(volume);
        }
        let text = format!(
            "the volume {name} reads back with the sha256 {found} instead of {}: check the disk \
             of its pool",
            verified.content()
        );
        Err(Fault::new(FaultKind::PoolUnavailable, text).into())
    }

    /// Completes the marker, and makes sure that it still is the one at its name.
    fn commit(&self, token: Stream, rest: &[u8], nonce: &str) -> Result<(), CallError> {
        volumes::send(&token, rest)?;
        token.finish()?;
        if self.is_ours(nonce)? {
            return Ok(());
        }
        let text = format!("{} was taken over by another writer", self.source.base_name());
        Err(Fault::new(FaultKind::Busy, text).into())
    }

    fn is_ours(&self, nonce: &str) -> Result<bool, CallError> {
        let (_, bytes) = read_marker(self.connection, self.pool, &self.source.base_name())?;
        Ok(Marker::writer_of(&bytes).is_some_and(|(found, _)| found == nonce))
    }

    /// Takes back what was begun, unless somebody else has taken it over.
    fn withdraw(&self, nonce: &str) {
        let name = self.source.base_name();
        let withdrawn = self.is_ours(nonce).and_then(|ours| {
            if ours {
                volumes::delete(self.pool, &self.marker_name())?;
                volumes::delete(self.pool, &name)?;
            }
            Ok(())
        });
        if withdrawn.is_err() {
            tracing::warn!("what was begun of {name} could not be taken back; it is swept later");
        }
    }
}
