//! Bytes to and from volumes, with progress, and cut short when called off.

use std::io;
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use virt::connect::Connect;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use super::connection::CallError;
use super::volumes::{self, CHUNK};
use crate::image::{MARKER_VOLUME_SIZE, Marker, MarkerState, Progress, Stage, marker_file_name};
use crate::model::{Fault, FaultKind, Sha256Digest};

/// Progress and cancellation of a transfer.
#[derive(Clone)]
pub(super) struct Transfer {
    progress: Progress,
    cancel: CancellationToken,
}

impl Transfer {
    pub(super) fn new(progress: &Progress, cancel: &CancellationToken) -> Self {
        Self { progress: progress.clone(), cancel: cancel.clone() }
    }

    fn check(&self) -> Result<(), CallError> {
        if self.cancel.is_cancelled() {
            return Err(Fault::new(FaultKind::Canceled, "the transfer was called off").into());
        }
        Ok(())
    }

    /// Uploads `size` bytes that `read` gives for an offset, and exactly those:
    /// libvirtd does not survive more than was declared.
    pub(super) fn upload(
        &self,
        connection: &Connect,
        volume: &StorageVol,
        size: u64,
        read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    ) -> Result<(), CallError> {
        self.progress.enter(Stage::Uploading, size);
        let stream = Stream::new(connection, 0)?;
        volume.upload(&stream, 0, size, 0)?;
        match self.feed(&stream, size, read) {
            Ok(()) => Ok(stream.finish()?),
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
        size: u64,
        read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    ) -> Result<(), CallError> {
        let mut buffer = vec![0; CHUNK];
        let mut offset = 0;
        while offset < size {
            self.check()?;
            let wanted = usize::try_from(size - offset).unwrap_or(CHUNK).min(CHUNK);
            let got = read(&mut buffer[..wanted], offset).unwrap_or(0);
            if got == 0 {
                let text = "the downloaded image can't be read back from the spool";
                return Err(Fault::new(FaultKind::StateFailed, text).into());
            }
            volumes::send(stream, &buffer[..got])?;
            offset += got as u64;
            self.progress.advance(got);
        }
        Ok(())
    }

    /// Reads all of `volume` and hashes it.
    pub(super) fn hash(
        &self,
        connection: &Connect,
        volume: &StorageVol,
    ) -> Result<Sha256Digest, CallError> {
        self.progress.enter(Stage::ReadingBack, volume.info()?.allocation);
        let stream = Stream::new(connection, 0)?;
        volume.download(&stream, 0, 0, 0)?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; CHUNK];
        loop {
            self.check()?;
            let got = usize::try_from(stream.recv(&mut buffer)?).unwrap_or(0);
            if got == 0 {
                stream.finish()?;
                return Ok(Sha256Digest::new(hasher.finalize().into()));
            }
            hasher.update(&buffer[..got]);
            self.progress.advance(got);
        }
    }
}

/// What stands at the marker of `base`, and its bytes.
pub(super) fn read_marker(
    connection: &Connect,
    pool: &StoragePool,
    base: &str,
) -> Result<(MarkerState, Vec<u8>), CallError> {
    let Some(volume) = volumes::lookup(pool, &marker_file_name(base))? else {
        return Ok((MarkerState::Absent, Vec::new()));
    };
    let stream = Stream::new(connection, 0)?;
    volume.download(&stream, 0, MARKER_VOLUME_SIZE as u64, 0)?;
    let mut bytes = Vec::new();
    let mut buffer = vec![0; MARKER_VOLUME_SIZE];
    loop {
        let got = usize::try_from(stream.recv(&mut buffer)?).unwrap_or(0);
        if got == 0 || bytes.len() > MARKER_VOLUME_SIZE {
            break;
        }
        bytes.extend_from_slice(&buffer[..got]);
    }
    stream.finish()?;
    Ok((Marker::parse(&bytes), bytes))
}

#[derive(Deserialize)]
struct VolumeXml {
    #[serde(rename = "backingStore")]
    backing: Option<BackingXml>,
}

#[derive(Deserialize)]
struct BackingXml {
    path: Option<String>,
}

/// The volumes of `pool` that back onto the file at `base`.
pub(super) fn overlays_of(pool: &StoragePool, base: &Path) -> Result<Vec<String>, CallError> {
    let mut overlays = Vec::new();
    for volume in pool.list_all_volumes(0)? {
        let xml = volume.xml_desc(0)?;
        let parsed: VolumeXml = quick_xml::de::from_str(&xml).map_err(|error| {
            let text = format!("libvirt's volume XML can't be read: {error}");
            Fault::new(FaultKind::ProviderUnavailable, text)
        })?;
        let backing = parsed.backing.and_then(|backing| backing.path);
        if backing.is_some_and(|path| Path::new(&path) == base) {
            overlays.push(volume.name()?);
        }
    }
    Ok(overlays)
}
