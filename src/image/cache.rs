//! The cache of one pool: having a base, and letting go of it.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::examine::{Finding, examine};
use super::fetch::{Fetcher, Verified};
use super::limits::Limits;
use super::marker::Marker;
use super::pool::{DirectoryPool, ImageLock};
use super::progress::{Progress, Stage};
use super::prove::{self, Proof};
use super::publish::{self, Debris};
use super::{BaseUsers, ImageSource, Leftover, Sighting, copy, evict, prune, sighting, verify};
use crate::model::{EntryName, Fault, ImageFormat, ImageKey, Pin, Sha256Digest};
use crate::tasks;

/// A base with a valid marker in hand.
#[derive(Debug, Clone)]
pub struct Base {
    pool: Arc<DirectoryPool>,
    name: String,
    marker: Marker,
    written: bool,
}

impl Base {
    /// Its file name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.pool.path_of(&self.name)
    }

    /// Whether base or marker were written just now, rather than found.
    pub fn was_written(&self) -> bool {
        self.written
    }

    /// sha256 of the downloaded image.
    pub fn digest(&self) -> Sha256Digest {
        self.marker.sha256
    }

    /// Its marker.
    pub(super) fn marker(&self) -> &Marker {
        &self.marker
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// `PoolUnavailable` when it has gone meanwhile.
    pub(super) fn open(&self) -> Result<std::fs::File, Fault> {
        self.pool.open_file(&self.name).map_err(|error| self.pool.failed("read", &self.name, error))
    }

    /// Size of the disk it presents, in bytes.
    pub fn virtual_size(&self) -> u64 {
        self.marker.virtual_size
    }

    /// Its format.
    pub fn format(&self) -> ImageFormat {
        self.marker.format
    }
}

/// The bases in one directory. Any number of these, in any number of processes, share
/// it.
#[derive(Clone)]
pub struct Cache {
    pool: Arc<DirectoryPool>,
    users: Arc<dyn BaseUsers>,
    limits: Arc<Limits>,
}

impl Cache {
    /// The cache in `pool`; `users` tells who uses its bases apart from the files
    /// beside them.
    pub fn new(pool: DirectoryPool, users: Arc<dyn BaseUsers>) -> Self {
        Self { pool: Arc::new(pool), users, limits: Arc::default() }
    }

    #[cfg(test)]
    pub(super) fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = Arc::new(limits);
        self
    }

    /// Has the base of `source`, verified: fetched at most once by any number of
    /// processes.
    ///
    /// # Errors
    /// `DigestMismatch`, `UrlMismatch`, `ForeignFile`, `BaseChanged` and
    /// `ImageRejected` are permanent; the rest is worth another try. Nothing is left
    /// half done.
    pub async fn ensure(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Base, Fault> {
        progress.enter(Stage::Examining, 0);
        if let Finding::Ready(marker) = self.examine(source).await? {
            return Ok(self.base(source, *marker, false));
        }
        let name = source.base_name();
        let lock = ImageLock::acquire(&self.pool, &name, &self.limits, progress, cancel).await?;
        // Whoever held it may have done what we came for.
        let mut finding = self.examine(source).await?;
        if let Finding::Ready(marker) = finding {
            return Ok(self.base(source, *marker, false));
        }
        let mut source = source.clone();
        if matches!(source.pin, Pin::Listed(_)) {
            // What is there has to stand the digest that is listed, too.
            source = self.fetcher().resolve(&source, progress, cancel).await?;
            finding = self.examine(&source).await?;
        }
        let work = Work { cache: self, source, lock, progress, cancel };
        let marker = work.act_on(finding).await?;
        Ok(self.base(&work.source, marker, true))
    }

    /// Removes the base of image `key` of `entry`, and tells the bytes that it had.
    ///
    /// # Errors
    /// `ImageInUse` naming the users, `NoSuchImage` when there is none, `Busy` while
    /// somebody works on it.
    pub async fn evict(&self, entry: &EntryName, key: &ImageKey) -> Result<u64, Fault> {
        let (entry, key) = (entry.clone(), key.clone());
        self.blocking(move |cache| evict::evict(&cache.pool, &entry, &key, &*cache.users)).await
    }

    /// Hashes the base of image `key` of `entry`, and tells the sha256 of its image.
    ///
    /// # Errors
    /// `BaseChanged` when it is damaged; `NoSuchImage` when there is none.
    pub async fn verify(
        &self,
        entry: &EntryName,
        key: &ImageKey,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Sha256Digest, Fault> {
        let name = verify::find(&self.pool, entry, key)?;
        let lock = ImageLock::acquire(&self.pool, &name, &self.limits, progress, cancel).await?;
        let (progress, cancel) = (progress.clone(), cancel.clone());
        self.blocking(move |cache| verify::verify(&cache.pool, &lock, &name, (&progress, &cancel)))
            .await
    }

    /// Lists the bases and leftovers of `entry` that nothing uses, and removes them
    /// unless `dry_run`. `offered` are the images that the entry offers now.
    ///
    /// # Errors
    /// When it can't be told what is used.
    pub async fn prune(
        &self,
        entry: &EntryName,
        offered: Vec<ImageSource>,
        dry_run: bool,
    ) -> Result<Vec<Leftover>, Fault> {
        let entry = entry.clone();
        self.blocking(move |cache| {
            prune::prune(&cache.pool, &entry, &offered, &*cache.users, dry_run)
        })
        .await
    }

    /// Looks how the images `wanted` of `entry` stand, and which others of it are there.
    ///
    /// # Errors
    /// `PoolUnavailable`.
    pub async fn survey(
        &self,
        entry: &EntryName,
        wanted: Vec<ImageSource>,
    ) -> Result<Vec<Sighting>, Fault> {
        let entry = entry.clone();
        self.blocking(move |cache| sighting::survey(&cache.pool, &entry, &wanted)).await
    }

    fn fetcher(&self) -> Fetcher {
        Fetcher::new(self.limits.clone())
    }

    fn base(&self, source: &ImageSource, marker: Marker, written: bool) -> Base {
        Base { pool: self.pool.clone(), name: source.base_name(), marker, written }
    }

    async fn examine(&self, source: &ImageSource) -> Result<Finding, Fault> {
        let source = source.clone();
        self.blocking(move |cache| examine(&cache.pool, &source, &*cache.users)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let this = self.clone();
        tasks::blocking(move || work(&this)).await
    }
}

/// Work on one image, with its lock in hand.
struct Work<'a> {
    cache: &'a Cache,
    source: ImageSource,
    lock: ImageLock,
    progress: &'a Progress,
    cancel: &'a CancellationToken,
}

impl Work<'_> {
    async fn act_on(&self, finding: Finding) -> Result<Marker, Fault> {
        match finding {
            Finding::Ready(marker) => Ok(*marker),
            Finding::Outdated(marker) => self.note(*marker),
            Finding::Unproven(marker) => self.prove(marker).await,
            Finding::Missing(debris) => self.fetch(&self.source, debris).await,
            Finding::Lost(digest) => {
                let held = ImageSource { pin: Pin::Digest(digest), ..self.source.clone() };
                self.fetch(&held, None).await
            }
        }
    }

    /// Rewrites the marker with what it has to take note of.
    fn note(&self, mut marker: Marker) -> Result<Marker, Fault> {
        let judged = marker.clone();
        marker.moved_to(&self.source.url);
        tokio::task::block_in_place(|| {
            let fence = self.cache.pool.fence()?;
            fence.replace_marker(&self.source.base_name(), Some(&judged), &marker)?;
            Ok(marker)
        })
    }

    async fn fetch(&self, source: &ImageSource, debris: Debris) -> Result<Marker, Fault> {
        let verified = match self.copy(source)? {
            Some(verified) => verified,
            None => self.download(source).await?,
        };
        self.progress.enter(Stage::Publishing, 0);
        let (pool, users) = (&self.cache.pool, &*self.cache.users);
        // A few calls on the directory: short enough to be done here, with the lock
        // in hand.
        tokio::task::block_in_place(|| {
            publish::publish(pool, &self.lock, source, &verified, debris, users)
        })
    }

    fn copy(&self, source: &ImageSource) -> Result<Option<Verified>, Fault> {
        tokio::task::block_in_place(|| {
            copy::copy(&self.cache.pool, source, self.progress, self.cancel)
        })
    }

    async fn download(&self, source: &ImageSource) -> Result<Verified, Fault> {
        let fetcher = self.cache.fetcher();
        fetcher.download(&self.cache.pool, source, self.progress, self.cancel).await
    }

    /// Hashes a base that may not be trusted as it is. One that is what it should be
    /// gets its marker; one that isn't is replaced, unless something backs onto it.
    async fn prove(&self, marker: Option<Box<Marker>>) -> Result<Marker, Fault> {
        let proof = tokio::task::block_in_place(|| {
            let (pool, users) = (&self.cache.pool, &*self.cache.users);
            let watched = (self.progress, self.cancel);
            prove::prove(pool, &self.lock, &self.source, marker, users, watched)
        })?;
        match proof {
            Proof::Good(marker) => Ok(*marker),
            Proof::Debris(inode) => self.fetch(&self.source, Some(inode)).await,
        }
    }
}
