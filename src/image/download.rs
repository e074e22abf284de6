//! One pass over an image: received, hashed and written at once, then inspected and
//! made durable, before anybody can see it.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::ImageSource;
use super::fetch::{self, Answer};
use super::hash::CHUNK;
use super::inspect;
use super::lock::canceled;
use super::marker::Validators;
use super::pool::DirectoryPool;
use super::progress::{Progress, Stage};
use crate::model::{Fault, FaultKind, Sha256Digest};
use crate::tasks;

/// A larger image is a mistake, or an attack.
const MAX_BYTES: u64 = 64 << 30;
/// Pieces in memory between the network and the disk.
const PIECES: usize = 16;

/// A downloaded image: complete, of the expected digest, inspected, on stable
/// storage, and without a name. Dropping it leaves nothing.
#[derive(Debug)]
pub struct Verified {
    pub(super) file: File,
    pub(super) digest: Sha256Digest,
    pub(super) size: u64,
    pub(super) virtual_size: u64,
    pub(super) validators: Validators,
}

impl Verified {
    /// The image, readable.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its sha256.
    pub fn digest(&self) -> Sha256Digest {
        self.digest
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Size of the disk it presents, in bytes.
    pub fn virtual_size(&self) -> u64 {
        self.virtual_size
    }

    /// The marker of a base of `source` with these bytes.
    pub fn marker(&self, source: &ImageSource) -> super::Marker {
        let validators = self.validators.clone();
        super::Marker::new(source, self.digest, self.size, self.virtual_size, validators)
    }
}

/// Downloads `source` into an unnamed file in `pool`.
///
/// # Errors
/// `FetchFailed` for the transport, `NoSpace`, `DigestMismatch`, `ImageRejected`,
/// `Canceled`.
pub async fn download(
    pool: &Arc<DirectoryPool>,
    source: &ImageSource,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Verified, Fault> {
    let work = receive(pool, source, progress);
    let (sink, validators) = tokio::select! {
        () = cancel.cancelled() => return Err(canceled()),
        received = work => received?,
    };
    let (pool, source) = (pool.clone(), source.clone());
    tasks::blocking(move || verify(&pool, &source, sink, validators)).await
}

/// Where received bytes go.
struct Sink {
    file: File,
    hasher: Sha256,
    size: u64,
}

impl Sink {
    fn take(&mut self, pool: &DirectoryPool, name: &str, piece: &[u8]) -> Result<(), Fault> {
        self.size += piece.len() as u64;
        if self.size > MAX_BYTES {
            let text = format!("the image {name} is larger than {MAX_BYTES} bytes");
            return Err(Fault::new(FaultKind::ImageRejected, text));
        }
        self.hasher.update(piece);
        self.file.write_all(piece).map_err(|error| pool.failed("written", name, error))
    }
}

async fn receive(
    pool: &Arc<DirectoryPool>,
    source: &ImageSource,
    progress: &Progress,
) -> Result<(Sink, Validators), Fault> {
    if source.url.expose().scheme() == "file" {
        return copy(pool, source, progress).await;
    }
    let Answer { response, length, validators } = fetch::get(&source.url).await?;
    check_room(pool, source, length)?;
    progress.enter(Stage::Downloading, length.unwrap_or(0));
    let (pieces, received) = mpsc::channel(PIECES);
    let (at, name) = (pool.clone(), source.base_name());
    let writer = tokio::task::spawn_blocking(move || write(&at, &name, received));
    let sent = send(source, response, &pieces, progress).await;
    // The writer ends when there is no more to come.
    drop(pieces);
    // A full disk is what stopped the sending, when both failed.
    let sink = joined(writer.await)?;
    sent?;
    if let Some(length) = length.filter(|length| *length != sink.size) {
        let text = format!("{}: {} of {length} bytes arrived", source.url, sink.size);
        return Err(Fault::new(FaultKind::FetchFailed, text));
    }
    Ok((sink, validators))
}

fn check_room(
    pool: &DirectoryPool,
    source: &ImageSource,
    length: Option<u64>,
) -> Result<(), Fault> {
    let Some(length) = length else { return Ok(()) };
    if length > MAX_BYTES {
        let text = format!("{} has {length} bytes, and {MAX_BYTES} are the most", source.url);
        return Err(Fault::new(FaultKind::ImageRejected, text));
    }
    let available = pool.available()?;
    if length <= available {
        return Ok(());
    }
    let text = format!(
        "{} needs {length} bytes, and {} has {available} left: free some, or give it more room",
        source.url,
        pool.path().display()
    );
    Err(Fault::new(FaultKind::NoSpace, text))
}

async fn send(
    source: &ImageSource,
    mut response: reqwest::Response,
    pieces: &mpsc::Sender<Vec<u8>>,
    progress: &Progress,
) -> Result<(), Fault> {
    loop {
        let piece = response.chunk().await.map_err(|error| fetch::broken(&source.url, error))?;
        let Some(piece) = piece else { return Ok(()) };
        progress.advance(piece.len());
        if pieces.send(piece.into()).await.is_err() {
            // The writer has stopped, and says why.
            return Ok(());
        }
    }
}

fn write(
    pool: &DirectoryPool,
    name: &str,
    mut pieces: mpsc::Receiver<Vec<u8>>,
) -> Result<Sink, Fault> {
    let mut sink = Sink { file: pool.unnamed(name)?, hasher: Sha256::new(), size: 0 };
    while let Some(piece) = pieces.blocking_recv() {
        sink.take(pool, name, &piece)?;
    }
    Ok(sink)
}

async fn copy(
    pool: &Arc<DirectoryPool>,
    source: &ImageSource,
    progress: &Progress,
) -> Result<(Sink, Validators), Fault> {
    let unreadable = |error: &dyn std::fmt::Display| {
        let text = format!("{} can't be read: {error}", source.url);
        Fault::new(FaultKind::FetchFailed, text)
    };
    let path = source.url.expose().to_file_path().map_err(|()| unreadable(&"it is no path"))?;
    let file = tokio::fs::File::open(&path).await.map_err(|error| unreadable(&error))?;
    let length = file.metadata().await.map_err(|error| unreadable(&error))?.len();
    check_room(pool, source, Some(length))?;
    progress.enter(Stage::Downloading, length);
    let (pieces, received) = mpsc::channel(PIECES);
    let (at, name) = (pool.clone(), source.base_name());
    let writer = tokio::task::spawn_blocking(move || write(&at, &name, received));
    let sent = read(file, &pieces, progress).await.map_err(|error| unreadable(&error));
    drop(pieces);
    let sink = joined(writer.await)?;
    sent?;
    Ok((sink, Validators::default()))
}

async fn read(
    mut file: tokio::fs::File,
    pieces: &mpsc::Sender<Vec<u8>>,
    progress: &Progress,
) -> std::io::Result<()> {
    loop {
        let mut piece = vec![0; CHUNK];
        let read = file.read(&mut piece).await?;
        piece.truncate(read);
        progress.advance(read);
        if read == 0 || pieces.send(piece).await.is_err() {
            return Ok(());
        }
    }
}

/// What the writer says; only a panic keeps it from saying anything.
fn joined(writer: Result<Result<Sink, Fault>, tokio::task::JoinError>) -> Result<Sink, Fault> {
    writer.map_err(|error| Fault::new(FaultKind::Canceled, error.to_string()))?
}

fn verify(
    pool: &DirectoryPool,
    source: &ImageSource,
    sink: Sink,
    validators: Validators,
) -> Result<Verified, Fault> {
    let digest = Sha256Digest::new(sink.hasher.finalize().into());
    if let Some(wanted) = source.sha256.filter(|wanted| *wanted != digest) {
        let text = format!(
            "{} has the sha256 {digest}, and {wanted} is configured: correct sha256, or find out \
             who changed the image",
            source.url
        );
        return Err(Fault::new(FaultKind::DigestMismatch, text));
    }
    let virtual_size = inspect::virtual_size(&sink.file, source.format)
        .map_err(|why| Fault::new(FaultKind::ImageRejected, format!("{}: {why}", source.url)))?;
    let name = source.base_name();
    sink.file.sync_all().map_err(|error| pool.failed("written", &name, error))?;
    Ok(Verified { file: sink.file, digest, size: sink.size, virtual_size, validators })
}
