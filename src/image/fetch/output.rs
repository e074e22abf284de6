//! The file that an image is written to: past the page cache where the file system
//! can. Copying an image there first would cost more than hashing it, push out what
//! the host's guests need, and leave all of it to be waited for at the end.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::image::limits::Limits;
use crate::image::marker::Digests;
use crate::image::pool::DirectoryPool;
use crate::image::steps::{self, Step};
use crate::model::{Fault, FaultKind};

/// How much is written at once.
const PORTION: usize = 2 << 20;
/// What direct writes have to be aligned to, on any disk there is.
const BLOCK: usize = 4096;
/// Buffers: one is filled, one waits, one is written.
const BUFFERS: usize = 3;

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
    size: u64,
    file: File,
    buffer: Buffer,
    writer: Writer,
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
        // A file system that can't has it written by way of the page cache.
        let _ = set_direct(&file, true);
        let writer = file.try_clone().and_then(Writer::new);
        Ok(Self {
            writer: writer.map_err(|error| pool.failed("written", name, error))?,
            pool: pool.clone(),
            name: name.to_owned(),
            most: limits.image_bytes,
            size: 0,
            file,
            buffer: Buffer::new(),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// # Errors
    /// `ImageRejected` when it becomes too large; `NoSpace`, `PoolUnavailable`.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        let first = self.size == 0;
        self.size += bytes.len() as u64;
        if self.size > self.most {
            let Self { name, most, .. } = self;
            let text = format!("the image {name} is larger than {most} bytes, which are the most");
            return Err(Fault::new(FaultKind::ImageRejected, text));
        }
        while !bytes.is_empty() {
            bytes = self.buffer.take(bytes);
            if self.buffer.is_full() {
                let swapped = self.writer.swap(&mut self.buffer);
                swapped.map_err(|error| self.pool.failed("written", &self.name, error))?;
            }
        }
        if first {
            steps::passed(Step::Writing);
        }
        Ok(())
    }

    /// The file and its size.
    ///
    /// # Errors
    /// `NoSpace`, `PoolUnavailable`.
    pub(super) fn finish(self) -> Result<(File, u64), Fault> {
        let Self { pool, name, mut file, size, buffer, mut writer, .. } = self;
        writer
            .end()
            // What is left is no whole block, and is read by way of the page cache.
            .and_then(|()| set_direct(&file, false))
            .and_then(|()| file.write_all(buffer.bytes()))
            .map_err(|error| pool.failed("written", &name, error))?;
        Ok((file, size))
    }

    /// Gives it up, and waits until nothing holds it any more.
    pub(super) fn discard(mut self) {
        let _ = self.writer.end();
    }
}

fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL)?);
    flags.set(OFlag::O_DIRECT, direct);
    fcntl(file, FcntlArg::F_SETFL(flags))?;
    Ok(())
}

/// Writes all of `bytes`, and by way of the page cache what can't be written directly:
/// a disk may ask for more alignment, or have taken only a part.
fn write(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && is_direct(file) => {
                set_direct(file, false)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_direct(file: &File) -> bool {
    fcntl(file, FcntlArg::F_GETFL)
        .is_ok_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_DIRECT))
}

/// Memory that is aligned as direct writes need it.
struct Buffer {
    memory: Vec<u8>,
    begin: usize,
    filled: usize,
}

impl Buffer {
    fn new() -> Self {
        let memory = vec![0; PORTION + BLOCK];
        // Within the first block, or where no alignment is to be had: then the kernel
        // refuses a direct write, and says so.
        let begin = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        Self { memory, begin, filled: 0 }
    }

    fn is_full(&self) -> bool {
        self.filled == PORTION
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + self.filled]
    }

    /// Takes as much of `bytes` as there is room for, and gives back the rest.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (now, rest) = bytes.split_at(bytes.len().min(PORTION - self.filled));
        let at = self.begin + self.filled;
        self.memory[at..at + now.len()].copy_from_slice(now);
        self.filled += now.len();
        rest
    }
}

/// The thread that writes full buffers, in their order.
struct Writer {
    full: Option<SyncSender<Buffer>>,
    empty: Receiver<Buffer>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Writer {
    fn new(file: File) -> io::Result<Self> {
        let (full, to_write) = sync_channel(BUFFERS);
        let (written, empty) = sync_channel(BUFFERS);
        for _ in 1..BUFFERS {
            // There is room for all of them.
            let _ = written.try_send(Buffer::new());
        }
        let work = move || write_all(file, &to_write, &written);
        let thread = std::thread::Builder::new().name("write".to_owned()).spawn(work)?;
        Ok(Self { full: Some(full), empty, thread: Some(thread) })
    }

    /// Hands over `buffer`, and puts an empty one in its place.
    fn swap(&mut self, buffer: &mut Buffer) -> io::Result<()> {
        let Ok(empty) = self.empty.recv() else { return self.failure() };
        let whole = std::mem::replace(buffer, empty);
        match &self.full {
            Some(full) if full.send(whole).is_ok() => Ok(()),
            _ => self.failure(),
        }
    }

    /// Why it stopped before it was told to.
    fn failure(&mut self) -> io::Result<()> {
        self.end().and(Err(io::Error::other("the writing broke off")))
    }

    /// Waits until all is written.
    fn end(&mut self) -> io::Result<()> {
        self.full = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(written)) => written,
            _ => Err(io::Error::other("the writing broke off")),
        }
    }
}

fn write_all(
    mut file: File,
    full: &Receiver<Buffer>,
    written: &SyncSender<Buffer>,
) -> io::Result<()> {
    for mut buffer in full {
        write(&mut file, buffer.bytes())?;
        buffer.filled = 0;
        // Nobody takes it when there is nothing more to come.
        let _ = written.try_send(buffer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// Writes `size` bytes in uneven pieces, on a disk and in memory.
    fn written(home: &std::path::Path, size: usize) {
        let pool = Arc::new(DirectoryPool::open(home).unwrap());
        let mut output = Output::new(&pool, "base", &Limits::default()).unwrap();
        let bytes: Vec<u8> = (0..size).map(|at| (at / 7) as u8).collect();
        for piece in bytes.chunks(777_777) {
            output.write(piece).unwrap();
        }
        let (file, length) = output.finish().unwrap();
        assert_eq!((length, file.metadata().unwrap().len()), (size as u64, size as u64));
        let mut read = vec![0; size];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes, "{size} bytes in {}", home.display());
        assert!(!is_direct(&file));
    }

    #[test]
    fn whole_portions_and_what_is_left_of_them() {
        for size in [0, 1, BLOCK, PORTION - 1, PORTION, PORTION + 1, 5 * PORTION + 4097] {
            for home in ["/var/tmp", "/dev/shm"] {
                written(tempfile::tempdir_in(home).unwrap().path(), size);
            }
        }
    }

    /// What can't be written directly where it is, is written all the same.
    #[test]
    fn an_unaligned_write_goes_by_way_of_the_page_cache() {
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        let _ = set_direct(&file, true);
        write(&mut file, &[1; 1000]).unwrap();
        write(&mut file, &[2; 5000]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 6000);
    }
}
