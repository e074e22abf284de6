//! Bytes to and from volumes, with progress, and cut short when called off.

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use virt::connect::Connect;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use super::connection::CallError;
use super::volumes::{self, CHUNK, Facts};
use crate::image::{Hashing, Marker, MarkerState, Progress, Spooled, Stage, marker_file_name};
use crate::model::{Fault, FaultKind, Sha256Digest};

/// More than any marker has.
const MAX_MARKER_BYTES: u64 = 64 << 10;

/// Progress and cancellation of a transfer.
#[derive(Clone)]
pub(super) struct Transfer {
    progress: Progress,
    cancel: CancellationToken,
}

/// Called now and then, with the bytes that were moved: what it says ends the transfer.
type Beat<'a> = &'a mut dyn FnMut(u64) -> Result<(), CallError>;

impl Transfer {
    pub(super) fn new(progress: &Progress, cancel: &CancellationToken) -> Self {
        Self { progress: progress.clone(), cancel: cancel.clone() }
    }

    pub(super) fn enter(&self, stage: Stage, total: u64) {
        self.progress.enter(stage, total);
    }

    fn check(&self) -> Result<(), CallError> {
        if self.cancel.is_cancelled() {
            return Err(Fault::new(FaultKind::Canceled, "the transfer was called off").into());
        }
        Ok(())
    }

    /// Uploads `image` from `offset` on, and exactly the rest of it: libvirtd does not
    /// survive more than was declared. Calls `beat` once before anything is sent, when
    /// the upload is bound to the file that has the name then. Gives the sha256 of what
    /// was sent.
    pub(super) fn upload(
        &self,
        connection: &Connect,
        volume: &StorageVol,
        image: &Spooled,
        offset: u64,
        beat: Beat<'_>,
    ) -> Result<Sha256Digest, CallError> {
        self.enter(Stage::Uploading, image.size());
        self.advance(offset);
        let stream = Stream::new(connection, 0)?;
        volume.upload(&stream, offset, image.size() - offset, 0)?;
        let fed = beat(offset).and_then(|()| self.feed(&stream, image, offset, beat));
        match fed {
            Ok(digest) => stream.finish().map(|()| digest).map_err(CallError::from),
            Err(error) => {
                // The first error is the one to report.
                let _ = stream.abort();
                Err(error)
            }
        }
    }

    fn feed(
        &self,
        stream: &Stream,
        image: &Spooled,
        mut offset: u64,
        beat: Beat<'_>,
    ) -> Result<Sha256Digest, CallError> {
        let hashing = hashing()?;
        while offset < image.size() {
            self.check()?;
            let piece = Bytes::from(read(image, offset)?);
            hashing.take(piece.clone());
            volumes::send(stream, &piece)?;
            offset += piece.len() as u64;
            self.advance(piece.len() as u64);
            beat(offset)?;
        }
        hashing.finish().ok_or_else(broken_off)
    }

    /// Reads all of `volume` and hashes it.
    pub(super) fn hash(
        &self,
        connection: &Connect,
        volume: &StorageVol,
        beat: Beat<'_>,
    ) -> Result<Sha256Digest, CallError> {
        self.enter(Stage::ReadingBack, Facts::of(volume)?.identity.size);
        let (hashing, mut done) = (hashing()?, 0);
        let stream = Stream::new(connection, 0)?;
        volume.download(&stream, 0, 0, 0)?;
        let mut buffer = vec![0; CHUNK];
        loop {
            self.check()?;
            let got = usize::try_from(stream.recv(&mut buffer)?).unwrap_or(0);
            if got == 0 {
                stream.finish()?;
                return hashing.finish().ok_or_else(broken_off);
            }
            hashing.take(Bytes::copy_from_slice(&buffer[..got]));
            done += got as u64;
            self.advance(got as u64);
            beat(done)?;
        }
    }

    fn advance(&self, bytes: u64) {
        self.progress.advance(usize::try_from(bytes).unwrap_or(0));
    }
}

fn hashing() -> Result<Hashing, CallError> {
    Ok(Hashing::new().map_err(|error| Fault::new(FaultKind::StateFailed, error.to_string()))?)
}

fn broken_off() -> CallError {
    Fault::new(FaultKind::StateFailed, "the hashing broke off").into()
}

fn unreadable(why: &str) -> CallError {
    let text = format!("the downloaded image can't be read back from the spool: {why}");
    Fault::new(FaultKind::StateFailed, text).into()
}

/// What `image` has at `offset`, not more than goes into one message.
fn read(image: &Spooled, offset: u64) -> Result<Vec<u8>, CallError> {
    let wanted = usize::try_from(image.size() - offset).unwrap_or(CHUNK).min(CHUNK);
    let mut piece = vec![0; wanted];
    let got = image.read_at(&mut piece, offset).map_err(|error| unreadable(&error.to_string()))?;
    if got == 0 {
        return Err(unreadable("it is shorter than it was"));
    }
    piece.truncate(got);
    Ok(piece)
}

/// What stands at the marker of `base`, and its bytes.
pub(super) fn read_marker(
    connection: &Connect,
    pool: &StoragePool,
    base: &str,
) -> Result<(MarkerState, Vec<u8>), CallError> {
    let Some((volume, facts)) = volumes::file(pool, &marker_file_name(base))? else {
        return Ok((MarkerState::Absent, Vec::new()));
    };
    let length = facts.identity.size.min(MAX_MARKER_BYTES);
    let bytes = if length == 0 { Vec::new() } else { part(connection, &volume, 0, length)? };
    Ok((Marker::parse(&bytes), bytes))
}

/// `length` bytes of `volume` from `offset` on, or as many of them as there are.
pub(super) fn part(
    connection: &Connect,
    volume: &StorageVol,
    offset: u64,
    length: u64,
) -> Result<Vec<u8>, CallError> {
    let stream = Stream::new(connection, 0)?;
    volume.download(&stream, offset, length, 0)?;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; CHUNK]);
    loop {
        let got = usize::try_from(stream.recv(&mut buffer)?).unwrap_or(0);
        if got == 0 {
            stream.finish()?;
            return Ok(bytes);
        }
        bytes.extend_from_slice(&buffer[..got]);
    }
}
