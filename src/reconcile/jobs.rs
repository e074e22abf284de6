//! Long work that was asked for: what runs, how far it has come, and how it ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::image::Progress;
use crate::model::{Fault, FaultKind, ImageId};

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Has an image in its pool.
    Fetch,
    /// Hashes a base.
    Verify,
}

impl JobKind {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::Fetch, Self::Verify];

    /// The word for it on D-Bus.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Verify => "verify",
        }
    }
}

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// It is under way.
    Running,
    /// It has done what it was for.
    Done,
    /// It was called off.
    Canceled,
    /// It could not do what it was for.
    Failed,
}

impl JobState {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Canceled, Self::Failed];

    /// The word for it on D-Bus.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Canceled => "canceled",
            Self::Failed => "failed",
        }
    }
}

/// A job, running or ended.
#[derive(Debug)]
pub struct Job {
    /// Its number, never used twice by one daemon.
    pub id: u64,
    /// What it does.
    pub kind: JobKind,
    /// To which image.
    pub image: ImageId,
    pub(super) progress: Progress,
    pub(super) cancel: CancellationToken,
    outcome: watch::Sender<Option<Result<String, Fault>>>,
    presented: watch::Sender<bool>,
}

impl Job {
    /// How it stands.
    pub fn state(&self) -> JobState {
        match &*self.outcome.borrow() {
            None => JobState::Running,
            Some(Ok(_)) => JobState::Done,
            Some(Err(fault)) if fault.kind == FaultKind::Canceled => JobState::Canceled,
            Some(Err(_)) => JobState::Failed,
        }
    }

    /// What it is at, or how it ended.
    pub fn message(&self) -> String {
        match &*self.outcome.borrow() {
            None => self.progress.to_string(),
            Some(Ok(message)) => message.clone(),
            Some(Err(fault)) => fault.message.clone(),
        }
    }

    /// Why it ended without success.
    pub fn error(&self) -> Option<FaultKind> {
        self.outcome.borrow().as_ref()?.as_ref().err().map(|fault| fault.kind)
    }

    /// Bytes done in its present stage, and all of them, 0 when that isn't known.
    pub fn bytes(&self) -> (u64, u64) {
        self.progress.measured()
    }

    /// How much is done, from 0 to 1.
    pub fn fraction(&self) -> f64 {
        match (self.state(), self.bytes()) {
            (JobState::Done, _) => 1.0,
            (_, (_, 0)) => 0.0,
            // Sizes are far below what a double can tell apart for a bar.
            #[expect(clippy::cast_precision_loss, reason = "it is for a progress bar")]
            (_, (done, total)) => (done as f64 / total as f64).min(1.0),
        }
    }

    /// Calls it off. It ends by itself when that was heeded.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Resolves when it has ended.
    pub async fn ended(&self) {
        // The sender is this job's own, so it can't be gone.
        let _ = self.outcome.subscribe().wait_for(Option::is_some).await;
    }

    /// It can be found now.
    pub(super) fn present(&self) {
        self.presented.send_replace(true);
    }

    /// Resolves when it can be found.
    pub(super) async fn presented(&self) {
        let _ = self.presented.subscribe().wait_for(|presented| *presented).await;
    }

    pub(super) fn end(&self, outcome: Result<String, Fault>) {
        self.outcome.send_replace(Some(outcome));
    }
}

/// The jobs that run or have ended just now.
#[derive(Debug, Default)]
pub(super) struct Jobs(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    jobs: BTreeMap<u64, Arc<Job>>,
    last: u64,
}

impl Jobs {
    /// The job that does `kind` to `image`: the one under way, or a new one, which the
    /// caller has to set to work then.
    pub(super) fn enter(
        &self,
        kind: JobKind,
        image: &ImageId,
        stop: &CancellationToken,
    ) -> (Arc<Job>, bool) {
        let mut book = self.lock();
        let same = |job: &&Arc<Job>| {
            job.kind == kind && job.image == *image && job.state() == JobState::Running
        };
        // One that is called off already would not do what is asked for.
        if let Some(job) = book.jobs.values().filter(same).find(|job| !job.cancel.is_cancelled()) {
            return (job.clone(), false);
        }
        book.last += 1;
        let job = Arc::new(Job {
            id: book.last,
            kind,
            image: image.clone(),
            progress: Progress::default(),
            cancel: stop.child_token(),
            outcome: watch::Sender::new(None),
            presented: watch::Sender::new(false),
        });
        book.jobs.insert(job.id, job.clone());
        (job, true)
    }

    /// Strikes a job from the book.
    pub(super) fn forget(&self, id: u64) {
        self.lock().jobs.remove(&id);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Book> {
        // It is whole after every statement, so a panic elsewhere can't spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Stage;
    use crate::model::{EntryName, ImageKey};

    #[test]
    fn the_same_work_is_one_job_until_it_has_ended() {
        let (jobs, stop) = (Jobs::default(), CancellationToken::new());
        let image = ImageId {
            entry: EntryName::new("home").unwrap(),
            key: ImageKey::new("debian").unwrap(),
        };
        let (first, new) = jobs.enter(JobKind::Fetch, &image, &stop);
        assert!(new);
        let (again, new) = jobs.enter(JobKind::Fetch, &image, &stop);
        assert!(!new && again.id == first.id);
        assert!(jobs.enter(JobKind::Verify, &image, &stop).1);
        first.progress.enter(Stage::Downloading, 8);
        first.progress.advance(2);
        assert!((first.fraction() - 0.25).abs() < 1e-9);
        first.end(Err(Fault::new(FaultKind::NoSpace, "full")));
        assert_eq!((first.state(), first.error()), (JobState::Failed, Some(FaultKind::NoSpace)));
        let (next, new) = jobs.enter(JobKind::Fetch, &image, &stop);
        assert!(new && next.id > first.id);
        next.cancel();
        let (other, new) = jobs.enter(JobKind::Fetch, &image, &stop);
        assert!(new && other.id != next.id, "one that was called off is not handed out");
    }
}
