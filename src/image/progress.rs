//! How far the work on an image has come, for whoever waits for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// What is being done with an image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Stage {
    /// Its state in the pool is being looked up.
    #[default]
    Examining,
    /// Somebody else works on it; who.
    Waiting(String),
    /// Its server was asked, and hasn't answered yet.
    Requesting,
    /// It is being downloaded.
    Downloading,
    /// The download broke off, and begins again or goes on after a while; why.
    Delayed(String),
    /// It is being copied from another entry's base.
    Copying,
    /// A file that is there already is being hashed.
    Hashing,
    /// It is being handed to libvirt.
    Uploading,
    /// It is being read back from libvirt.
    ReadingBack,
    /// It is being given its name.
    Publishing,
}

/// Shared between the work and its observers: clones tell the same.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    stage: watch::Sender<Stage>,
    done: AtomicU64,
    total: AtomicU64,
    downloaded: AtomicU64,
    /// Of the last stage whose bytes were counted.
    measured: (AtomicU64, AtomicU64),
}

impl Progress {
    /// Enters a stage of `total` bytes; 0 when that isn't known.
    pub fn enter(&self, stage: Stage, total: u64) {
        self.0.stage.send_modify(|present| {
            let done = self.0.done.swap(0, Ordering::Relaxed);
            if *present == Stage::Downloading {
                self.0.downloaded.fetch_add(done, Ordering::Relaxed);
            }
            let measured = self.0.total.swap(total, Ordering::Relaxed);
            if done > 0 {
                self.0.measured.0.store(done, Ordering::Relaxed);
                self.0.measured.1.store(measured, Ordering::Relaxed);
            }
            *present = stage;
        });
    }

    /// Counts `bytes` more as done.
    pub fn advance(&self, bytes: usize) {
        self.0.done.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that were downloaded, in all stages and attempts.
    pub fn downloaded(&self) -> u64 {
        let now = if self.stage() == Stage::Downloading { self.bytes_done() } else { 0 };
        self.0.downloaded.load(Ordering::Relaxed) + now
    }

    /// Bytes done in the present stage.
    pub fn bytes_done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// Bytes of the present stage; 0 when that isn't known.
    pub fn bytes_total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }

    /// Bytes done, and all of them (0 when that isn't known), in the present stage, or
    /// in the last one that counted bytes.
    pub fn measured(&self) -> (u64, u64) {
        let now = (self.bytes_done(), self.bytes_total());
        if now != (0, 0) {
            return now;
        }
        let (done, total) = &self.0.measured;
        (done.load(Ordering::Relaxed), total.load(Ordering::Relaxed))
    }

    /// The present stage.
    pub fn stage(&self) -> Stage {
        self.0.stage.borrow().clone()
    }

    /// The stages as they are entered.
    pub fn stages(&self) -> watch::Receiver<Stage> {
        self.0.stage.subscribe()
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage() {
            Stage::Examining => return f.write_str("examining"),
            Stage::Waiting(whom) => return write!(f, "waiting for {whom}"),
            Stage::Requesting => return f.write_str("waiting for the server to answer"),
            Stage::Delayed(why) => return write!(f, "waiting to try again: {why}"),
            Stage::Publishing => return f.write_str("publishing"),
            Stage::Downloading => "downloading",
            Stage::Copying => "copying",
            Stage::Hashing => "hashing",
            Stage::Uploading => "uploading",
            Stage::ReadingBack => "reading back",
        };
        let (done, total) = (self.bytes_done(), self.bytes_total());
        if total == 0 {
            return write!(f, "{stage}, {} so far", size(done));
        }
        write!(f, "{stage}, {} of {} ({} %)", size(done), size(total), done * 100 / total)
    }
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    if bytes < 10 << 20 {
        return format!("{} KiB", bytes >> 10);
    }
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_over_the_network_counts_as_downloaded() {
        let progress = Progress::default();
        for (stage, bytes) in [(Stage::Hashing, 7), (Stage::Downloading, 10), (Stage::Copying, 5)] {
            progress.enter(stage, 0);
            progress.advance(bytes);
        }
        assert_eq!((progress.downloaded(), progress.bytes_done()), (10, 5));
        progress.enter(Stage::Downloading, 0);
        progress.advance(3);
        assert_eq!(progress.downloaded(), 13);
        progress.enter(Stage::Publishing, 0);
        assert_eq!(progress.measured(), (3, 0));
    }
}
