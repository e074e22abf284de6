//! Logs on the guest's host: its serial console's, and QEMU's own. On this host they are
//! read as the files that they are; on another through libvirt, by way of a pool over
//! their directory that is there for no longer than that takes.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use virt::connect::Connect;
use virt::error::ErrorNumber;
use virt::storage_pool::StoragePool;
use virt::sys;

use super::connection::{CallError, found};
use super::{host, transfer, volumes};
use crate::config::ProviderSettings;
use crate::model::{Fault, FaultKind, Guest};
use crate::provider::Tail;

/// Where virtlogd writes under every security policy that distributions ship. A Proxy's
/// name has no dot, so no QEMU log can have the same name as a console's.
const DIRECTORY: &str = "/var/log/libvirt/qemu";
/// The pool over it.
const POOL: &str = "proxyd-logs";
/// Rotated logs of one console, at most.
const ROTATED: usize = 10;

/// The log of the guest's serial console.
pub(super) fn console_path(guest: &Guest) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{}.console.log", guest.domain_name()))
}

/// QEMU's log of the guest's domain.
pub(super) fn qemu_path(guest: &Guest) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{}.log", guest.domain_name()))
}

/// The way to the logs of one entry's host. Cheap to clone.
#[derive(Clone)]
pub(super) struct Logs {
    here: bool,
    /// Held while the pool is there: whoever else needs it waits.
    pool: Arc<Mutex<()>>,
}

impl Logs {
    pub(super) fn new(settings: &ProviderSettings) -> Self {
        Self { here: settings.ssh.is_none(), pool: Arc::default() }
    }

    /// Whether they are files of this host.
    pub(super) fn are_here(&self) -> bool {
        self.here
    }

    /// The last `limit` bytes of the log at `path`.
    ///
    /// # Errors
    /// `StateFailed` when it can't be read.
    pub(super) fn end_of(
        &self,
        connection: &Connect,
        path: &Path,
        limit: u64,
    ) -> Result<Vec<u8>, CallError> {
        if self.here {
            return Ok(end_of_file(path, limit)?);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.with_pool(connection, |pool| {
            let (volume, facts) =
                volumes::file(pool, &name)?.ok_or_else(|| unreadable(path, &"there is none"))?;
            let begin = facts.identity.size.saturating_sub(limit);
            let length = facts.identity.size - begin;
            // To libvirt, no length means all there is.
            if length == 0 {
                return Ok(Vec::new());
            }
            transfer::part(connection, &volume, begin, length)
        })
    }

    /// The same for evidence, of which it may be the lack.
    pub(super) fn tail(&self, connection: &Connect, path: PathBuf, limit: u64) -> Tail {
        let content = self.end_of(connection, &path, limit).map_err(|error| match error {
            CallError::Fault(fault) => fault.message,
            CallError::Libvirt(error) => format!("libvirt: {}", error.message()),
        });
        Tail { path, content }
    }

    /// Removes the log of the guest's console, and what virtlogd rotated away from it.
    pub(super) fn remove_console(
        &self,
        connection: &Connect,
        guest: &Guest,
    ) -> Result<(), CallError> {
        let path = console_path(guest);
        let rotated = (0..ROTATED).map(|number| {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        });
        let files: Vec<_> = std::iter::once(path.clone()).chain(rotated).collect();
        if self.here {
            return files.iter().try_for_each(|file| remove_file(file));
        }
        self.with_pool(connection, |pool| {
            let there = pool.list_volumes()?;
            files.iter().try_for_each(|file| {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                if there.iter().any(|known| *known == name) {
                    volumes::delete(pool, &name)
                } else {
                    Ok(())
                }
            })
        })
    }

    fn with_pool<T>(
        &self,
        connection: &Connect,
        work: impl FnOnce(&StoragePool) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let _only = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        // There can be one pool over a directory: an operator's own serves as well.
        if let Some(pool) = pool_over(connection, Path::new(DIRECTORY))?
            && pool.name()? != POOL
        {
            volumes::refresh(&pool)?;
            return work(&pool);
        }
        let pool = pool_of_ours(connection)?;
        let done = work(&pool);
        // One that stays is taken up by whoever needs it next.
        if let Err(error) = pool.destroy().and_then(|()| pool.undefine()) {
            tracing::debug!("the pool {POOL} was not taken away: {}", error.message());
        }
        done
    }
}

/// Our own pool over the logs, active; as somebody left it, or made anew.
fn pool_of_ours(connection: &Connect) -> Result<StoragePool, CallError> {
    let left = found(connection.lookup_storage_pool_by_name(POOL), ErrorNumber::NoStoragePool)?;
    let pool = match left {
        Some(pool) => pool,
        None => {
            let target = format!("<target><path>{DIRECTORY}</path></target>");
            let xml = format!("<pool type='dir'><name>{POOL}</name>{target}</pool>");
            connection.define_storage_pool_xml(&xml, 0)?
        }
    };
    if pool.is_active()? {
        volumes::refresh(&pool)?;
    } else {
        pool.create(0)?;
    }
    Ok(pool)
}

fn pool_over(connection: &Connect, path: &Path) -> Result<Option<StoragePool>, CallError> {
    let active = sys::VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE;
    for pool in connection.list_all_storage_pools(active)? {
        // Pools of other kinds have no directory.
        if host::pool_path(&pool).is_ok_and(|found| found == path) {
            return Ok(Some(pool));
        }
    }
    Ok(None)
}

/// The last `limit` bytes of a file of this host.
///
/// # Errors
/// `StateFailed` when it can't be read.
pub(super) fn end_of_file(path: &Path, limit: u64) -> Result<Vec<u8>, Fault> {
    read_end(path, limit).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Fault {
    let text = format!("the log {} can't be read: {why}", path.display());
    Fault::new(FaultKind::StateFailed, text)
}

fn read_end(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn remove_file(file: &Path) -> Result<(), CallError> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let text = format!("the console log {} can't be removed: {error}", file.display());
            Err(Fault::new(FaultKind::StateFailed, text).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_log_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"0123456789").unwrap();
        assert_eq!(end_of_file(file.path(), 4).unwrap(), b"6789");
        assert_eq!(end_of_file(file.path(), 99).unwrap(), b"0123456789");
        assert!(end_of_file(Path::new("/nowhere"), 1).is_err());
    }
}
