//! Where whoever changes something about images says so, and the inventory hears it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::image::{Progress, Stage};
use crate::model::{EntryName, ImageId};

/// What has changed since the inventory last looked here, and what is under way.
#[derive(Debug, Default)]
pub(super) struct Desk {
    slips: Mutex<Slips>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Slips {
    /// Entries whose pool is to be looked at, and who waits for that.
    stale: BTreeMap<EntryName, Vec<oneshot::Sender<()>>>,
    /// What is being had, and whether it turned out to be work.
    under_way: BTreeMap<u64, (ImageId, bool)>,
    /// The number of the last work.
    last: u64,
}

impl Desk {
    /// Proxies came, went, or use other images.
    pub(super) fn uses_changed(&self) {
        self.bell.notify_one();
    }

    /// The pool of `entry` changed. What is given resolves when it was looked at.
    pub(super) fn pool_changed(&self, entry: &EntryName) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.lock().stale.entry(entry.clone()).or_default().push(sender);
        self.bell.notify_one();
        receiver
    }

    /// An image is about to be had; it counts as being fetched once that is more than
    /// a look, until what is given is dropped.
    pub(super) fn begin(self: &Arc<Self>, id: ImageId, progress: &Progress) -> UnderWay {
        let number = {
            let mut slips = self.lock();
            slips.last += 1;
            let number = slips.last;
            slips.under_way.insert(number, (id, false));
            number
        };
        let (desk, mut stages) = (self.clone(), progress.stages());
        let watcher = tokio::spawn(async move {
            if stages.wait_for(|stage| *stage != Stage::Examining).await.is_ok() {
                desk.is_work(number);
            }
        });
        UnderWay { desk: self.clone(), number, watcher: watcher.abort_handle() }
    }

    fn is_work(&self, number: u64) {
        if let Some((_, work)) = self.lock().under_way.get_mut(&number) {
            *work = true;
        }
        self.bell.notify_one();
    }

    fn end(&self, number: u64) {
        let ended = self.lock().under_way.remove(&number);
        if let Some((id, true)) = ended {
            drop(self.pool_changed(&id.entry));
        }
    }

    /// Resolves when something changed.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Takes the entries whose pool is to be looked at.
    pub(super) fn take_stale(&self) -> BTreeMap<EntryName, Vec<oneshot::Sender<()>>> {
        std::mem::take(&mut self.lock().stale)
    }

    /// The images that are being fetched.
    pub(super) fn fetching(&self) -> BTreeSet<ImageId> {
        let slips = self.lock();
        let work = slips.under_way.values().filter(|(_, work)| *work);
        work.map(|(id, _)| id.clone()).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Slips> {
        // It is whole after every statement, so a panic elsewhere can't spoil it.
        self.slips.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An image that is being had.
pub(super) struct UnderWay {
    desk: Arc<Desk>,
    number: u64,
    watcher: tokio::task::AbortHandle,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.watcher.abort();
        self.desk.end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ImageKey;

    #[tokio::test]
    async fn only_work_counts_and_its_end_makes_the_pool_stale() {
        let desk = Arc::new(Desk::default());
        let id = ImageId {
            entry: EntryName::new("home").unwrap(),
            key: ImageKey::new("debian").unwrap(),
        };
        let progress = Progress::default();
        progress.enter(Stage::Examining, 0);
        drop(desk.begin(id.clone(), &progress));
        assert!(desk.take_stale().is_empty() && desk.fetching().is_empty());

        let work = desk.begin(id.clone(), &progress);
        progress.enter(Stage::Downloading, 10);
        desk.rung().await;
        assert_eq!(desk.fetching(), [id.clone()].into());
        drop(work);
        assert!(desk.fetching().is_empty());
        assert!(desk.take_stale().contains_key(&id.entry));
    }
}
