//! The lock of one image, for the length of a download: one process fetches, the
//! others wait and use what it fetched.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio_util::sync::CancellationToken;

use super::name::lock_file_name;
use super::pool::DirectoryPool;
use super::progress::{Progress, Stage};
use crate::model::{Fault, FaultKind};
use crate::tasks;

/// How long the holder's download is waited for before the wait is given up, to be
/// begun again later.
const TIMEOUT: Duration = Duration::from_secs(3600);
const FIRST_POLL: Duration = Duration::from_millis(20);
const LAST_POLL: Duration = Duration::from_millis(500);

/// Held for as long as this lives; the kernel frees it when the process dies.
#[derive(Debug)]
pub(super) struct ImageLock {
    _lock: Flock<File>,
}

impl ImageLock {
    /// Takes the lock of `base`.
    ///
    /// # Errors
    /// `Busy` when the holder keeps it; `Canceled`; `PoolUnavailable`.
    pub(super) async fn acquire(
        pool: &Arc<DirectoryPool>,
        base: &str,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Self, Fault> {
        let started = Instant::now();
        let mut poll = FIRST_POLL;
        let mut told = false;
        loop {
            let (at, name) = (pool.clone(), base.to_owned());
            let holder = match tasks::blocking(move || attempt(&at, &name)).await? {
                Attempt::Taken(lock) => return Ok(Self { _lock: lock }),
                Attempt::HeldBy(holder) => holder,
            };
            progress.enter(Stage::Waiting(format!("{holder}, which works on {base}")), 0);
            if !std::mem::replace(&mut told, true) {
                tracing::info!("waiting for {holder}, which works on {base}");
            }
            if started.elapsed() > TIMEOUT {
                let text = format!("{holder} has been working on {base} for {TIMEOUT:?}");
                return Err(Fault::new(FaultKind::Busy, text));
            }
            tokio::select! {
                () = cancel.cancelled() => return Err(canceled()),
                () = tokio::time::sleep(poll) => poll = (poll * 2).min(LAST_POLL),
            }
        }
    }
}

pub(super) fn canceled() -> Fault {
    Fault::new(FaultKind::Canceled, "the work on the image was called off")
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
            sign(&mut lock).map_err(failed)?;
            Ok(Attempt::Taken(lock))
        }
        Err((file, Errno::EWOULDBLOCK)) => Ok(Attempt::HeldBy(holder(file))),
        Err((_, error)) => Err(failed(error.into())),
    }
}

/// Notes who holds it, for those who wait.
fn sign(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn holder(file: File) -> String {
    let mut text = String::new();
    // It may be empty, just before the holder signs it.
    let _ = file.take(32).read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(pid) => format!("process {pid}"),
        Err(_) => "another process".to_owned(),
    }
}
