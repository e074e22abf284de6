//! The rules of the cache, against real directories, real servers and real processes.

pub(super) mod agent;
mod crash;
mod disk;
mod eviction;
mod hostile;
mod interleave;
mod processes;
mod properties;
mod rules;
mod server;
mod untrusted;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::model::{Sha256Digest, UrlOrigin};

pub(super) struct NoDomains;

impl BaseUsers for NoDomains {
    fn disks(&self) -> Result<Vec<DomainDisk>, Fault> {
        Ok(Vec::new())
    }
}

/// The image `c` of the entry `a-b` at `url`.
pub(super) fn source(url: &str) -> ImageSource {
    ImageSource {
        entry: EntryName::new("a-b").unwrap(),
        key: ImageKey::new("c").unwrap(),
        url: ResourceUrl::parse(url, UrlOrigin::Configuration).unwrap(),
        pin: Pin::None,
        format: ImageFormat::Qcow2,
    }
}

const BASE: &str = "base-a-b-c.qcow2";
const MARKER: &str = "base-a-b-c.qcow2.json";
const LOCK: &str = "base-a-b-c.qcow2.lock";

fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// All names in a directory, sorted.
fn listing(home: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(home).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn inode(home: &Path, name: &str) -> u64 {
    std::fs::metadata(home.join(name)).unwrap().ino()
}

/// Damages a base so that neither size nor time show it.
fn rot(path: &Path) {
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
    let mut bytes = std::fs::read(path).unwrap();
    let times = std::fs::metadata(path).unwrap().modified().unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    file.set_modified(times).unwrap();
}

/// What stands at the marker of `base`.
fn marker(home: &Path, base: &str) -> MarkerState {
    Marker::parse(&std::fs::read(home.join(marker_file_name(base))).unwrap_or_default())
}

/// A valid qcow2 image of `size` bytes that is none other than number `number`.
fn numbered(number: u8, size: usize) -> Vec<u8> {
    let mut bytes = inspect::tests::image();
    let begin = bytes.len();
    bytes.resize(size.max(begin), number);
    // So that it doesn't shrink to nothing when compressed.
    let mut state = u32::from(number) + 1;
    for byte in &mut bytes[begin..] {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    bytes
}
