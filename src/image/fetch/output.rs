//! The file that an image is written to. It is flushed while it grows, so that little
//! is left to wait for at its end.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::image::limits::Limits;
use crate::image::marker::Digests;
use crate::image::pool::DirectoryPool;
use crate::image::steps::{self, Step};
use crate::model::{Fault, FaultKind};

/// How much is written between two flushes.
const PORTION: u64 = 32 << 20;

/// An image that arrived whole.
pub(in crate::image) struct Written {
    pub(in crate::image) file: File,
    /// In the file.
    pub(in crate::image) size: u64,
    pub(in crate::image) digests: Digests,
    /// Why the compressed data could not be unpacked to its end.
    pub(in crate::image) flaw: Option<String>,
}

pub(super) struct Output {
    pool: Arc<DirectoryPool>,
    /// The base that it is to be.
    name: String,
    most: u64,
    file: File,
    size: u64,
    /// What it will have when it is to be flushed again.
    next: u64,
    flush: SyncSender<()>,
    flusher: JoinHandle<io::Result<()>>,
}

impl Output {
    /// # Errors
    /// `PoolUnavailable`, `NoSpace`.
    pub(super) fn new(
        pool: &Arc<DirectoryPool>,
        name: &str,
        limits: &Limits,
    ) -> Result<Self, Fault> {
        let file = pool.unnamed(name)?;
        let (flush, orders) = sync_channel(1);
        let flusher = file
            .try_clone()
            .and_then(|same| {
                let work = move || flush_all(&same, &orders);
                std::thread::Builder::new().name("flush".to_owned()).spawn(work)
            })
            .map_err(|error| pool.failed("written", name, error))?;
        let (pool, name, most) = (pool.clone(), name.to_owned(), limits.image_bytes);
        Ok(Self { pool, name, most, file, size: 0, next: PORTION, flush, flusher })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// # Errors
    /// `ImageRejected` when it becomes too large; `NoSpace`, `PoolUnavailable`.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let first = self.size == 0;
        self.size += bytes.len() as u64;
        if self.size > self.most {
            let Self { name, most, .. } = self;
            let text = format!("the image {name} is larger than {most} bytes, which are the most");
            return Err(Fault::new(FaultKind::ImageRejected, text));
        }
        let written = self.file.write_all(bytes);
        written.map_err(|error| self.failed(error))?;
        if first {
            steps::passed(Step::Writing);
        }
        if self.size >= self.next {
            self.next = self.size + PORTION;
            // One that is still at it goes on to what is new by itself. One that has
            // failed says so at the end.
            let _ = self.flush.try_send(());
        }
        Ok(())
    }

    /// The file and its size.
    ///
    /// # Errors
    /// Of a flush: the kernel tells each failure once, so that a later fsync would
    /// not.
    pub(super) fn finish(self) -> Result<(File, u64), Fault> {
        let Self { pool, name, file, size, flush, flusher, .. } = self;
        drop(flush);
        let flushed =
            flusher.join().unwrap_or_else(|_| Err(io::Error::other("the flushing broke off")));
        flushed.map_err(|error| pool.failed("written", &name, error))?;
        Ok((file, size))
    }

    /// Gives it up, and waits until nothing holds it any more.
    pub(super) fn discard(self) {
        drop(self.flush);
        let _ = self.flusher.join();
    }

    fn failed(&self, error: io::Error) -> Fault {
        self.pool.failed("written", &self.name, error)
    }
}

fn flush_all(file: &File, orders: &Receiver<()>) -> io::Result<()> {
    orders.iter().try_for_each(|()| file.sync_data())
}
