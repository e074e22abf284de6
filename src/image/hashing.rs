//! Hashing beside the work on the same bytes.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::model::Sha256Digest;

/// Pieces in memory between the two.
const PIECES: usize = 8;

/// A thread that hashes what it is given.
pub struct Hashing {
    pieces: SyncSender<Bytes>,
    thread: JoinHandle<Sha256Digest>,
}

impl Hashing {
    /// One that has been given nothing.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn new() -> io::Result<Self> {
        let (pieces, received) = sync_channel(PIECES);
        let thread =
            std::thread::Builder::new().name("hash".to_owned()).spawn(move || hash(&received))?;
        Ok(Self { pieces, thread })
    }

    /// Hashes `bytes`, too.
    pub fn take(&self, bytes: Bytes) {
        // It ends only after this; if it didn't, there is no digest.
        let _ = self.pieces.send(bytes);
    }

    /// The sha256 of all that it was given; nothing when it broke off.
    pub fn finish(self) -> Option<Sha256Digest> {
        drop(self.pieces);
        self.thread.join().ok()
    }
}

fn hash(pieces: &Receiver<Bytes>) -> Sha256Digest {
    let mut hasher = Sha256::new();
    for piece in pieces {
        hasher.update(&piece);
    }
    Sha256Digest::new(hasher.finalize().into())
}
