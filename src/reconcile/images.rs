//! Fetching, hashing and letting go of images, on behalf of an operator.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::jobs::{Job, JobKind, JobState};
use super::{Configured, Event, Images, Supervisor, inventory, source};
use crate::image::{ImageSource, Leftover};
use crate::journal;
use crate::model::{EntryName, Fault, FaultKind, ImageId};

/// How long a job that has ended can still be read.
const LINGER: Duration = Duration::from_secs(10);

impl Supervisor {
    /// The images as they were last seen.
    pub fn images(&self) -> Arc<Images> {
        self.images.borrow().clone()
    }

    /// The same as they change.
    pub fn watch_images(&self) -> tokio::sync::watch::Receiver<Arc<Images>> {
        self.images.subscribe()
    }

    /// Begins to have an image in its pool; the job under way when there is one.
    ///
    /// # Errors
    /// `NoSuchProvider`; `NoSuchImage` for one that is neither configured nor used.
    pub async fn fetch_image(self: &Arc<Self>, id: &ImageId) -> Result<Arc<Job>, Fault> {
        let configured = self.configured();
        let provider = configured.providers.get(&id.entry)?;
        let source = self.source(&configured, id)?;
        let shared = self.shared.clone();
        let work = |job: Arc<Job>| async move {
            let Job { progress, cancel, .. } = &*job;
            let base = shared.ensure_image(&provider, &source, progress, cancel).await?;
            Ok(format!("{} is in the pool, sha256 {}", base.file, base.digest))
        };
        Ok(self.set_to_work(JobKind::Fetch, id, work).await)
    }

    /// Begins to hash the base of an image; the job under way when there is one.
    ///
    /// # Errors
    /// `NoSuchProvider`. That there is no base is for the job to tell.
    pub async fn verify_image(self: &Arc<Self>, id: &ImageId) -> Result<Arc<Job>, Fault> {
        let provider = self.configured().providers.get(&id.entry)?;
        let (desk, id) = (self.shared.desk.clone(), id.clone());
        let image = id.clone();
        let work = |job: Arc<Job>| async move {
            let Job { progress, cancel, .. } = &*job;
            let verified = provider.verify_image(&image.key, progress, cancel).await;
            // Its marker may have been told what was found.
            drop(desk.pool_changed(&image.entry));
            Ok(format!("the base is whole, sha256 {}", verified?))
        };
        Ok(self.set_to_work(JobKind::Verify, &id, work).await)
    }

    /// Removes the base of an image from its pool.
    ///
    /// # Errors
    /// `NoSuchProvider`, `NoSuchImage`, `ImageInUse` naming the users, `Busy`.
    pub async fn evict_image(&self, id: &ImageId) -> Result<(), Fault> {
        let bytes = self.configured().providers.get(&id.entry)?.evict_image(&id.key).await?;
        tracing::info!(
            message_id = journal::IMAGE_REMOVED,
            proxyd_provider = %id.entry,
            proxyd_image = %id.key,
            "image {id} was evicted, {bytes} bytes"
        );
        self.look_at([&id.entry]).await;
        Ok(())
    }

    /// Lists the bases and leftovers of all entries that nothing uses, and removes
    /// them unless `dry_run`. Entries whose host can't be reached are passed over, which
    /// their state and the journal tell, as long as any can be.
    ///
    /// # Errors
    /// When an entry can't tell what is used; then nothing was removed.
    pub async fn prune_images(&self, dry_run: bool) -> Result<Vec<Leftover>, Fault> {
        let configured = self.configured();
        let mut leftovers = configured.prune_each(true).await?;
        if !dry_run {
            leftovers = configured.prune_each(false).await?;
            self.look_at(configured.settings.providers.keys()).await;
        }
        Ok(leftovers)
    }

    /// Waits until the pools of `entries` were looked at, so that whoever changed
    /// something finds it in the inventory.
    async fn look_at(&self, entries: impl IntoIterator<Item = &EntryName>) {
        let looks = entries.into_iter().map(|entry| self.shared.desk.pool_changed(entry));
        for look in looks.collect::<Vec<_>>() {
            // Dropped unsent, the entry or the daemon has gone.
            let _ = look.await;
        }
    }

    /// Where an image comes from: as the configuration has it, or as a Proxy that
    /// names it by its URL.
    pub(super) fn source(
        &self,
        configured: &Configured,
        id: &ImageId,
    ) -> Result<ImageSource, Fault> {
        inventory::wanted(configured, &id.entry, &inventory::users(&self.list(), configured))
            .into_iter()
            .find(|source| source.id() == *id)
            .ok_or_else(|| source::no_such_image(&configured.settings, &id.entry, &id.key))
    }

    /// The job that does `work`, presented and under way.
    async fn set_to_work<F>(
        self: &Arc<Self>,
        kind: JobKind,
        image: &ImageId,
        work: impl FnOnce(Arc<Job>) -> F,
    ) -> Arc<Job>
    where
        F: Future<Output = Result<String, Fault>> + Send + 'static,
    {
        let (job, new) = self.jobs.enter(kind, image, &self.stopping());
        if !new {
            job.presented().await;
            return job;
        }
        // One who has its path must find it there.
        let (presented, done) = tokio::sync::oneshot::channel();
        let event = Event::JobAdded { job: job.clone(), presented };
        if self.events.send(event).await.is_ok() {
            let _ = done.await;
        }
        job.present();
        let (supervisor, ours, work) = (self.clone(), job.clone(), work(job.clone()));
        self.tasks.spawn(async move {
            ours.end(work.await);
            tell_end(&ours);
            let stop = supervisor.stopping();
            tokio::select! {
                () = tokio::time::sleep(LINGER) => {}
                () = stop.cancelled() => {}
            }
            supervisor.jobs.forget(ours.id);
            let _ = supervisor.events.send(Event::JobRemoved(ours)).await;
        });
        job
    }
}

impl Configured {
    /// All hosts at once: none waits for another.
    async fn prune_each(&self, dry_run: bool) -> Result<Vec<Leftover>, Fault> {
        let prune = async |entry: &EntryName| {
            let provider = self.providers.get(entry)?;
            provider.prune_images(self.offered(entry), dry_run).await
        };
        let entries: Vec<_> = self.settings.providers.keys().collect();
        let pruned = join_all(entries.iter().copied().map(prune)).await;
        let (mut leftovers, mut away) = (Vec::new(), Vec::new());
        for (entry, found) in entries.iter().zip(pruned) {
            match found {
                Err(fault) if fault.kind == FaultKind::ProviderUnavailable => {
                    tracing::warn!(
                        proxyd_provider = %entry,
                        proxyd_error = fault.kind.name(),
                        "nothing of provider entry {entry} is pruned: {fault}"
                    );
                    away.push(fault);
                }
                found => {
                    let found = found?;
                    if !dry_run {
                        found.iter().for_each(|leftover| tell(entry, leftover));
                    }
                    leftovers.extend(found);
                }
            }
        }
        // Where nobody was asked, nothing to prune is no answer.
        match away.pop() {
            Some(fault) if away.len() + 1 == entries.len() => Err(fault),
            _ => Ok(leftovers),
        }
    }

    /// The images that the configuration offers at `entry`.
    pub(super) fn offered(&self, entry: &EntryName) -> Vec<ImageSource> {
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

fn tell_end(job: &Job) {
    let (kind, image, message) = (job.kind.as_str(), &job.image, job.message());
    match job.error() {
        Some(error) if job.state() == JobState::Failed => tracing::warn!(
            message_id = journal::JOB_FAILED,
            proxyd_job = job.id,
            proxyd_provider = %image.entry,
            proxyd_image = %image.key,
            proxyd_error = error.name(),
            "job {} ({kind} image {image}) failed: {message}", job.id
        ),
        _ => tracing::info!(
            message_id = journal::JOB_ENDED,
            proxyd_job = job.id,
            proxyd_provider = %image.entry,
            proxyd_image = %image.key,
            "job {} ({kind} image {image}): {}: {message}", job.id, job.state().as_str()
        ),
    }
}
