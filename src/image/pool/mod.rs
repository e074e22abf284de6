//! A storage pool's directory on this host. Everything goes by its descriptor, so
//! that a directory put in its place meanwhile is noticed and not written to.

mod fence;
mod lock;
mod users;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use nix::sys::statfs::{self, FsType};

pub use self::fence::PoolFence;
pub(super) use self::lock::{ImageLock, canceled};
pub(super) use self::users::Usage;
use super::marker::{Identity, MAX_MARKER_BYTES, Marker, MarkerState};
use super::name::{is_base, marker_file_name};
use super::pending::{self, DEAD_AFTER};
use super::rules::of_later_version;
use crate::model::{Fault, FaultKind};

/// File systems on which flock does not reach other hosts, or not at all.
const NOT_SHARED: [(FsType, &str); 4] = [
    (statfs::NFS_SUPER_MAGIC, "NFS"),
    (statfs::SMB_SUPER_MAGIC, "SMB"),
    (FsType(0xfe53_4d42), "SMB2"),
    (FsType(0x0102_1997), "9p"),
];

/// A pool's directory, open.
#[derive(Debug)]
pub struct DirectoryPool {
    path: PathBuf,
    directory: File,
}

/// The fault of a directory that can't be used.
pub(in crate::image) fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Fault {
    let text = format!("the directory {} can't be used: {error}", path.display());
    Fault::new(FaultKind::PoolUnavailable, text)
}

impl DirectoryPool {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// `PoolUnavailable` when it isn't there, isn't a directory, or is on a file
    /// system that can't do what the cache relies on.
    pub fn open(path: &Path) -> Result<Self, Fault> {
        let directory = open_directory(path).map_err(|error| unusable(path, &error))?;
        let kind = statfs::fstatfs(&directory).map_err(|error| unusable(path, &error))?;
        let kind = kind.filesystem_type();
        if let Some((_, name)) = NOT_SHARED.iter().find(|(magic, _)| *magic == kind) {
            let text = format!(
                "it is on {name}, where locks don't reach other hosts: use a local file system, \
                 or an entry of type kvm2"
            );
            return Err(unusable(path, &text));
        }
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in it.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Names a failed operation on `name`, with the way out where there is one.
    pub(super) fn failed(&self, what: &str, name: &str, error: io::Error) -> Fault {
        let path = self.path_of(name);
        let path = path.display();
        let directory = self.path.display();
        let (kind, hint) = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOSPC | Errno::EDQUOT) => {
                (FaultKind::NoSpace, "free some, or give the pool more room".to_owned())
            }
            Some(Errno::EROFS) => (
                FaultKind::PoolUnavailable,
                format!(
                    "{directory} is read-only for proxyd: mount it writable, or add \
                     ReadWritePaths={directory} to proxyd.service by a drop-in"
                ),
            ),
            Some(Errno::EACCES | Errno::EPERM) => (
                FaultKind::PoolUnavailable,
                format!("proxyd may not write to {directory}: use an entry of type kvm2"),
            ),
            Some(Errno::EOPNOTSUPP) => (
                FaultKind::PoolUnavailable,
                "its file system lacks what the cache relies on (O_TMPFILE): use ext4, XFS, \
                 Btrfs, ZFS or tmpfs"
                    .to_owned(),
            ),
            _ => (FaultKind::PoolUnavailable, format!("check {directory}")),
        };
        Fault::new(kind, format!("{path} can't be {what} ({error}): {hint}"))
    }

    fn still_there(&self) -> Result<(), Fault> {
        let failed = |error: io::Error| unusable(&self.path, &error);
        let (opened, named) = (
            self.directory.metadata().map_err(failed)?,
            std::fs::metadata(&self.path).map_err(failed)?,
        );
        if (opened.dev(), opened.ino()) == (named.dev(), named.ino()) {
            return Ok(());
        }
        Err(unusable(&self.path, &"another directory was put in its place meanwhile"))
    }

    /// Bytes that are free for us.
    pub(super) fn available(&self) -> Result<u64, Fault> {
        let stat = nix::sys::statvfs::fstatvfs(&self.directory)
            .map_err(|error| unusable(&self.path, &error))?;
        Ok(stat.blocks_available() * stat.fragment_size())
    }

    /// A file without a name: a crash leaves nothing of it, and nobody sees it before
    /// it is linked.
    pub(super) fn unnamed(&self, name: &str) -> Result<File, Fault> {
        let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        openat(self.fd(), ".", flags, Mode::S_IRUSR | Mode::S_IWUSR)
            .map(File::from)
            .map_err(|error| self.failed("written", name, error.into()))
    }

    /// Opens `name` for reading, without following a link or waiting for a FIFO.
    /// Makes sure that a base could be written here, and locked.
    ///
    /// # Errors
    /// `PoolUnavailable`, with the cause.
    pub fn check_writable(&self) -> Result<(), Fault> {
        let _fence = self.fence()?;
        self.unnamed("a new base").map(drop)
    }

    pub(super) fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        Ok(openat(self.fd(), name, flags, Mode::empty()).map(File::from)?)
    }

    /// Opens `name` for reading and writing, making it if need be.
    pub(super) fn open_lock(&self, name: &str) -> Result<File, Fault> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(self.fd(), name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from).map_err(
            |error| match error {
                Errno::ELOOP | Errno::ENXIO | Errno::EISDIR => foreign_file(self, name),
                error => self.failed("locked", name, error.into()),
            },
        )
    }

    /// What stands at `name`, not following a link; nothing when nothing does.
    pub(super) fn stat(&self, name: &str) -> Result<Option<FileStat>, Fault> {
        match fstatat(self.fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(self.failed("looked at", name, error.into())),
        }
    }

    /// The marker of the base `base`.
    ///
    /// # Errors
    /// `ForeignFile` for one that a later version wrote, which can't be judged, and for
    /// a directory, which can't be replaced; `Busy` for one that is pending.
    pub(super) fn marker(&self, base: &str) -> Result<MarkerState, Fault> {
        let name = marker_file_name(base);
        match self.read_marker(&name)? {
            MarkerState::Newer => Err(of_later_version(&self.path_of(&name))),
            state => Ok(state),
        }
    }

    fn read_marker(&self, name: &str) -> Result<MarkerState, Fault> {
        let file = match self.open_file(name) {
            Ok(file) => file,
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOENT) => return Ok(MarkerState::Absent),
                // A link or a socket is no marker.
                Some(Errno::ELOOP | Errno::ENXIO) => return Ok(MarkerState::Garbage),
                _ => return Err(self.failed("read", name, error)),
            },
        };
        let found = file.metadata().map_err(|error| self.failed("read", name, error))?;
        let kind = found.file_type();
        if kind.is_dir() {
            // No marker could take its place.
            return Err(foreign_file(self, name));
        }
        if !kind.is_file() {
            return Ok(MarkerState::Garbage);
        }
        let mut bytes = Vec::new();
        file.take(MAX_MARKER_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.failed("read", name, error))?;
        self.leave_alone(name, &bytes, &found)?;
        Ok(Marker::parse(&bytes))
    }

    /// Leaves a base alone that somebody works on through libvirt, where locks don't
    /// reach: who lives moves the pending marker.
    fn leave_alone(
        &self,
        name: &str,
        bytes: &[u8],
        found: &std::fs::Metadata,
    ) -> Result<(), Fault> {
        let Some(writer) = pending::pending_writer(bytes) else { return Ok(()) };
        let still =
            found.modified().ok().and_then(|moved| moved.elapsed().ok()).unwrap_or_default();
        if still >= DEAD_AFTER {
            return Ok(());
        }
        let text = format!(
            "{} says that another proxyd ({writer}) works on this base through libvirt: waiting \
             for it, or until the marker has not moved for {} minutes",
            self.path_of(name).display(),
            DEAD_AFTER.as_secs() / 60
        );
        Err(Fault::new(FaultKind::Busy, text))
    }

    /// The regular file at `name`.
    ///
    /// # Errors
    /// `ForeignFile` for anything else there.
    pub(super) fn regular(&self, name: &str) -> Result<Option<FileStat>, Fault> {
        let Some(stat) = self.stat(name)? else { return Ok(None) };
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFREG { Ok(Some(stat)) } else { Err(foreign_file(self, name)) }
    }

    /// Whether the base `base` is the very file that `marker` vouches for.
    pub(super) fn is_identical(&self, base: &str, marker: &Marker) -> Result<bool, Fault> {
        let found = self.regular(base)?.as_ref().map(identity);
        Ok(found.is_some() && found == marker.identity)
    }

    /// The names of what may be bases, with a marker or without.
    pub(super) fn base_names(&self) -> Result<Vec<String>, Fault> {
        let names = self.names()?.into_iter().filter_map(|name| name.into_string().ok());
        Ok(names.filter(|name| is_base(name)).collect())
    }

    /// The names in the directory, UTF-8 or not: any of them can be an overlay.
    pub(super) fn names(&self) -> Result<Vec<OsString>, Fault> {
        let entries = std::fs::read_dir(&self.path)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(|error| unusable(&self.path, &error))?;
        Ok(entries.iter().map(std::fs::DirEntry::file_name).collect())
    }
}

/// The fault of something that isn't ours at a name we need.
pub(super) fn foreign_file(pool: &DirectoryPool, name: &str) -> Fault {
    let text = format!(
        "{} is not a file that proxyd made: it stays untouched; move it away, or use another \
         image key",
        pool.path_of(name).display()
    );
    Fault::new(FaultKind::ForeignFile, text)
}

/// What tells `stat`'s file from others.
pub(super) fn identity(stat: &FileStat) -> Identity {
    Identity {
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        inode: stat.st_ino,
        mtime_ns: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec),
    }
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path, flags, Mode::empty()).map(File::from)?)
}
