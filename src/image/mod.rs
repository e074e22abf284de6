//! The image cache: one verified base per image of an entry, in a directory that any
//! number of processes share. docs/image-cache.md tells the rules and why they are.
//!
//! The types carry the rules: a [`Base`] exists only with a valid marker in hand, and
//! a publication only with the image's lock and the pool's fence in hand.

mod cache;
mod download;
mod fetch;
mod hash;
mod inspect;
mod lock;
mod marker;
mod name;
mod pool;
mod progress;
mod publish;
mod rules;
mod users;

use std::path::{Path, PathBuf};

use crate::model::{EntryName, Fault, ImageFormat, ImageKey, ResourceUrl, Sha256Digest};

pub use cache::{Base, check_unchanged, ensure_base};
pub use download::{Verified, download};
pub use marker::{MARKER_VOLUME_SIZE, Marker, MarkerState, Validators};
pub use name::{base_file_name, marker_file_name, overlay_file_name, seed_file_name};
pub use pool::{DirectoryPool, PoolFence};
pub use progress::{Progress, Stage};
pub use rules::{Verdict, judge};

/// An image of a provider entry: its identity, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSource {
    /// The provider entry.
    pub entry: EntryName,
    /// Its key there.
    pub key: ImageKey,
    /// Where it is.
    pub url: ResourceUrl,
    /// What its bytes must hash to, when pinned.
    pub sha256: Option<Sha256Digest>,
    /// Its file format.
    pub format: ImageFormat,
}

impl ImageSource {
    /// The name of its base in a pool.
    pub fn base_name(&self) -> String {
        base_file_name(&self.entry, &self.key, self.format)
    }
}

/// Who uses a base, apart from what the files in its directory tell.
pub trait BaseUsers: Send + Sync {
    /// Names the domains, defined or running, whose disks are backed by `base`.
    ///
    /// # Errors
    /// When that can't be told: then the base has to be taken as used.
    fn users_of(&self, base: &Path) -> Result<Vec<String>, Fault>;
}

/// Where downloads wait that libvirt then takes.
#[derive(Debug, Clone)]
pub struct Spool {
    directory: PathBuf,
}

impl Spool {
    /// A spool in `directory`, which is made when first needed.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// A name for this daemon that outlives it, by which it knows its own unfinished
    /// publications again.
    ///
    /// # Errors
    /// `StateFailed`.
    pub fn writer(&self) -> Result<String, Fault> {
        let path = self.directory.join("writer");
        let failed = |error: std::io::Error| {
            let text = format!("{} can't be used: {error}", path.display());
            Fault::new(crate::model::FaultKind::StateFailed, text)
        };
        std::fs::create_dir_all(&self.directory).map_err(failed)?;
        match std::fs::read_to_string(&path) {
            Ok(text) if uuid::Uuid::parse_str(text.trim()).is_ok() => Ok(text.trim().to_owned()),
            _ => {
                let name = uuid::Uuid::new_v4().to_string();
                crate::files::write_atomic(&path, name.as_bytes()).map_err(failed)?;
                Ok(name)
            }
        }
    }

    /// The directory, open.
    ///
    /// # Errors
    /// `PoolUnavailable`.
    pub fn open(&self) -> Result<DirectoryPool, Fault> {
        std::fs::create_dir_all(&self.directory)
            .map_err(|error| pool::unusable(&self.directory, &error))?;
        DirectoryPool::open(&self.directory)
    }
}

#[cfg(test)]
mod tests;
