//! Letting go of images, on behalf of an operator.

use super::{Configured, source};
use crate::config::ProviderType;
use crate::image::{ImageSource, Leftover};
use crate::journal;
use crate::model::{EntryName, Fault, ImageKey};

impl Configured {
    /// Removes the base of image `key` of `entry` from its pool.
    ///
    /// # Errors
    /// `NoSuchProvider`, `NoSuchImage`, `ImageInUse` naming the users, `Busy`.
    pub async fn evict_image(&self, entry: &EntryName, key: &ImageKey) -> Result<(), Fault> {
        let bytes = self.providers.get(entry)?.evict_image(key).await?;
        tracing::info!(
            message_id = journal::IMAGE_REMOVED,
            proxyd_provider = %entry,
            proxyd_image = %key,
            "image {key} of provider entry {entry} was evicted, {bytes} bytes"
        );
        Ok(())
    }

    /// Lists the bases and leftovers of all entries that nothing uses, and removes
    /// them unless `dry_run`. Entries of type kvm2 are passed over.
    ///
    /// # Errors
    /// When an entry can't tell what is used; then nothing was removed.
    pub async fn prune_images(&self, dry_run: bool) -> Result<Vec<Leftover>, Fault> {
        let mut leftovers = self.prune_each(true).await?;
        if !dry_run {
            leftovers = self.prune_each(false).await?;
        }
        Ok(leftovers)
    }

    async fn prune_each(&self, dry_run: bool) -> Result<Vec<Leftover>, Fault> {
        let mut leftovers = Vec::new();
        for (entry, settings) in &self.settings.providers {
            if settings.kind == ProviderType::Kvm2 {
                continue;
            }
            let offered = self.offered(entry);
            let found = self.providers.get(entry)?.prune_images(offered, dry_run).await?;
            if !dry_run {
                found.iter().for_each(|leftover| tell(entry, leftover));
            }
            leftovers.extend(found);
        }
        Ok(leftovers)
    }

    fn offered(&self, entry: &EntryName) -> Vec<ImageSource> {
        let settings = self.settings.providers.get(entry);
        settings
            .into_iter()
            .flat_map(|settings| &settings.images)
            .map(|(key, image)| source::keyed(entry, key, image))
            .collect()
    }
}

fn tell(entry: &EntryName, leftover: &Leftover) {
    tracing::info!(
        message_id = journal::IMAGE_REMOVED,
        proxyd_provider = %entry,
        "{} was removed, {} bytes: {}",
        leftover.path.display(),
        leftover.bytes,
        leftover.reason
    );
}
