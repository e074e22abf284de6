//! Publishing one base through the storage API: from the marker's creation to its
//! completion, over as many connections as that takes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use virt::connect::Connect;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;

use super::connection::CallError;
use super::pace::{Pace, Step, now};
use super::token::{Claim, Token};
use super::transfer::Transfer;
use super::users;
use super::volumes::{self, Facts, NewVolume};
use crate::image::{ImageSource, Spooled, Volume};
use crate::model::{Fault, FaultKind};
use crate::store::BaseRef;

/// What may be on its way and not arrive when a connection breaks: sent once more when
/// the upload goes on.
const ON_ITS_WAY: u64 = 64 << 20;

/// One publication.
pub(super) struct Publication {
    source: ImageSource,
    image: Arc<Spooled>,
    claim: Claim,
    pace: Arc<Pace>,
    transfer: Transfer,
    /// How often it was taken up.
    attempts: usize,
    /// Bytes of a base of its own that were sent; none before it has one.
    sent: Option<u64>,
    /// When its marker was last moved; before there is one, never.
    moved: Option<Duration>,
    /// Who uses the base that was found without a marker.
    used_by: Vec<String>,
    /// Whether what was sent is not what was once downloaded.
    copy_damaged: bool,
}

/// A connection, and the pool on it.
type Place<'a> = (&'a Connect, &'a StoragePool);

impl Publication {
    pub(super) fn new(
        source: &ImageSource,
        image: Arc<Spooled>,
        claim: Claim,
        pace: &Arc<Pace>,
        transfer: Transfer,
    ) -> Self {
        let (source, pace) = (source.clone(), pace.clone());
        Self {
            source,
            image,
            claim,
            pace,
            transfer,
            attempts: 0,
            sent: None,
            moved: None,
            used_by: Vec::new(),
            copy_damaged: false,
        }
    }

    /// Whether the copy in the spool has turned out to be damaged.
    pub(super) fn is_copy_damaged(&self) -> bool {
        self.copy_damaged
    }

    /// Whether another connection can go on with it.
    pub(super) fn can_go_on(&self) -> bool {
        self.moved.is_some_and(|moved| now().saturating_sub(moved) < self.pace.lease)
    }

    /// Publishes, or goes on with it.
    ///
    /// # Errors
    /// `Busy` when somebody else is at it or has taken over; `NoSpace`; `BaseChanged`
    /// when other bytes are there and in use. What it can, it takes back.
    pub(super) fn run(&mut self, place: Place<'_>) -> Result<BaseRef, CallError> {
        let (claim, pace) = (self.claim.clone(), self.pace.clone());
        let (room, attempts) = (self.room()?, self.attempts);
        self.attempts += 1;
        let mut token = match self.moved {
            None => Token::take(place, &claim, &pace, room)?,
            Some(_) => Token::retake(place, &claim, &pace, room, attempts)?,
        };
        self.moved = Some(token.moved());
        let proven = self.prove(place, &mut token);
        self.moved = Some(token.moved());
        match proven.and_then(|(volume, identity)| {
            pace.passed(Step::Proven);
            Ok((volume.path()?, identity))
        }) {
            Ok((path, identity)) => self.commit(token, path, identity),
            Err(error) => Err(self.withdraw(place, token, error)),
        }
    }

    fn room(&self) -> Result<usize, CallError> {
        let marker = self.image.marker(&self.source);
        let parts = marker.render_in_two(&self.claim.nonce, &self.claim.writer);
        let [_, rest] = parts.map_err(|why| Fault::new(FaultKind::StateFailed, why))?;
        Ok(rest.len())
    }

    fn commit(
        &self,
        token: Token<'_>,
        path: String,
        identity: Volume,
    ) -> Result<BaseRef, CallError> {
        let mut marker = self.image.marker(&self.source);
        marker.vouch_for(identity);
        token.commit(&marker)?;
        Ok(BaseRef {
            file: self.claim.base.clone(),
            path: path.into(),
            digest: marker.sha256,
            format: marker.format,
            virtual_size: marker.virtual_size,
        })
    }

    /// Has the base in its place, and has read it back.
    fn prove(
        &mut self,
        place: Place<'_>,
        token: &mut Token<'_>,
    ) -> Result<(StorageVol, Volume), CallError> {
        let (volume, offset) = self.begin(place, token)?;
        self.upload(place.0, token, &volume, offset)?;
        self.pace.passed(Step::Uploaded);
        let before = Facts::of(&volume)?.identity;
        let found = self.transfer.hash(place.0, &volume, &mut |_| token.beat())?;
        // What was written meanwhile shows in the time.
        let after = Facts::of(&volume)?.identity;
        if found == self.image.content() && before == after {
            return Ok((volume, after));
        }
        let (path, wanted) = (volume.path()?, self.image.content());
        let (kind, way) = if self.used_by.is_empty() {
            // What was sent is of no use to anybody.
            self.sent = self.sent.or(Some(0));
            (FaultKind::PoolUnavailable, "check the disk of its pool, and who else writes there")
        } else {
            (FaultKind::BaseChanged, "restore the file, or delete what uses it")
        };
        let used_by = if self.used_by.is_empty() {
            String::new()
        } else {
            format!(" and is used by {}, so that it is left alone", self.used_by.join(", "))
        };
        let text = format!(
            "{path} reads back with the sha256 {found} instead of {wanted}{used_by}: {way}"
        );
        Err(Fault::new(kind, text).into())
    }

    /// The base's volume, and from where on it has to be sent.
    fn begin(
        &mut self,
        place: Place<'_>,
        token: &mut Token<'_>,
    ) -> Result<(StorageVol, u64), CallError> {
        let size = self.image.size();
        match (volumes::file(place.1, &self.claim.base)?, self.sent) {
            (None, _) => self.create(place.1),
            (Some((volume, _)), Some(sent)) if sent == size => Ok((volume, size)),
            (Some((volume, _)), Some(sent)) => Ok((volume, sent.saturating_sub(ON_ITS_WAY))),
            (Some((volume, _)), None) => {
                // A base that something uses is never written to, whatever its marker
                // says; it can be just what it should be, and have lost its marker.
                self.used_by = users::of_base(place.0, place.1, Path::new(&volume.path()?))?;
                if !self.used_by.is_empty() {
                    return Ok((volume, size));
                }
                // Whoever began it may be writing to it still, so this one goes.
                token.delete_base()?;
                self.create(place.1)
            }
        }
    }

    fn create(&mut self, pool: &StoragePool) -> Result<(StorageVol, u64), CallError> {
        let size = self.image.size();
        let volume = NewVolume {
            name: &self.claim.base,
            // As raw and of exactly its length: libvirt would write a header of its own.
            format: "raw",
            capacity: size,
            allocation: size,
            mode: Some("0444"),
            backing: None,
        };
        let volume = volume.create(pool)?.ok_or_else(|| super::appeared(&self.claim.base))?;
        self.sent = Some(0);
        self.pace.passed(Step::Allocated);
        Ok((volume, 0))
    }

    fn upload(
        &mut self,
        connection: &Connect,
        token: &mut Token<'_>,
        volume: &StorageVol,
        offset: u64,
    ) -> Result<(), CallError> {
        if offset == self.image.size() {
            return Ok(());
        }
        let (pace, began) = (self.pace.clone(), Instant::now());
        let Self { sent, moved, image, transfer, .. } = self;
        let digest = transfer.upload(connection, volume, image, offset, &mut |done| {
            if done == offset {
                // The file that it goes to is ours, if the marker still is.
                return token.confirm();
            }
            *sent = Some(done);
            pace.passed(Step::Sent(done));
            token.beat()?;
            *moved = Some(token.moved());
            Ok(())
        })?;
        let (base, bytes, time) = (&self.claim.base, self.image.size() - offset, began.elapsed());
        tracing::info!("{base}: {bytes} bytes were uploaded in {:.3} s", time.as_secs_f64());
        if offset > 0 || digest == self.image.content() {
            return Ok(());
        }
        self.copy_damaged = true;
        let text =
            format!("the copy of {} in the spool is damaged: it is fetched anew", self.source.url);
        Err(Fault::new(FaultKind::StateFailed, text).into())
    }

    /// Takes back what was begun, unless it is somebody else's by now or the connection
    /// has gone: then it can go on, or is swept later.
    fn withdraw(
        &mut self,
        (connection, _): Place<'_>,
        token: Token<'_>,
        error: CallError,
    ) -> CallError {
        if !connection.is_alive().unwrap_or(false) {
            return error;
        }
        // Then what went wrong was said of another's base.
        if let Err(lost) = token.confirm() {
            return lost;
        }
        self.pace.passed(Step::Withdrawing);
        self.moved = None;
        let removed = match self.sent {
            Some(_) => token.delete_base(),
            None => Ok(()),
        };
        if removed.and_then(|()| token.release()).is_err() {
            let base = &self.claim.base;
            tracing::warn!("what was begun of {base} could not be taken back; it is swept later");
        }
        error
    }
}
