//! The spool of downloads that go on to a pool by way of libvirt.

use std::path::PathBuf;

use super::pool::{DirectoryPool, unusable};
use crate::model::{Fault, FaultKind};

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
            Fault::new(FaultKind::StateFailed, text)
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
            .map_err(|error| unusable(&self.directory, &error))?;
        DirectoryPool::open(&self.directory)
    }
}
