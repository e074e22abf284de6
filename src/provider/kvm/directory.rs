//! Publishing straight into the pool's directory, which is on this host.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::connection::Link;
use super::users::Domains;
use super::volumes::{self, NewVolume};
use super::{Publisher, appeared, host};
use crate::config::ProviderSettings;
use crate::image::{
    Cache, DirectoryPool, ImageSource, Leftover, Progress, Sighting, check_unchanged,
};
use crate::model::{Fault, ImageKey, Sha256Digest};
use crate::store::BaseRef;
use crate::tasks;

#[derive(Clone)]
pub(super) struct Directory {
    settings: Arc<ProviderSettings>,
    link: Link,
}

impl Directory {
    pub(super) fn new(settings: Arc<ProviderSettings>, link: Link) -> Self {
        Self { settings, link }
    }

    async fn cache(&self) -> Result<Cache, Fault> {
        let path = self.path().await?;
        let pool = tasks::blocking(move || DirectoryPool::open(&path)).await?;
        Ok(Cache::new(pool, Arc::new(Domains(self.link.clone()))))
    }

    async fn path(&self) -> Result<PathBuf, Fault> {
        let settings = self.settings.clone();
        self.link.run(move |connection| host::pool_path(&host::pool(connection, &settings)?)).await
    }

    /// Has libvirt take notice of files that were laid into its directory.
    async fn refresh(&self) {
        let settings = self.settings.clone();
        let refreshed = self
            .link
            .run(move |connection| Ok(host::pool(connection, &settings)?.refresh(0)?))
            .await;
        if let Err(fault) = refreshed {
            // For `virsh vol-list` only: an overlay needs no more than the path.
            tracing::debug!("the pool was not refreshed: {fault}");
        }
    }
}

#[async_trait]
impl Publisher for Directory {
    async fn ensure(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<BaseRef, Fault> {
        let base = self.cache().await?.ensure(source, progress, cancel).await?;
        if base.was_written() {
            self.refresh().await;
        }
        Ok(BaseRef {
            file: base.name().to_owned(),
            path: base.path(),
            digest: base.digest(),
            format: base.format(),
            virtual_size: base.virtual_size(),
        })
    }

    async fn survey(&self, wanted: Vec<ImageSource>) -> Result<Vec<Sighting>, Fault> {
        self.cache().await?.survey(&self.settings.name, wanted).await
    }

    async fn verify(
        &self,
        key: &ImageKey,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Sha256Digest, Fault> {
        self.cache().await?.verify(&self.settings.name, key, progress, cancel).await
    }

    async fn evict(&self, key: &ImageKey) -> Result<u64, Fault> {
        let bytes = self.cache().await?.evict(&self.settings.name, key).await?;
        self.refresh().await;
        Ok(bytes)
    }

    async fn prune(
        &self,
        offered: Vec<ImageSource>,
        dry_run: bool,
    ) -> Result<Vec<Leftover>, Fault> {
        let pruned = self.cache().await?.prune(&self.settings.name, offered, dry_run).await?;
        if !dry_run && !pruned.is_empty() {
            self.refresh().await;
        }
        Ok(pruned)
    }

    async fn writable(&self) -> Result<String, Fault> {
        let path = self.path().await?;
        tasks::blocking(move || {
            // As publishing does it: a file without a name, under the pool's lock.
            DirectoryPool::open(&path)?.check_writable()?;
            Ok(format!("bases are published into {}", path.display()))
        })
        .await
    }

    async fn overlay(&self, base: &BaseRef, overlay: &str, size: u64) -> Result<(), Fault> {
        let path = self.path().await?;
        let (settings, base, overlay) = (self.settings.clone(), base.clone(), overlay.to_owned());
        self.link
            .run(move |connection| {
                let directory = DirectoryPool::open(&path)?;
                // Held until the overlay's header is there for every eviction to see.
                let fence = directory.fence()?;
                check_unchanged(&fence, &base.file, base.digest)?;
                let volume = NewVolume::overlay(&overlay, &base, size);
                let pool = host::pool(connection, &settings)?;
                volume.create(&pool)?.ok_or_else(|| appeared(&overlay))?;
                // Who removes through libvirt does not ask for the fence.
                let checked = check_unchanged(&fence, &base.file, base.digest);
                if checked.is_err() {
                    volumes::delete(&pool, &overlay)?;
                }
                Ok(checked?)
            })
            .await
    }

    async fn unchanged(&self, base: &BaseRef) -> Result<(), Fault> {
        let path = self.path().await?;
        let base = base.clone();
        tasks::blocking(move || {
            let directory = DirectoryPool::open(&path)?;
            check_unchanged(&directory.fence()?, &base.file, base.digest)
        })
        .await
    }
}
