//! Hashing files that are there already.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::pool::{DirectoryPool, canceled};
use super::progress::{Progress, Stage};
use crate::model::{Fault, Sha256Digest};

pub(super) const CHUNK: usize = 1 << 20;

/// Hashes all of `file`, which is `name` in `pool`; from a thread that may block.
pub(super) fn file(
    pool: &DirectoryPool,
    name: &str,
    file: &File,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Sha256Digest, Fault> {
    let failed = |error: io::Error| pool.failed("read", name, error);
    progress.enter(Stage::Hashing, file.metadata().map_err(failed)?.len());
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    loop {
        if cancel.is_cancelled() {
            return Err(canceled());
        }
        let read = file.read_at(&mut buffer, offset).map_err(failed)?;
        if read == 0 {
            return Ok(Sha256Digest::new(hasher.finalize().into()));
        }
        hasher.update(&buffer[..read]);
        offset += read as u64;
        progress.advance(read);
    }
}
