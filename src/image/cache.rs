//! Having a base: examine, and do what the rules say for what is found.

use std::path::PathBuf;
use std::sync::Arc;

use nix::sys::stat::FileStat;
use tokio_util::sync::CancellationToken;

use super::download::download;
use super::lock::ImageLock;
use super::marker::{Marker, MarkerState};
use super::name::marker_file_name;
use super::pool::{self, DirectoryPool, PoolFence};
use super::progress::{Progress, Stage};
use super::publish::{self, Debris, in_use, regular, still_valid};
use super::rules::{self, Verdict};
use super::{BaseUsers, ImageSource, hash, users};
use crate::model::{Fault, FaultKind, ImageFormat, Sha256Digest};
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

    /// Size of the disk it presents, in bytes.
    pub fn virtual_size(&self) -> u64 {
        self.marker.virtual_size
    }

    /// Its format.
    pub fn format(&self) -> ImageFormat {
        self.marker.format
    }
}

/// Makes sure, with the fence in hand, that the base `name` still is the image
/// `digest`, as its marker says and as the file system tells.
///
/// # Errors
/// `BaseChanged`, with the evidence.
pub fn check_unchanged(
    fence: &PoolFence<'_>,
    name: &str,
    digest: Sha256Digest,
) -> Result<(), Fault> {
    let pool = fence.pool();
    let changed = |why: &str| {
        let text = format!(
            "the base {} is no longer the one with the sha256 {digest}: {why}; restore it, or \
             delete the Proxy and create it again",
            pool.path_of(name).display()
        );
        Err(Fault::new(FaultKind::BaseChanged, text))
    };
    let marker = match pool.marker(&marker_file_name(name))? {
        MarkerState::Valid(marker) => marker,
        MarkerState::Absent => return changed("it has no marker"),
        MarkerState::Garbage => return changed("its marker is not valid"),
    };
    if marker.sha256 != digest {
        return changed(&format!("its marker has {}", marker.sha256));
    }
    if still_valid(pool, name, &marker)? {
        return Ok(());
    }
    changed("size, inode or time of the file are not those in its marker")
}

/// What is to be done for a base.
enum Finding {
    /// It is as it should be.
    Ready(Box<Marker>),
    /// It is, but its marker has to take note of something first.
    Outdated(Box<Marker>),
    /// It has to be hashed before it may be trusted. The marker is what its bytes
    /// are to be held against, or none where only a configured digest can tell.
    Unproven(Option<Box<Marker>>),
    /// It has to be fetched, in place of the debris if there is some.
    Missing(Debris),
}

/// Has the base of `source` in `pool`, verified: fetched at most once by any number
/// of processes. `domains` tells who uses it apart from the files beside it.
///
/// # Errors
/// `DigestMismatch`, `UrlMismatch`, `ForeignFile`, `BaseChanged` and `ImageRejected`
/// are permanent; the rest is worth another try. Nothing is left half done.
pub async fn ensure_base(
    pool: Arc<DirectoryPool>,
    source: &ImageSource,
    domains: Arc<dyn BaseUsers>,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Base, Fault> {
    let work = Work { pool, source: source.clone(), domains };
    progress.enter(Stage::Examining, 0);
    if let Finding::Ready(marker) = work.examine().await? {
        return Ok(work.base(*marker, false));
    }
    let lock = ImageLock::acquire(&work.pool, &work.source.base_name(), progress, cancel).await?;
    // Whoever held it may have done what we came for.
    let marker = match work.examine().await? {
        Finding::Ready(marker) => return Ok(work.base(*marker, false)),
        Finding::Outdated(marker) => work.note(*marker).await?,
        Finding::Unproven(marker) => work.prove(marker, &lock, progress, cancel).await?,
        Finding::Missing(debris) => work.fetch(&lock, debris, progress, cancel).await?,
    };
    Ok(work.base(marker, true))
}

/// The work on one image, shared with blocking threads.
#[derive(Clone)]
struct Work {
    pool: Arc<DirectoryPool>,
    source: ImageSource,
    domains: Arc<dyn BaseUsers>,
}

impl Work {
    fn base(&self, marker: Marker, written: bool) -> Base {
        Base { pool: self.pool.clone(), name: self.source.base_name(), marker, written }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let this = self.clone();
        tasks::blocking(move || work(&this)).await
    }

    async fn examine(&self) -> Result<Finding, Fault> {
        self.blocking(|work| examine(&work.pool, &work.source, &*work.domains)).await
    }

    /// Rewrites the marker with what it has to take note of.
    async fn note(&self, marker: Marker) -> Result<Marker, Fault> {
        self.blocking(move |work| {
            let name = work.source.base_name();
            let fence = work.pool.fence()?;
            let mut marker = marker;
            marker.moved_to(&work.source.url);
            fence.write_marker(&marker_file_name(&name), &marker)?;
            Ok(marker)
        })
        .await
    }

    async fn fetch(
        &self,
        lock: &ImageLock,
        debris: Debris,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Marker, Fault> {
        let verified = download(&self.pool, &self.source, progress, cancel).await?;
        progress.enter(Stage::Publishing, 0);
        // A few calls on the directory: short enough to be done here, with the lock
        // in hand.
        tokio::task::block_in_place(|| {
            let fence = self.pool.fence()?;
            publish::publish(&fence, lock, &self.source, &verified, debris, &*self.domains)
        })
    }

    /// Hashes a base that may not be trusted as it is. One that is what it should be
    /// gets its marker; one that isn't is replaced, unless something backs onto it.
    async fn prove(
        &self,
        marker: Option<Box<Marker>>,
        lock: &ImageLock,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Marker, Fault> {
        let proof = tokio::task::block_in_place(|| {
            prove(&self.pool, &self.source, marker, &*self.domains, progress, cancel)
        })?;
        match proof {
            Proof::Good(marker) => Ok(*marker),
            Proof::Debris(inode) => self.fetch(lock, Some(inode), progress, cancel).await,
        }
    }
}

/// Looks at marker and base, and applies the rules in their order.
fn examine(
    pool: &DirectoryPool,
    source: &ImageSource,
    domains: &dyn BaseUsers,
) -> Result<Finding, Fault> {
    let name = source.base_name();
    let marker = pool.marker(&marker_file_name(&name))?;
    let verdict = match &marker {
        MarkerState::Valid(marker) => Some(rules::judge(&pool.path_of(&name), source, marker)?),
        _ => None,
    };
    let Some(stat) = regular(pool, &name)? else { return Ok(Finding::Missing(None)) };
    let (MarkerState::Valid(marker), Some(verdict)) = (marker, verdict) else {
        let used = !users::find(pool, &name, domains)?.is_empty();
        return Ok(if used {
            Finding::Unproven(None)
        } else {
            Finding::Missing(Some(stat.st_ino))
        });
    };
    let same_file = marker.identity == Some(pool::identity(&stat));
    Ok(match verdict {
        Verdict::Agrees if same_file => Finding::Ready(marker),
        Verdict::Moved if same_file => Finding::Outdated(marker),
        _ => Finding::Unproven(Some(marker)),
    })
}

enum Proof {
    Good(Box<Marker>),
    Debris(u64),
}

fn prove(
    pool: &DirectoryPool,
    source: &ImageSource,
    marker: Option<Box<Marker>>,
    domains: &dyn BaseUsers,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Proof, Fault> {
    let name = source.base_name();
    let file = pool.open_file(&name).map_err(|error| pool.failed("read", &name, error))?;
    let failed = |error: std::io::Error| pool.failed("read", &name, error);
    let wanted = marker.as_ref().map(|marker| marker.sha256).or(source.sha256);
    let digest = hash::file(pool, &name, &file, progress, cancel)?;
    let stat = nix::sys::stat::fstat(&file).map_err(|error| failed(error.into()))?;
    if wanted != Some(digest) {
        let users = users::find(pool, &name, domains)?;
        let free = users.is_empty();
        return if free {
            Ok(Proof::Debris(stat.st_ino))
        } else {
            Err(in_use(pool, &name, &users))
        };
    }
    let marker = adopted(source, marker, digest, &file, &stat)?;
    pool.fence()?.write_marker(&marker_file_name(&name), &marker)?;
    Ok(Proof::Good(Box::new(marker)))
}

/// The marker of a base whose bytes were just found to be right.
fn adopted(
    source: &ImageSource,
    marker: Option<Box<Marker>>,
    digest: Sha256Digest,
    file: &std::fs::File,
    stat: &FileStat,
) -> Result<Marker, Fault> {
    let identity = pool::identity(stat);
    let mut marker = match marker {
        Some(marker) => *marker,
        None => {
            let virtual_size = super::inspect::virtual_size(file, source.format)
                .map_err(|why| Fault::new(FaultKind::ImageRejected, why))?;
            Marker::new(source, digest, identity.size, virtual_size, Default::default())
        }
    };
    marker.moved_to(&source.url);
    marker.pinned |= source.sha256.is_some();
    marker.identity = Some(identity);
    Ok(marker)
}
