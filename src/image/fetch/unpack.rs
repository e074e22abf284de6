//! Unpacking a compressed image while it arrives: hashed before and after.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::decode::Compression;
use super::output::{Output, Written};
use crate::image::hash::CHUNK;
use crate::image::hashing::Hashing;
use crate::image::limits::Limits;
use crate::image::marker::Digests;
use crate::model::{Fault, FaultKind, Sha256Digest};

/// What comes from the network.
pub(super) enum Piece {
    Bytes(Bytes),
    /// All is there. Without it, the sender has given up.
    End,
}

/// Unpacks what comes in `pieces`; nothing when the sender gave up.
///
/// # Errors
/// `ImageRejected` for a bomb; those of the output.
pub(super) fn run(
    compression: Compression,
    pieces: mpsc::Receiver<Piece>,
    mut output: Output,
    hashing: Hashing,
    limits: &Limits,
) -> Result<Option<Written>, Fault> {
    let mut intake = Intake::new(pieces, hashing);
    let mut hasher = Sha256::new();
    let flaw = match decode(compression, &mut intake, &mut output, &mut hasher, limits) {
        Ok(()) => None,
        Err(Failure::Fault(fault)) => return Err(fault),
        Err(Failure::Stream(error)) => {
            Some(format!("it is no whole {} file: {error}", compression.name()))
        }
    };
    // What follows the compressed data, or a flaw in it, is part of what was
    // downloaded still: only its digest tells whose fault that is.
    while intake.next().is_some() {}
    let Some(downloaded) = intake.digest() else { return Ok(None) };
    let content = Sha256Digest::new(hasher.finalize().into());
    let (file, size) = output.finish()?;
    Ok(Some(Written { file, size, digests: Digests { downloaded, content }, flaw }))
}

enum Failure {
    /// Of the pool, or of a limit.
    Fault(Fault),
    /// Of the compressed data.
    Stream(io::Error),
}

fn decode(
    compression: Compression,
    intake: &mut Intake,
    output: &mut Output,
    hasher: &mut Sha256,
    limits: &Limits,
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
        output.write(&buffer[..read]).map_err(Failure::Fault)?;
        check_ratio(output, arrived.get(), limits).map_err(Failure::Fault)?;
    }
}

fn check_ratio(output: &Output, packed: u64, limits: &Limits) -> Result<(), Fault> {
    let most = packed.saturating_mul(limits.unpacked_ratio).max(limits.unpacked_bytes);
    if output.size() <= most {
        return Ok(());
    }
    let text = format!(
        "the image {} unpacks to more than {} times its size: that is no disk image",
        output.name(),
        limits.unpacked_ratio
    );
    Err(Fault::new(FaultKind::ImageRejected, text))
}

/// What arrives, for the decoder.
struct Intake {
    pieces: mpsc::Receiver<Piece>,
    hashing: Hashing,
    rest: Bytes,
    /// Bytes so far; shared, since the decoder holds the rest of this.
    arrived: Rc<Cell<u64>>,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Open,
    Complete,
    GivenUp,
}

impl Intake {
    fn new(pieces: mpsc::Receiver<Piece>, hashing: Hashing) -> Self {
        Self { pieces, hashing, rest: Bytes::new(), arrived: Rc::default(), state: State::Open }
    }

    /// What comes next; nothing at the end, be it that all is there or that the sender
    /// has given up.
    fn next(&mut self) -> Option<Bytes> {
        if self.state != State::Open {
            return None;
        }
        match self.pieces.blocking_recv() {
            Some(Piece::Bytes(bytes)) => {
                self.arrived.set(self.arrived.get() + bytes.len() as u64);
                self.hashing.take(bytes.clone());
                return Some(bytes);
            }
            Some(Piece::End) => self.state = State::Complete,
            None => self.state = State::GivenUp,
        }
        None
    }

    /// The sha256 of all that arrived; nothing when that isn't all there is.
    fn digest(self) -> Option<Sha256Digest> {
        let digest = self.hashing.finish();
        digest.filter(|_| self.state == State::Complete)
    }
}

impl Read for Intake {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            let Some(piece) = self.next() else { return Ok(0) };
            self.rest = piece;
        }
        let read = buffer.len().min(self.rest.len());
        buffer[..read].copy_from_slice(&self.rest.split_to(read));
        Ok(read)
    }
}
