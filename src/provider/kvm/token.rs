//! The marker volume as fence and commit record of a base.
//!
//! libvirt has neither locks nor renames, but creating a volume is test-and-set: who
//! creates the marker may work on the base. It completes the marker, last of all,
//! through an upload that it has held open since. An upload is bound to the file that
//! it began on, so a writer that was taken for dead, and whose marker was deleted, can't
//! write into its successor's.

use std::sync::Arc;
use std::time::Duration;

use virt::connect::Connect;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use super::connection::CallError;
use super::pace::{Pace, Step, busy, now};
use super::transfer::read_marker;
use super::volumes::{self, NewVolume};
use crate::image::{MAKING, MARKER_VOLUME_SIZE, Marker, Pending, marker_file_name};
use crate::model::{Fault, FaultKind};

/// Room that is left for the marker's identity, which is known last.
const RESERVE: usize = 256;
/// What moves a marker: white space to JSON, and another one than stands there.
const BEAT: u8 = b' ';
const OTHER_BEAT: u8 = b'\t';

/// Who works on a base.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    /// The file name of the base.
    pub(super) base: String,
    /// What its marker begins with.
    pub(super) by: Pending,
}

impl Claim {
    /// Bytes that a marker takes beside what it begins with.
    pub(super) fn room(&self, marker: &Marker) -> Result<usize, CallError> {
        let [_, rest] = marker.render_in_two(&self.by).map_err(misfit)?;
        Ok(rest.len())
    }
}

/// The right to work on a base.
pub(super) struct Token<'a> {
    connection: &'a Connect,
    pool: &'a StoragePool,
    claim: &'a Claim,
    pace: &'a Arc<Pace>,
    stream: Stream,
    /// Bytes of the marker that were sent.
    sent: usize,
    /// Bytes of it that are kept free for its end.
    rest: usize,
    /// What stood there before.
    old: Vec<u8>,
    /// When the marker was last moved.
    moved: Duration,
}

impl<'a> Token<'a> {
    /// Creates the marker; `room` bytes of it will be needed in the end.
    ///
    /// # Errors
    /// `Busy` when somebody else has it.
    pub(super) fn take(
        (connection, pool): (&'a Connect, &'a StoragePool),
        claim: &'a Claim,
        pace: &'a Arc<Pace>,
        room: usize,
    ) -> Result<Self, CallError> {
        let size = MARKER_VOLUME_SIZE as u64;
        let marker = marker_file_name(&claim.base);
        let Some(volume) = NewVolume::published(&marker, size).create(pool)? else {
            return Err(busy(&format!("somebody else has begun to work on {}", claim.base)).into());
        };
        let taken = Self::at((connection, pool), claim, pace, room, &volume, Vec::new());
        let opened = taken.and_then(Self::open);
        if opened.is_err() {
            // Nobody else does, before a long time is over.
            let _ = volumes::delete(pool, &marker);
        }
        opened
    }

    /// Opens the upload to the marker, which is at `volume`.
    fn at(
        (connection, pool): (&'a Connect, &'a StoragePool),
        claim: &'a Claim,
        pace: &'a Arc<Pace>,
        rest: usize,
        volume: &StorageVol,
        old: Vec<u8>,
    ) -> Result<Self, CallError> {
        let stream = Stream::new(connection, 0)?;
        volume.upload(&stream, 0, MARKER_VOLUME_SIZE as u64, 0)?;
        Ok(Self { connection, pool, claim, pace, stream, sent: 0, rest, old, moved: now() })
    }

    /// Takes it up again over another connection; its base is `made` or isn't.
    ///
    /// # Errors
    /// `Busy` when somebody else has taken over.
    pub(super) fn retake(
        place: (&'a Connect, &'a StoragePool),
        claim: &'a Claim,
        pace: &'a Arc<Pace>,
        room: usize,
        made: bool,
    ) -> Result<Self, CallError> {
        let Some(volume) = volumes::lookup(place.1, &marker_file_name(&claim.base))? else {
            return Err(taken_over(&claim.base).into());
        };
        // In this order: the upload is bound to a file, and then that is found to be ours.
        let mut token = Self::at(place, claim, pace, room, &volume, Vec::new())?;
        token.old = token.confirm()?;
        let mut token = token.open()?;
        if made {
            token.send(&[MAKING])?;
        }
        // What was sent is what was there already: this is what moves.
        let beat = if token.stands() == Some(OTHER_BEAT) { BEAT } else { OTHER_BEAT };
        token.send(&[beat])?;
        Ok(token)
    }

    fn open(mut self) -> Result<Self, CallError> {
        let pending = self.claim.by.render().map_err(misfit)?;
        self.send(&pending)?;
        self.pace.passed(Step::Begun);
        Ok(self)
    }

    /// What stands where the next byte goes.
    fn stands(&self) -> Option<u8> {
        self.old.get(self.sent).copied()
    }

    fn has_room(&self) -> bool {
        self.sent + self.rest + RESERVE < MARKER_VOLUME_SIZE
    }

    /// From now on its base is being made.
    pub(super) fn making(&mut self) -> Result<(), CallError> {
        self.send(&[MAKING])
    }

    fn move_on(&mut self) -> Result<(), CallError> {
        // A token that has no room left to move lives on for the lease.
        if !self.has_room() {
            return Ok(());
        }
        let beat = if self.stands() == Some(BEAT) { OTHER_BEAT } else { BEAT };
        self.send(&[beat])
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        volumes::send(&self.stream, bytes)?;
        self.sent += bytes.len();
        self.moved = now();
        Ok(())
    }

    /// When the marker was last moved.
    pub(super) fn moved(&self) -> Duration {
        self.moved
    }

    /// Shows that its holder lives.
    ///
    /// # Errors
    /// `Busy` when it was held up for so long that others may take it for dead.
    pub(super) fn beat(&mut self) -> Result<(), CallError> {
        let still = now().saturating_sub(self.moved);
        if still > self.pace.lease {
            return Err(held_up(&self.claim.base, still).into());
        }
        if still >= self.pace.beat {
            self.move_on()?;
        }
        Ok(())
    }

    /// Makes sure that the marker at the name still is this one, and gives its bytes.
    ///
    /// # Errors
    /// `Busy` when somebody else has taken over.
    pub(super) fn confirm(&self) -> Result<Vec<u8>, CallError> {
        confirm((self.connection, self.pool), self.claim)
    }

    /// Shows that its holder lives, after a call that may have taken longer than the
    /// lease.
    ///
    /// # Errors
    /// `Busy` when somebody else has taken over meanwhile.
    pub(super) fn renew(&mut self) -> Result<(), CallError> {
        self.confirm()?;
        self.move_on()
    }

    /// Completes the marker, and makes sure that it still is the one at its name. That
    /// its holder was held up does not matter: what it sends goes to its own file.
    pub(super) fn commit(mut self, marker: &Marker) -> Result<(), CallError> {
        let parts = marker.render_in_two(&self.claim.by).map_err(misfit)?;
        let [_, mut rest] = parts;
        let left = MARKER_VOLUME_SIZE - self.sent;
        if rest.len() > left {
            return Err(misfit("the marker does not fit into its volume".to_owned()));
        }
        rest.resize(left, b' ');
        self.send(&rest)?;
        self.pace.passed(Step::Completed);
        let Self { connection, pool, claim, stream, .. } = self;
        stream.finish()?;
        confirm((connection, pool), claim)?;
        Ok(())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_alive().unwrap_or(false)
    }

    /// Deletes the base, which nothing uses.
    ///
    /// # Errors
    /// `Busy` when the token may be somebody else's by now.
    pub(super) fn delete_base(&self) -> Result<(), CallError> {
        self.while_ours(|| volumes::delete(self.pool, &self.claim.base))
    }

    /// Gives it back: nothing is left of it.
    pub(super) fn release(self) -> Result<(), CallError> {
        let marker = marker_file_name(&self.claim.base);
        self.while_ours(|| volumes::delete(self.pool, &marker))?;
        // The file has gone, and what is sent to it goes nowhere.
        let _ = self.stream.abort();
        Ok(())
    }

    /// Does what goes by a name, and so must come before anybody can have taken over:
    /// nobody does for a long time after the marker was last moved, if it still is ours.
    fn while_ours(&self, work: impl FnOnce() -> Result<(), CallError>) -> Result<(), CallError> {
        self.confirm()?;
        let still = now().saturating_sub(self.moved);
        if still > self.pace.lease {
            return Err(held_up(&self.claim.base, still).into());
        }
        work()
    }
}

fn confirm(place: (&Connect, &StoragePool), claim: &Claim) -> Result<Vec<u8>, CallError> {
    let (_, bytes) = read_marker(place.0, place.1, &claim.base)?;
    match Pending::of(&bytes) {
        Some(by) if by.nonce == claim.by.nonce => Ok(bytes),
        _ => Err(taken_over(&claim.base).into()),
    }
}

fn taken_over(base: &str) -> Fault {
    busy(&format!("{base} was taken over by another writer"))
}

fn held_up(base: &str, still: Duration) -> Fault {
    let seconds = still.as_secs();
    busy(&format!(
        "the work on {base} was held up for {seconds} s, and another writer may have taken it over"
    ))
}

fn misfit(why: String) -> CallError {
    Fault::new(FaultKind::StateFailed, why).into()
}
