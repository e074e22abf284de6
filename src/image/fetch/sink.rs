//! The one pass over an image: what arrives is hashed, unpacked and written by a
//! thread of its own, into a file that nobody can see.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::decode::Compression;
use crate::image::hash::CHUNK;
use crate::image::limits::Limits;
use crate::image::marker::Digests;
use crate::image::pool::DirectoryPool;
use crate::image::steps::{self, Step};
use crate::model::{Fault, FaultKind, Sha256Digest};

/// Pieces in memory between the network and the disk.
const PIECES: usize = 16;

/// What comes from the network.
pub(super) enum Piece {
    Bytes(Vec<u8>),
    /// All is there. Without it, the sender has given up.
    End,
}

/// An image that arrived whole.
pub(in crate::image) struct Written {
    pub(in crate::image) file: File,
    /// In the file.
    pub(in crate::image) size: u64,
    pub(in crate::image) digests: Digests,
    /// Why the compressed data could not be unpacked to its end.
    pub(in crate::image) flaw: Option<String>,
}

/// The writing thread, and the way to it.
pub(super) struct Sink {
    pieces: mpsc::Sender<Piece>,
    writer: JoinHandle<Result<Option<Written>, Fault>>,
}

impl Sink {
    /// Begins a file in `pool` that is to be the base `name`.
    pub(super) fn new(
        pool: &Arc<DirectoryPool>,
        name: String,
        compression: Compression,
        limits: &Limits,
    ) -> Self {
        let (pieces, received) = mpsc::channel(PIECES);
        let (pool, limits) = (pool.clone(), limits.clone());
        let writer = tokio::task::spawn_blocking(move || {
            let job = Job { pool: &pool, name: &name, limits: &limits };
            job.run(compression, received)
        });
        Self { pieces, writer }
    }

    /// Hands over what arrived; false when the writer has stopped and can say why.
    pub(super) async fn send(&self, bytes: Vec<u8>) -> bool {
        self.pieces.send(Piece::Bytes(bytes)).await.is_ok()
    }

    /// All is sent: what came of it.
    ///
    /// # Errors
    /// `NoSpace`, `PoolUnavailable`, `ImageRejected`.
    pub(super) async fn finish(self) -> Result<Written, Fault> {
        // When the writer has stopped, it says why.
        let _ = self.pieces.send(Piece::End).await;
        self.ended().await
    }

    /// Nothing more is to come; why the writer stopped.
    pub(super) async fn ended(self) -> Result<Written, Fault> {
        drop(self.pieces);
        let broke_off = |why: String| Fault::new(FaultKind::Canceled, why);
        match self.writer.await {
            Ok(Ok(Some(written))) => Ok(written),
            Ok(Ok(None)) => Err(broke_off("the download was given up".into())),
            Ok(Err(fault)) => Err(fault),
            Err(error) => Err(broke_off(format!("the writing broke off: {error}"))),
        }
    }

    /// Gives the file up, and waits until its room is free again.
    pub(super) async fn discard(self) {
        let _ = self.ended().await;
    }
}

struct Job<'a> {
    pool: &'a DirectoryPool,
    name: &'a str,
    limits: &'a Limits,
}

impl Job<'_> {
    fn run(
        &self,
        compression: Compression,
        pieces: mpsc::Receiver<Piece>,
    ) -> Result<Option<Written>, Fault> {
        let mut intake = Intake::new(pieces);
        let mut output = Output { file: self.pool.unnamed(self.name)?, size: 0 };
        let unpacked = match compression {
            Compression::None => self.copy(&mut intake, &mut output).map(|()| None),
            packed => self.unpack(packed, &mut intake, &mut output).map(Some),
        }?;
        // What follows compressed data, or a flaw in it, is part of what was
        // downloaded still: only its digest tells whose fault that is.
        while intake.next().is_some() {}
        if !intake.ended {
            return Ok(None);
        }
        let downloaded = Sha256Digest::new(intake.hasher.finalize().into());
        let (content, flaw) = unpacked.unwrap_or((downloaded, None));
        let digests = Digests { downloaded, content };
        Ok(Some(Written { file: output.file, size: output.size, digests, flaw }))
    }

    /// Writes what arrives as it is.
    fn copy(&self, intake: &mut Intake, output: &mut Output) -> Result<(), Fault> {
        while let Some(piece) = intake.next() {
            self.write(output, &piece)?;
        }
        Ok(())
    }

    fn unpack(
        &self,
        compression: Compression,
        intake: &mut Intake,
        output: &mut Output,
    ) -> Result<(Sha256Digest, Option<String>), Fault> {
        let mut hasher = Sha256::new();
        let flaw = match self.decode(compression, intake, output, &mut hasher) {
            Ok(()) => None,
            Err(Failure::Fault(fault)) => return Err(fault),
            Err(Failure::Stream(error)) => {
                Some(format!("it is no whole {} file: {error}", compression.name()))
            }
        };
        Ok((Sha256Digest::new(hasher.finalize().into()), flaw))
    }

    fn decode(
        &self,
        compression: Compression,
        intake: &mut Intake,
        output: &mut Output,
        hasher: &mut Sha256,
    ) -> Result<(), Failure> {
        let arrived = intake.arrived.clone();
        let mut reader = compression.reader(intake).map_err(Failure::Stream)?;
        let mut buffer = vec![0; CHUNK];
        loop {
            let read = match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::Stream(error)),
            };
            hasher.update(&buffer[..read]);
            self.write(output, &buffer[..read]).map_err(Failure::Fault)?;
            self.check_ratio(output.size, arrived.get()).map_err(Failure::Fault)?;
        }
    }

    fn write(&self, output: &mut Output, bytes: &[u8]) -> Result<(), Fault> {
        let first = output.size == 0;
        output.size += bytes.len() as u64;
        if output.size > self.limits.image_bytes {
            return Err(self.too_large());
        }
        let written = output.file.write_all(bytes);
        written.map_err(|error| self.pool.failed("written", self.name, error))?;
        if first {
            steps::passed(Step::Writing);
        }
        Ok(())
    }

    fn check_ratio(&self, unpacked: u64, packed: u64) -> Result<(), Fault> {
        let limits = self.limits;
        let most = packed.saturating_mul(limits.unpacked_ratio).max(limits.unpacked_bytes);
        if unpacked <= most {
            return Ok(());
        }
        let text = format!(
            "the image {} unpacks to more than {} times its size: that is no disk image",
            self.name, limits.unpacked_ratio
        );
        Err(Fault::new(FaultKind::ImageRejected, text))
    }

    fn too_large(&self) -> Fault {
        let most = self.limits.image_bytes;
        let text =
            format!("the image {} is larger than {most} bytes, which are the most", self.name);
        Fault::new(FaultKind::ImageRejected, text)
    }
}

enum Failure {
    /// Of the pool, or of a limit.
    Fault(Fault),
    /// Of the compressed data.
    Stream(io::Error),
}

struct Output {
    file: File,
    size: u64,
}

/// What arrives, hashed as it is taken.
struct Intake {
    pieces: mpsc::Receiver<Piece>,
    hasher: Sha256,
    rest: Vec<u8>,
    taken: usize,
    arrived: Arrived,
    ended: bool,
    gave_up: bool,
}

/// Bytes that arrived, for whoever reads through a decoder.
#[derive(Clone, Default)]
struct Arrived(std::rc::Rc<std::cell::Cell<u64>>);

impl Arrived {
    fn get(&self) -> u64 {
        self.0.get()
    }
}

impl Intake {
    fn new(pieces: mpsc::Receiver<Piece>) -> Self {
        Self {
            pieces,
            hasher: Sha256::new(),
            rest: Vec::new(),
            taken: 0,
            arrived: Arrived::default(),
            ended: false,
            gave_up: false,
        }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.ended || self.gave_up {
            return None;
        }
        match self.pieces.blocking_recv() {
            Some(Piece::Bytes(bytes)) => {
                self.hasher.update(&bytes);
                self.arrived.0.set(self.arrived.get() + bytes.len() as u64);
                Some(bytes)
            }
            Some(Piece::End) => {
                self.ended = true;
                None
            }
            None => {
                self.gave_up = true;
                None
            }
        }
    }
}

impl Read for Intake {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.rest.len() {
            let Some(piece) = self.next() else { return Ok(0) };
            (self.rest, self.taken) = (piece, 0);
        }
        let read = buffer.len().min(self.rest.len() - self.taken);
        buffer[..read].copy_from_slice(&self.rest[self.taken..self.taken + read]);
        self.taken += read;
        Ok(read)
    }
}
