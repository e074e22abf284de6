//! Fetching an image: in one pass received, hashed, unpacked and written; tried again
//! when the transport fails; then inspected and made durable, before anybody can see
//! it.

mod decode;
mod download;
mod http;
mod listed;
mod local;
mod output;
mod retry;
mod sink;
mod unpack;

use std::fs::File;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use self::download::{Arrived, Download};
pub(super) use self::output::Written;
use super::limits::Limits;
use super::marker::{Digests, Marker, Validators};
use super::pool::{DirectoryPool, canceled};
use super::progress::Progress;
use super::steps::{self, Step};
use super::{ImageSource, inspect};
use crate::model::{Fault, FaultKind, Pin, ResourceUrl, Sha256Digest};
use crate::tasks;

/// An image that is complete, of the expected digest, inspected, on stable storage,
/// and without a name. Dropping it leaves nothing.
#[derive(Debug)]
pub struct Verified {
    pub(super) file: File,
    pub(super) digests: Digests,
    pub(super) size: u64,
    pub(super) virtual_size: u64,
    pub(super) validators: Validators,
    pub(super) copied_from: Option<String>,
}

impl Verified {
    /// The marker of a base of `source` with these bytes.
    pub fn marker(&self, source: &ImageSource) -> Marker {
        let validators = self.validators.clone();
        let mut marker =
            Marker::new(source, self.digests, self.size, self.virtual_size, validators);
        marker.copied_from.clone_from(&self.copied_from);
        marker
    }
}

/// What downloads.
#[derive(Debug, Clone, Default)]
pub struct Fetcher {
    limits: Arc<Limits>,
}

impl Fetcher {
    pub(super) fn new(limits: Arc<Limits>) -> Self {
        Self { limits }
    }

    /// `source` with the digest that is listed for it, asking for the list.
    ///
    /// # Errors
    /// `FetchFailed` when the list can't be had, or doesn't tell.
    pub async fn resolve(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<ImageSource, Fault> {
        let Pin::Listed(list) = &source.pin else { return Ok(source.clone()) };
        let digest = tokio::select! {
            () = cancel.cancelled() => return Err(canceled()),
            digest = listed::digest(list, &source.url, &self.limits, progress) => digest?,
        };
        Ok(ImageSource { pin: Pin::Digest(digest), ..source.clone() })
    }

    /// The bytes that a download of `url` would have; nothing when that can't be told
    /// beforehand.
    ///
    /// # Errors
    /// `FetchFailed` when the server can't be asked or has no such thing.
    pub async fn length(&self, url: &ResourceUrl) -> Result<Option<u64>, Fault> {
        if !local::is_local(url) {
            return http::length(url, &self.limits).await;
        }
        let opened = local::open(url).await;
        let (_, length) = opened.map_err(|error| http::failed(url, &error.to_string()))?;
        Ok(Some(length))
    }

    /// Downloads `source` into an unnamed file in `pool`.
    ///
    /// # Errors
    /// `FetchFailed` for the transport, `NoSpace`, `DigestMismatch`, `ImageRejected`,
    /// `Canceled`.
    pub async fn download(
        &self,
        pool: &Arc<DirectoryPool>,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Verified, Fault> {
        let source = self.resolve(source, progress, cancel).await?;
        steps::passed(Step::Fetching);
        let download = Download { pool, source: &source, limits: &self.limits, progress };
        let arrived = tokio::select! {
            () = cancel.cancelled() => return Err(canceled()),
            arrived = download.receive() => arrived?,
        };
        steps::passed(Step::Received);
        let pool = pool.clone();
        tasks::blocking(move || verify(&pool, &source, arrived, None)).await
    }
}

/// Holds what arrived against what is expected, looks at what it is, and makes it
/// durable.
pub(super) fn verify(
    pool: &DirectoryPool,
    source: &ImageSource,
    (written, validators): Arrived,
    copied_from: Option<String>,
) -> Result<Verified, Fault> {
    let Written { file, size, digests, flaw } = written;
    check_digest(&source.url, source.pin.digest(), digests.downloaded)?;
    let rejected =
        |why: String| Fault::new(FaultKind::ImageRejected, format!("{}: {why}", source.url));
    if let Some(flaw) = flaw {
        return Err(rejected(flaw));
    }
    let virtual_size = inspect::virtual_size(&file, source.format).map_err(rejected)?;
    steps::passed(Step::Verified);
    let name = source.base_name();
    nix::sys::stat::fchmod(&file, BASE_MODE)
        .map_err(std::io::Error::from)
        .and_then(|()| file.sync_all())
        .map_err(|error| pool.failed("written", &name, error))?;
    steps::passed(Step::Durable);
    Ok(Verified { file, digests, size, virtual_size, validators, copied_from })
}

/// Of a base: QEMU takes it over at the first start, and it has to stay readable.
const BASE_MODE: nix::sys::stat::Mode = nix::sys::stat::Mode::from_bits_truncate(0o444);

fn check_digest(
    url: &ResourceUrl,
    wanted: Option<Sha256Digest>,
    found: Sha256Digest,
) -> Result<(), Fault> {
    let Some(wanted) = wanted.filter(|wanted| *wanted != found) else { return Ok(()) };
    let text = format!(
        "{url} has the sha256 {found}, and {wanted} is expected: correct sha256, or find out who \
         changed the image"
    );
    Err(Fault::new(FaultKind::DigestMismatch, text))
}
