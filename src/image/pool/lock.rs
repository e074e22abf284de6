//! The lock of one image, for the length of a download: one process fetches, the
//! others wait and use what it fetched.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio_util::sync::CancellationToken;

use super::DirectoryPool;
use crate::image::limits::Limits;
use crate::image::name::lock_file_name;
use crate::image::progress::{Progress, Stage};
use crate::image::steps::{self, Step};
use crate::model::{Fault, FaultKind};
use crate::tasks;

const FIRST_POLL: Duration = Duration::from_millis(20);

/// Held for as long as this lives; the kernel frees it when the process dies.
#[derive(Debug)]
pub(in crate::image) struct ImageLock {
    _lock: Flock<File>,
}

impl ImageLock {
    /// Takes the lock of `base`, waiting for whoever holds it.
    ///
    /// # Errors
    /// `Busy` when the holder keeps it; `Canceled`; `PoolUnavailable`.
    pub(in crate::image) async fn acquire(
        pool: &Arc<DirectoryPool>,
        base: &str,
        limits: &Limits,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Self, Fault> {
        let mut wait = Wait::new(base, limits);
        loop {
            let (at, name) = (pool.clone(), base.to_owned());
            match tasks::blocking(move || attempt(&at, &name)).await? {
                Attempt::Taken(lock) => return Ok(Self { _lock: lock }),
                Attempt::HeldBy(holder) => wait.goes_on(&holder, progress)?,
            }
            tokio::select! {
                () = cancel.cancelled() => return Err(canceled()),
                () = tokio::time::sleep(wait.poll()) => {}
            }
        }
    }

    /// Takes the lock of `base` unless somebody holds it; from a thread that may
    /// block.
    ///
    /// # Errors
    /// `Busy`, naming the holder; `PoolUnavailable`.
    pub(in crate::image) fn try_acquire(pool: &DirectoryPool, base: &str) -> Result<Self, Fault> {
        match attempt(pool, base)? {
            Attempt::Taken(lock) => Ok(Self { _lock: lock }),
            Attempt::HeldBy(holder) => {
                Err(Fault::new(FaultKind::Busy, format!("{holder} works on {base}: wait for it")))
            }
        }
    }
}

pub(in crate::image) fn canceled() -> Fault {
    Fault::new(FaultKind::Canceled, "the work on the image was called off")
}

/// A wait for a lock.
struct Wait<'a> {
    base: &'a str,
    limits: &'a Limits,
    since: Instant,
    noted: Option<Instant>,
    poll: Duration,
}

impl<'a> Wait<'a> {
    fn new(base: &'a str, limits: &'a Limits) -> Self {
        Self { base, limits, since: Instant::now(), noted: None, poll: FIRST_POLL }
    }

    /// Says whom it is for and for how long, now and then, and ends it in time.
    fn goes_on(&mut self, holder: &str, progress: &Progress) -> Result<(), Fault> {
        let base = self.base;
        let waited =
            humantime::format_duration(Duration::from_secs(self.since.elapsed().as_secs()));
        if self.since.elapsed() >= self.limits.lock {
            let text = format!(
                "{holder} has been working on {base} for {waited} and more: if it hangs, end it, \
                 and this goes on"
            );
            return Err(Fault::new(FaultKind::Busy, text));
        }
        progress.enter(Stage::Waiting(format!("{holder}, which works on {base}")), 0);
        if self.noted.is_none_or(|noted| noted.elapsed() >= self.limits.lock_note) {
            tracing::info!("waiting for {holder}, which works on {base}; waited {waited} so far");
            self.noted = Some(Instant::now());
        }
        Ok(())
    }

    fn poll(&mut self) -> Duration {
        let now = self.poll.min(self.limits.lock_poll);
        self.poll = now * 2;
        now
    }
}

enum Attempt {
    Taken(Flock<File>),
    HeldBy(String),
}

fn attempt(pool: &DirectoryPool, base: &str) -> Result<Attempt, Fault> {
    let name = lock_file_name(base);
    let file = pool.open_lock(&name)?;
    let failed = |error: std::io::Error| pool.failed("locked", &name, error);
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            sign(&mut lock);
            steps::passed(Step::Locked);
            Ok(Attempt::Taken(lock))
        }
        Err((file, Errno::EWOULDBLOCK)) => {
            steps::passed(Step::LockBusy);
            Ok(Attempt::HeldBy(holder(file)))
        }
        Err((_, error)) => Err(failed(error.into())),
    }
}

/// Notes who holds it, for those who wait. That it can't be noted, on a disk that is
/// full, is no reason not to go on: they wait for somebody without a name then.
fn sign(file: &mut File) {
    let signed = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    if let Err(error) = signed {
        tracing::debug!("a lock file can't be signed: {error}");
    }
}

fn holder(file: File) -> String {
    let mut text = String::new();
    // It may be empty, just before the holder signs it.
    let _ = file.take(32).read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(pid) if pid == std::process::id() => "other work of this process".to_owned(),
        Ok(pid) => format!("process {pid}"),
        Err(_) => "another process".to_owned(),
    }
}
