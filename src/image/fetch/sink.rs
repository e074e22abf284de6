//! The one pass over an image: what arrives is written and hashed side by side, into a
//! file that nobody can see.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, block_in_place};

use super::decode::Compression;
use super::output::{Output, Written};
use super::unpack::{self, Piece};
use crate::image::hashing::Hashing;
use crate::image::limits::Limits;
use crate::image::marker::Digests;
use crate::image::pool::DirectoryPool;
use crate::model::{Fault, FaultKind};

/// Pieces in memory between the network and a decoder.
const PIECES: usize = 8;

/// Where a download goes.
pub(super) enum Sink {
    /// It is written as it is, from where it is received, while it is in the processor's
    /// cache still.
    Plain(Box<Plain>),
    /// It is unpacked by a thread of its own.
    Packed(Packed),
}

pub(super) struct Plain {
    output: Output,
    hashing: Hashing,
    fault: Option<Fault>,
}

pub(super) struct Packed {
    pieces: mpsc::Sender<Piece>,
    writer: JoinHandle<Result<Option<Written>, Fault>>,
}

impl Sink {
    /// Begins a file in `pool` that is to be the base `name`.
    ///
    /// # Errors
    /// `PoolUnavailable`, `NoSpace`.
    pub(super) fn new(
        pool: &Arc<DirectoryPool>,
        name: &str,
        compression: Compression,
        limits: &Limits,
    ) -> Result<Self, Fault> {
        let output = block_in_place(|| Output::new(pool, name, limits))?;
        let hashing = Hashing::new().map_err(|error| pool.failed("written", name, error))?;
        if compression == Compression::None {
            return Ok(Self::Plain(Box::new(Plain { output, hashing, fault: None })));
        }
        let (pieces, received) = mpsc::channel(PIECES);
        let limits = limits.clone();
        let writer = tokio::task::spawn_blocking(move || {
            unpack::run(compression, received, output, hashing, &limits)
        });
        Ok(Self::Packed(Packed { pieces, writer }))
    }

    /// Hands over what arrived; false when it can't be taken, and `ended` says why.
    pub(super) async fn send(&mut self, bytes: Bytes) -> bool {
        match self {
            Self::Plain(plain) => block_in_place(|| plain.take(bytes)),
            Self::Packed(packed) => packed.pieces.send(Piece::Bytes(bytes)).await.is_ok(),
        }
    }

    /// All is sent: what came of it.
    ///
    /// # Errors
    /// `NoSpace`, `PoolUnavailable`, `ImageRejected`.
    pub(super) async fn finish(self) -> Result<Written, Fault> {
        match self {
            Self::Plain(plain) => block_in_place(|| plain.finish()),
            Self::Packed(packed) => {
                // When the writer has stopped, it says why.
                let _ = packed.pieces.send(Piece::End).await;
                packed.ended().await
            }
        }
    }

    /// Nothing more is to come; why it was not taken.
    pub(super) async fn ended(self) -> Fault {
        let fault = match self {
            Self::Plain(plain) => {
                let Plain { output, fault, .. } = *plain;
                block_in_place(|| output.discard());
                fault
            }
            Self::Packed(packed) => packed.ended().await.err(),
        };
        fault.unwrap_or_else(given_up)
    }

    /// Gives the file up, and waits until its room is free again.
    pub(super) async fn discard(self) {
        let _ = self.ended().await;
    }
}

fn given_up() -> Fault {
    Fault::new(FaultKind::Canceled, "the download was given up")
}

impl Plain {
    fn take(&mut self, bytes: Bytes) -> bool {
        match self.output.write(&bytes) {
            Ok(()) => {
                self.hashing.take(bytes);
                true
            }
            Err(fault) => {
                self.fault = Some(fault);
                false
            }
        }
    }

    fn finish(self) -> Result<Written, Fault> {
        let (file, size) = self.output.finish()?;
        let digest = self.hashing.finish().ok_or_else(given_up)?;
        let digests = Digests { downloaded: digest, content: digest };
        Ok(Written { file, size, digests, flaw: None })
    }
}

impl Packed {
    async fn ended(self) -> Result<Written, Fault> {
        drop(self.pieces);
        match self.writer.await {
            Ok(outcome) => outcome?.ok_or_else(given_up),
            Err(error) => {
                Err(Fault::new(FaultKind::Canceled, format!("the unpacking broke off: {error}")))
            }
        }
    }
}
