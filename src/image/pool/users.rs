//! Who uses a base, as qcow2 headers tell: overlays of others included, overlays of
//! overlays, and the disks of domains wherever they are.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::DirectoryPool;
use crate::image::DomainDisk;
use crate::image::inspect::backing_file;
use crate::model::{Fault, FaultKind};

/// A chain that is longer is taken as leading to the base.
const MAX_CHAIN: usize = 64;

/// What every file of a pool and every disk of a domain leads to.
pub(in crate::image) struct Usage<'a> {
    pool: &'a DirectoryPool,
    chains: Vec<Chain>,
}

/// The files that somebody reads, one backing the other.
struct Chain {
    user: String,
    /// Those that are backed onto; of a domain, its disk's own file, too.
    files: Vec<PathBuf>,
    /// How it goes on, where that can't be told.
    unknown: Option<Unknown>,
}

enum Unknown {
    /// QEMU understands more than file names there.
    Reference(String),
    /// It is endless.
    TooLong,
}

impl<'a> Usage<'a> {
    /// Reads the headers of all files in `pool`, and of the files of `disks`.
    ///
    /// # Errors
    /// When one can't be read: then its base has to be taken as used, whichever it is.
    pub(in crate::image) fn survey(
        pool: &'a DirectoryPool,
        disks: &[DomainDisk],
    ) -> Result<Self, Fault> {
        let mut chains = Vec::new();
        for name in pool.names()? {
            let user = name.to_string_lossy().into_owned();
            chains.push(Chain::follow(user, &pool.path().join(&name))?);
        }
        for disk in disks {
            let mut chain = Chain::follow(format!("domain {}", disk.domain), &disk.file)?;
            chain.files.push(disk.file.clone());
            chains.push(chain);
        }
        Ok(Self { pool, chains })
    }

    /// Who uses `base`: files of its directory and domains, each once.
    pub(in crate::image) fn of(&self, base: &str) -> Vec<String> {
        let path = self.pool.path_of(base);
        let target = identity(&path);
        let reads =
            |file: &PathBuf| *file == path || (target.is_some() && identity(file) == target);
        let uses = |chain: &&Chain| match &chain.unknown {
            // The file of that name is no user of itself.
            _ if chain.user == base => false,
            Some(Unknown::TooLong) => true,
            // What can't be followed but mentions the base is taken as leading to it.
            Some(Unknown::Reference(text)) if text.contains(base) => true,
            _ => chain.files.iter().any(reads),
        };
        let mut users: Vec<_> =
            self.chains.iter().filter(uses).map(|chain| chain.user.clone()).collect();
        users.sort();
        users.dedup();
        users
    }
}

impl Chain {
    fn follow(user: String, file: &Path) -> Result<Self, Fault> {
        let mut chain = Self { user, files: Vec::new(), unknown: None };
        let mut ahead = vec![file.to_owned()];
        while let Some(file) = ahead.pop() {
            let Some(backing) = backing_of(&file)? else { continue };
            let next = resolve(&file, &backing);
            if next.is_empty() {
                chain.unknown = Some(Unknown::Reference(backing));
            }
            if chain.files.len() + next.len() > MAX_CHAIN {
                chain.unknown = Some(Unknown::TooLong);
                break;
            }
            chain.files.extend(next.iter().cloned());
            ahead.extend(next);
        }
        Ok(chain)
    }
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
             or move it away",
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

/// The files that `backing`, in the header of `file`, names; none when it is neither a
/// file name nor JSON with file names in it.
fn resolve(file: &Path, backing: &str) -> Vec<PathBuf> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    if let Some(json) = backing.strip_prefix("json:") {
        let parsed = serde_json::from_str(json).unwrap_or(Value::Null);
        return texts(&parsed).iter().map(|text| directory.join(text)).collect();
    }
    let plain = backing.strip_prefix("file:").unwrap_or(backing);
    if plain.split('/').next().is_some_and(|head| head.contains(':')) {
        return Vec::new();
    }
    vec![directory.join(plain)]
}

/// Every text in `value`: which of them are file names depends on drivers.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::Object(members) => members.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::inspect::tests::{image, overlay};

    const BASE: &str = "base.qcow2";

    fn users(home: &tempfile::TempDir, disks: &[DomainDisk]) -> Vec<String> {
        let pool = DirectoryPool::open(home.path()).unwrap();
        Usage::survey(&pool, disks).unwrap().of(BASE)
    }

    fn pool_of(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(BASE), image()).unwrap();
        for (name, bytes) in files {
            std::fs::write(home.path().join(name), bytes).unwrap();
        }
        home
    }

    #[test]
    fn overlays_are_found_however_they_name_it() {
        let home = pool_of(&[
            ("relative", overlay(BASE)),
            ("dotted", overlay("./base.qcow2")),
            ("prefixed", overlay("file:base.qcow2")),
            ("json", overlay("json:{\"driver\":\"qcow2\",\"file\":{\"filename\":\"link\"}}")),
            ("torn", overlay("json:{\"file.filename\":\"base.qcow2")),
            ("nbd", overlay("nbd://h/x")),
            ("other", overlay("other.qcow2")),
            ("text", b"QFI".to_vec()),
        ]);
        let absolute = overlay(&home.path().join(BASE).to_string_lossy());
        std::fs::write(home.path().join("absolute"), absolute).unwrap();
        std::os::unix::fs::symlink(BASE, home.path().join("link")).unwrap();
        std::fs::write(home.path().join("linked"), overlay("link")).unwrap();
        let expected = ["absolute", "dotted", "json", "linked", "prefixed", "relative", "torn"];
        assert_eq!(users(&home, &[]), expected);
    }

    #[test]
    fn chains_are_followed_and_loops_are_safe() {
        let home = pool_of(&[
            ("first", overlay(BASE)),
            ("second", overlay("first")),
            ("loop", overlay("loop")),
        ]);
        assert_eq!(users(&home, &[]), ["first", "loop", "second"]);
    }

    #[test]
    fn a_disk_outside_of_the_pool_counts() {
        let home = pool_of(&[]);
        let elsewhere = tempfile::tempdir().unwrap();
        let backed = elsewhere.path().join("disk.qcow2");
        let base = home.path().join(BASE);
        std::fs::write(&backed, overlay(&base.to_string_lossy())).unwrap();
        let disk =
            |domain: &str, file: &Path| DomainDisk { domain: domain.into(), file: file.into() };
        let disks = [
            disk("stopped", &backed),
            disk("direct", &base),
            disk("gone", &elsewhere.path().join("gone")),
            disk("device", Path::new("/dev/null")),
        ];
        assert_eq!(users(&home, &disks), ["domain direct", "domain stopped"]);
    }

    #[test]
    fn a_name_that_is_not_utf_8_hides_nothing() {
        use std::os::unix::ffi::OsStrExt as _;
        let home = pool_of(&[]);
        let name = std::ffi::OsStr::from_bytes(b"over\xff");
        std::fs::write(home.path().join(name), overlay(BASE)).unwrap();
        assert_eq!(users(&home, &[]).len(), 1);
    }

    #[test]
    fn a_fifo_is_passed_over() {
        let home = pool_of(&[("a", overlay("fifo"))]);
        nix::unistd::mkfifo(&home.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(users(&home, &[]), Vec::<String>::new());
    }

    #[test]
    fn a_header_that_can_not_be_read_stops_it() {
        let mut broken = overlay(BASE);
        broken[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        let home = pool_of(&[("broken", broken)]);
        let pool = DirectoryPool::open(home.path()).unwrap();
        let fault = Usage::survey(&pool, &[]).err().unwrap();
        assert!(fault.message.contains("broken"), "{fault}");
    }
}
