//! The pool's fence, and the changes of its directory that need it in hand.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{LinkatFlags, UnlinkatFlags, linkat, unlinkat};

use super::{DirectoryPool, foreign_file, unusable};
use crate::image::marker::{Marker, MarkerState};
use crate::image::name::{marker_file_name, staged_file_name};
use crate::image::steps::{self, Step};
use crate::model::{Fault, FaultKind};

/// How long a fence is waited for: its holders need milliseconds.
const FENCE_TIMEOUT: Duration = Duration::from_secs(30);
const FENCE_POLL: Duration = Duration::from_millis(5);

/// The directory's own flock: held only for the few calls of a publication, an
/// eviction, or the creation of an overlay.
#[derive(Debug)]
pub struct PoolFence<'a> {
    pool: &'a DirectoryPool,
    _lock: Flock<File>,
}

impl PoolFence<'_> {
    pub(in crate::image) fn pool(&self) -> &DirectoryPool {
        self.pool
    }

    /// Gives `file` the name `name`, which must be free.
    ///
    /// # Errors
    /// `ForeignFile` when it isn't.
    pub(in crate::image) fn link(&self, file: &File, name: &str) -> Result<(), Fault> {
        // By way of /proc: naming the descriptor itself would take a capability.
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        match linkat(
            AT_FDCWD,
            unnamed.as_str(),
            self.pool.fd(),
            name,
            LinkatFlags::AT_SYMLINK_FOLLOW,
        ) {
            Ok(()) => Ok(()),
            Err(Errno::EEXIST) => Err(foreign_file(self.pool, name)),
            Err(error) => Err(self.pool.failed("published", name, error.into())),
        }
    }

    /// Removes `name`; that it isn't there is fine.
    pub(in crate::image) fn unlink(&self, name: &str) -> Result<(), Fault> {
        match unlinkat(self.pool.fd(), name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::EISDIR | Errno::EPERM) => Err(foreign_file(self.pool, name)),
            Err(error) => Err(self.pool.failed("removed", name, error.into())),
        }
    }

    /// Makes the coming and going of names durable.
    pub(in crate::image) fn sync(&self) -> Result<(), Fault> {
        self.pool.directory.sync_all().map_err(|error| unusable(&self.pool.path, &error))
    }

    /// Takes back `name` after a failure, when it still is `file`.
    pub(in crate::image) fn withdraw(&self, file: &File, name: &str) -> Result<(), Fault> {
        let stat = nix::sys::stat::fstat(file)
            .map_err(|error| self.pool.failed("removed", name, error.into()))?;
        if self.pool.stat(name)?.is_some_and(|found| found.st_ino == stat.st_ino) {
            self.unlink(name)?;
            self.sync()?;
        }
        Ok(())
    }

    /// Writes `marker` of the base `base`, durably, in place of the one that was `judged`:
    /// none, or one that was not valid.
    ///
    /// # Errors
    /// `Busy` when another one is there by now. Who works through libvirt asks for no
    /// fence.
    pub(in crate::image) fn replace_marker(
        &self,
        base: &str,
        judged: Option<&Marker>,
        marker: &Marker,
    ) -> Result<(), Fault> {
        let there = match self.pool.marker(base)? {
            MarkerState::Valid(there) => Some(there),
            _ => None,
        };
        if there.as_deref() != judged {
            let text = format!("the marker of {base} was changed meanwhile");
            return Err(Fault::new(FaultKind::Busy, text));
        }
        let name = marker_file_name(base);
        let file = self.pool.unnamed_marker(base, marker)?;
        // Linking can't replace, and renaming can: a crash between leaves this one
        // name, which the next writer takes away.
        let staged = staged_file_name(base);
        self.unlink(&staged)?;
        self.link(&file, &staged)?;
        steps::passed(Step::MarkerStaged);
        if let Err(error) = renameat(self.pool.fd(), staged.as_str(), self.pool.fd(), &*name) {
            // The first failure is the one to tell.
            let _ = self.withdraw(&file, &staged);
            return Err(self.pool.failed("written", &name, error.into()));
        }
        steps::passed(Step::MarkerReplaced);
        self.sync()
    }
}

impl DirectoryPool {
    /// A file without a name that holds `marker` of the base `base`, on stable
    /// storage.
    pub(in crate::image) fn unnamed_marker(
        &self,
        base: &str,
        marker: &Marker,
    ) -> Result<File, Fault> {
        let name = marker_file_name(base);
        let failed = |error: io::Error| self.failed("written", &name, error);
        let bytes = marker.render().map_err(|error| failed(io::Error::other(error)))?;
        let mut file = self.unnamed(&name)?;
        file.write_all(&bytes)
            .and_then(|()| Ok(nix::sys::stat::fchmod(&file, Mode::from_bits_truncate(0o644))?))
            .and_then(|()| file.sync_all())
            .map_err(failed)?;
        Ok(file)
    }

    /// Takes the fence; from a thread that may block.
    ///
    /// # Errors
    /// `Busy` when somebody keeps it; `PoolUnavailable` when the directory is no
    /// longer the one at its path.
    pub fn fence(&self) -> Result<PoolFence<'_>, Fault> {
        let deadline = Instant::now() + FENCE_TIMEOUT;
        // A description of its own: one that is shared is locked for all who share it.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut file = openat(self.fd(), ".", flags, Mode::empty())
            .map(File::from)
            .map_err(|error| unusable(&self.path, &error))?;
        let lock = loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => break lock,
                Err((same, Errno::EWOULDBLOCK)) if Instant::now() < deadline => {
                    steps::passed(Step::FenceBusy);
                    file = same;
                }
                Err((_, Errno::EWOULDBLOCK)) => return Err(self.fence_kept()),
                Err((_, error)) => return Err(unusable(&self.path, &format!("flock: {error}"))),
            }
            std::thread::sleep(FENCE_POLL);
        };
        self.still_there()?;
        steps::passed(Step::Fenced);
        Ok(PoolFence { pool: self, _lock: lock })
    }

    fn fence_kept(&self) -> Fault {
        let text = format!(
            "the directory {} was locked by somebody else for {FENCE_TIMEOUT:?}: `lslocks` shows \
             who holds it",
            self.path.display()
        );
        Fault::new(FaultKind::Busy, text)
    }
}
