//! Who backs onto a base, as the qcow2 headers in its directory tell: overlays of
//! others included, and overlays of overlays.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::BaseUsers;
use super::inspect::backing_file;
use super::pool::DirectoryPool;
use crate::model::{Fault, FaultKind};

/// A chain that is longer is taken as leading to the base.
const MAX_CHAIN: usize = 64;

/// Everything that uses `base`: files of its directory and domains.
///
/// # Errors
/// When that can't be told of a file or of the domains: the base then has to be taken
/// as used.
pub(super) fn find(
    pool: &DirectoryPool,
    base: &str,
    domains: &dyn BaseUsers,
) -> Result<Vec<String>, Fault> {
    let mut users = Vec::new();
    for name in pool.names()? {
        if name != base && backs_onto(pool, Path::new(&name), base)? {
            users.push(name.to_string_lossy().into_owned());
        }
    }
    users.extend(domains.users_of(&pool.path_of(base))?);
    Ok(users)
}

/// Whether the chain that begins at `file` leads to `base`.
fn backs_onto(pool: &DirectoryPool, file: &Path, base: &str) -> Result<bool, Fault> {
    let target = identity(&pool.path_of(base));
    let mut file = pool.path().join(file);
    for _ in 0..MAX_CHAIN {
        let Some(backing) = backing_of(&file)? else { return Ok(false) };
        // QEMU understands more than file names there. What can't be followed but
        // mentions the base is taken as leading to it.
        let Some(next) = resolve(&file, &backing) else { return Ok(backing.contains(base)) };
        let named = next.file_name().is_some_and(|name| name == base);
        if (named && next.parent() == Some(pool.path()))
            || (target.is_some() && identity(&next) == target)
        {
            return Ok(true);
        }
        file = next;
    }
    Ok(true)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

/// The backing file named in the header of `file`; nothing when it has none, or isn't
/// there, or is no regular file.
fn backing_of(file: &Path) -> Result<Option<String>, Fault> {
    let unreadable = |error: &dyn std::fmt::Display| {
        let text = format!(
            "{} can't be read ({error}), so what it backs onto is not known: let proxyd read it, \
             or move it out of the pool",
            file.display()
        );
        Fault::new(FaultKind::PoolUnavailable, text)
    };
    // A FIFO must not make us wait, and a device not be touched.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC | nix::libc::O_NOCTTY;
    match std::fs::metadata(file) {
        Ok(data) if data.is_file() => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unreadable(&error)),
        _ => return Ok(None),
    }
    let opened = File::options().read(true).custom_flags(flags).open(file);
    match opened {
        Ok(opened) => backing_file(&opened).map_err(|error| unreadable(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&error)),
    }
}

/// The file that `backing`, in the header of `file`, names; nothing when it is no
/// plain file name.
fn resolve(file: &Path, backing: &str) -> Option<PathBuf> {
    let plain = backing.strip_prefix("file:").unwrap_or(backing);
    if plain.starts_with("json:") || plain.split('/').next().is_some_and(|head| head.contains(':'))
    {
        return None;
    }
    Some(file.parent()?.join(plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::inspect::tests::overlay;
    use crate::image::tests::NoDomains;

    fn users(files: &[(&str, Vec<u8>)]) -> Result<Vec<String>, Fault> {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("base.qcow2"), crate::image::inspect::tests::image())
            .unwrap();
        for (name, bytes) in files {
            let bytes = String::from_utf8_lossy(bytes).contains("@").then(|| {
                // Stands for the directory, which has another name in every run.
                overlay(&home.path().join("base.qcow2").to_string_lossy())
            });
            let own = files.iter().find(|file| file.0 == *name).unwrap().1.clone();
            std::fs::write(home.path().join(name), bytes.unwrap_or(own)).unwrap();
        }
        let pool = DirectoryPool::open(home.path()).unwrap();
        let mut users = find(&pool, "base.qcow2", &NoDomains)?;
        users.sort();
        Ok(users)
    }

    #[test]
    fn overlays_are_found_however_they_name_it() {
        let files = [
            ("absolute", b"@".to_vec()),
            ("relative", overlay("base.qcow2")),
            ("dotted", overlay("./base.qcow2")),
            ("prefixed", overlay("file:base.qcow2")),
            ("json", overlay("json:{\"file.filename\":\"/else/base.qcow2\"}")),
            ("nbd", overlay("nbd://h/x")),
            ("other", overlay("other.qcow2")),
            ("text", b"QFI".to_vec()),
        ];
        assert_eq!(users(&files).unwrap(), ["absolute", "dotted", "json", "prefixed", "relative"]);
    }

    #[test]
    fn chains_are_followed_and_loops_are_safe() {
        let files = [
            ("first", overlay("base.qcow2")),
            ("second", overlay("first")),
            ("loop", overlay("loop")),
        ];
        assert_eq!(users(&files).unwrap(), ["first", "loop", "second"]);
    }

    #[test]
    fn a_name_that_is_not_utf_8_hides_nothing() {
        use std::os::unix::ffi::OsStrExt as _;
        let home = tempfile::tempdir().unwrap();
        let name = std::ffi::OsStr::from_bytes(b"over\xff");
        std::fs::write(home.path().join(name), overlay("base.qcow2")).unwrap();
        let pool = DirectoryPool::open(home.path()).unwrap();
        assert_eq!(find(&pool, "base.qcow2", &NoDomains).unwrap().len(), 1);
    }

    #[test]
    fn a_fifo_is_passed_over() {
        let home = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&home.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(home.path().join("a"), overlay("fifo")).unwrap();
        let pool = DirectoryPool::open(home.path()).unwrap();
        assert_eq!(find(&pool, "base.qcow2", &NoDomains).unwrap(), Vec::<String>::new());
    }
}
