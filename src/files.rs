//! Small files of our own, written so that a crash leaves the old or the new.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Replaces `path` with `bytes`, readable by the owner alone. When it returns, the
/// new content is on stable storage; until then a reader sees the old one.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = path.parent().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let staged = path.with_extension("tmp");
    let result = stage(&staged, bytes)
        .and_then(|()| std::fs::rename(&staged, path))
        .and_then(|()| File::open(parent)?.sync_all());
    if result.is_err() {
        // The first error is the one to report; a leftover is overwritten next time.
        let _ = std::fs::remove_file(&staged);
    }
    result
}

/// Creates `path` with `bytes`, readable by the owner alone, unless it is there: then it
/// is left as it is. Nobody ever sees half of it.
pub fn create_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = path.parent().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    // A name of its own, for others may be about the same.
    let staged = path.with_extension(format!("{}.tmp", uuid::Uuid::new_v4()));
    let linked = stage(&staged, bytes).and_then(|()| std::fs::hard_link(&staged, path));
    let _ = std::fs::remove_file(&staged);
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => File::open(parent)?.sync_all(),
    }
}

fn stage(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes `path` durably; that it isn't there is fine.
pub fn remove_durably(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}
