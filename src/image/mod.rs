//! The image cache: one verified base per image of an entry, in a directory that any
//! number of processes share. docs/image-cache.md tells the rules and why they are.
//!
//! The types carry the rules: a [`Base`] exists only with a valid marker in hand, and
//! a publication only with the image's lock and the pool's fence in hand.

mod cache;
mod copy;
mod evict;
mod examine;
mod fetch;
mod hash;
mod hashing;
mod inspect;
mod limits;
mod marker;
mod name;
mod pending;
mod pool;
mod progress;
mod prove;
mod prune;
mod publish;
mod rules;
mod sighting;
mod spool;
mod steps;
mod verify;

use std::path::PathBuf;

use crate::model::{EntryName, Fault, ImageFormat, ImageId, ImageKey, Pin, ResourceUrl};

pub use cache::{Base, Cache};
pub use examine::check_unchanged;
pub use fetch::Fetcher;
pub use hashing::Hashing;
pub use inspect::disk_size;
pub use marker::{Marker, MarkerState, Validators, Volume};
pub use name::{base_file_name, base_of_marker, can_be_of, marker_file_name};
pub use pending::{DEAD_AFTER, MAKING, MARKER_VOLUME_SIZE, Pending, is_half_made, pending_writer};
pub use pool::{DirectoryPool, PoolFence};
pub use progress::{Progress, Stage};
pub use prune::Leftover;
pub use rules::{Verdict, judge, of_another, of_later_version};
pub use sighting::{Found, Seen, Sighting, Standing, unasked};
pub use spool::{Alive, Spool, Spooled};

/// An image of a provider entry: its identity, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSource {
    /// The provider entry.
    pub entry: EntryName,
    /// Its key there.
    pub key: ImageKey,
    /// Where it is.
    pub url: ResourceUrl,
    /// What its bytes are held to.
    pub pin: Pin,
    /// Its file format.
    pub format: ImageFormat,
}

impl ImageSource {
    /// Which it is.
    pub fn id(&self) -> ImageId {
        ImageId { entry: self.entry.clone(), key: self.key.clone() }
    }

    /// The name of its base in a pool.
    pub fn base_name(&self) -> String {
        base_file_name(&self.entry, &self.key, self.format)
    }
}

/// A disk of a domain, defined or running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainDisk {
    /// The domain's name.
    pub domain: String,
    /// The file that it reads.
    pub file: PathBuf,
}

/// Who uses bases, apart from what the files beside them tell.
pub trait BaseUsers: Send + Sync {
    /// The disks of all domains, other owners' included.
    ///
    /// # Errors
    /// When they can't be told: then every base has to be taken as used.
    fn disks(&self) -> Result<Vec<DomainDisk>, Fault>;
}

#[cfg(test)]
mod tests;
