//! Publishing one base through the storage API: from the marker's creation to its
//! completion, over as many connections as that takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use virt::connect::Connect;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;

use super::connection::CallError;
use super::pace::{Pace, Step, busy, now};
use super::token::{Claim, Token};
use super::transfer::Transfer;
use super::users::{self, Users};
use super::volumes::{self, Facts, NewVolume};
use super::{host, marked};
use crate::image::{ImageSource, Spooled, Volume, is_half_made};
use crate::model::{Fault, FaultKind, Sha256Digest};
use crate::store::BaseRef;

/// What may be on its way and not arrive when a connection breaks: sent once more when
/// the upload goes on.
const ON_ITS_WAY: u64 = 64 << 20;

/// What is published.
pub(super) struct Subject {
    pub(super) source: ImageSource,
    pub(super) image: Arc<Spooled>,
    pub(super) claim: Claim,
    /// The marker that stands there and was judged: it goes, if it still is the same.
    pub(super) replaced: Option<Vec<u8>>,
}

/// One publication.
pub(super) struct Publication {
    source: ImageSource,
    image: Arc<Spooled>,
    claim: Claim,
    replaced: Option<Vec<u8>>,
    pace: Arc<Pace>,
    transfer: Transfer,
    /// Bytes of a base of its own that were sent; none before it has one.
    sent: Option<u64>,
    /// Whether libvirt has taken all of them.
    arrived: bool,
    /// Whether what was found there is known to be unfinished, whatever backs onto it.
    unfinished: bool,
    /// Whether the base was to be deleted, and nobody has said that it was.
    deleting: bool,
    /// When its marker was last moved; before there is one, never.
    moved: Option<Duration>,
    /// Whether its marker may be complete: then nothing is taken back or gone on with.
    completing: bool,
    /// Who uses the base that was found without a marker, or is missed.
    used_by: Users,
    /// Whether what was sent is not what was once downloaded.
    copy_damaged: bool,
}

/// A connection, and the pool on it.
type Place<'a> = (&'a Connect, &'a StoragePool);

impl Publication {
    pub(super) fn new(subject: Subject, pace: &Arc<Pace>, transfer: Transfer) -> Self {
        let Subject { source, image, claim, replaced } = subject;
        Self {
            source,
            image,
            claim,
            replaced,
            pace: pace.clone(),
            transfer,
            sent: None,
            arrived: false,
            unfinished: false,
            deleting: false,
            moved: None,
            completing: false,
            used_by: Users::default(),
            copy_damaged: false,
        }
    }

    /// Whether the copy in the spool has turned out to be damaged.
    pub(super) fn is_copy_damaged(&self) -> bool {
        self.copy_damaged
    }

    /// Whether another connection can go on with it.
    pub(super) fn can_go_on(&self) -> bool {
        let in_time = |moved| now().saturating_sub(moved) < self.pace.lease;
        !self.completing && !self.deleting && self.moved.is_some_and(in_time)
    }

    /// Whether something may still be done to the base, though no answer to that can come.
    pub(super) fn is_unsure(&self) -> bool {
        self.deleting
    }

    /// Publishes, or goes on with it.
    ///
    /// # Errors
    /// `Busy` when somebody else is at it or has taken over; `NoSpace`; `BaseChanged`
    /// when other bytes are there and in use. What it can, it takes back.
    pub(super) fn run(&mut self, place: Place<'_>) -> Result<BaseRef, CallError> {
        let (claim, pace) = (self.claim.clone(), self.pace.clone());
        let room = claim.room(&self.image.marker(&self.source))?;
        let mut token = match self.moved {
            None => {
                if let Some(judged) = &self.replaced {
                    marked::remove(place.0, place.1, &claim.base, judged)?;
                }
                Token::take(place, &claim, &pace, room)?
            }
            Some(_) => Token::retake(place, &claim, &pace, room, self.sent.is_some())?,
        };
        self.moved = Some(token.moved());
        let proven = self.prove(place, &mut token);
        self.moved = Some(token.moved());
        match proven.and_then(|(volume, identity)| {
            pace.passed(Step::Proven);
            Ok((volume.path()?, identity))
        }) {
            Ok((path, identity)) => self.commit(token, path, identity),
            Err(error) => Err(self.withdraw(token, error)),
        }
    }

    /// The base is what it should be: says so. Once that is on its way, it may arrive
    /// whatever becomes of the connection, and overlays be made.
    fn commit(
        &mut self,
        token: Token<'_>,
        path: String,
        identity: Volume,
    ) -> Result<BaseRef, CallError> {
        let mut marker = self.image.marker(&self.source);
        marker.vouch_for(identity);
        self.completing = true;
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
        let (identity, mut found) = self.send(place.0, token, &volume, offset)?;
        if found == self.image.content() {
            return Ok((volume, identity));
        }
        let mut volume = volume;
        if std::mem::take(&mut self.unfinished) {
            // What backs onto it misses another.
            self.delete_base(token)?;
            volume = self.create(place.1, token)?.0;
            let identity;
            (identity, found) = self.send(place.0, token, &volume, 0)?;
            if found == self.image.content() {
                return Ok((volume, identity));
            }
        }
        Err(self.wrong(&volume.path()?, found).into())
    }

    /// Sends what is missing, and reads all of it back.
    fn send(
        &mut self,
        connection: &Connect,
        token: &mut Token<'_>,
        volume: &StorageVol,
        offset: u64,
    ) -> Result<(Volume, Sha256Digest), CallError> {
        self.upload(connection, token, volume, offset)?;
        self.pace.passed(Step::Uploaded);
        let before = Facts::of(volume)?.identity;
        let found = self.transfer.hash(connection, volume, &mut |_| token.beat())?;
        let after = Facts::of(volume)?.identity;
        if before == after {
            return Ok((after, found));
        }
        let text = format!("{} was written to while it was read back", volume.path()?);
        Err(Fault::new(FaultKind::PoolUnavailable, text).into())
    }

    /// The base at `path` has the sha256 `found`, which is not what it should be.
    fn wrong(&self, path: &str, found: Sha256Digest) -> Fault {
        let begins = format!("{path} reads back with the sha256 {found}");
        let wanted = self.image.content();
        if self.used_by.is_empty() {
            let way = "check the disk of its pool, and who else writes there";
            let text = format!("{begins} instead of {wanted}: {way}");
            return Fault::new(FaultKind::PoolUnavailable, text);
        }
        let text = format!(
            "{begins} instead of {wanted} and is used by {}, so that it is left alone: restore \
             the file, or delete what uses it",
            self.used_by
        );
        Fault::new(self.used_by.fault_kind(), text)
    }

    /// The base's volume, and from where on it has to be sent.
    fn begin(
        &mut self,
        place: Place<'_>,
        token: &mut Token<'_>,
    ) -> Result<(StorageVol, u64), CallError> {
        let (size, base) = (self.image.size(), &self.claim.base);
        if let Some(sent) = self.sent {
            return match volumes::file(place.1, base)? {
                None => self.create(place.1, token),
                Some((volume, _)) if self.arrived => Ok((volume, size)),
                Some((volume, _)) => Ok((volume, sent.saturating_sub(ON_ITS_WAY))),
            };
        }
        let path = host::pool_path(place.1)?.join(base);
        self.used_by = users::of_base(place.0, place.1, &path, &mut || token.beat())?;
        match volumes::file(place.1, base)? {
            None => {
                self.check_missed(&path.display().to_string())?;
                self.create(place.1, token)
            }
            Some(_) if self.used_by.is_empty() => {
                // Whoever began it may be writing to it still, so this one goes.
                self.delete_base(token)?;
                self.create(place.1, token)
            }
            // A base that something uses is never written to, whatever its marker says;
            // it can be just what it should be, and have lost its marker.
            Some((volume, _)) => {
                self.unfinished = self.replaced.as_deref().is_some_and(is_half_made);
                Ok((volume, size))
            }
        }
    }

    /// A base that has gone from under what backs onto it comes back only as what it was.
    fn check_missed(&self, path: &str) -> Result<(), CallError> {
        if !self.used_by.is_named() || self.source.pin.digest().is_some() {
            return Ok(());
        }
        let text = format!(
            "{path} is missing and is used by {}, and nothing tells what it was: restore the \
             file, pin the image by its sha256, or delete what uses it",
            self.used_by
        );
        Err(Fault::new(FaultKind::BaseChanged, text).into())
    }

    fn create(
        &mut self,
        pool: &StoragePool,
        token: &mut Token<'_>,
    ) -> Result<(StorageVol, u64), CallError> {
        let (size, base) = (self.image.size(), &self.claim.base);
        token.making()?;
        let Some(volume) = NewVolume::published(base, size).create(pool)? else {
            return Err(busy(&format!("somebody else has just made {base}")).into());
        };
        // What is there now is nobody's but ours.
        (self.sent, self.arrived, self.used_by) = (Some(0), false, Users::default());
        self.pace.passed(Step::Allocated);
        // A disk may take its time to set so much aside.
        token.renew()?;
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
                return token.confirm().map(drop);
            }
            *sent = Some(done);
            pace.passed(Step::Sent(done));
            token.beat()?;
            *moved = Some(token.moved());
            Ok(())
        })?;
        self.arrived = true;
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
    fn withdraw(&mut self, token: Token<'_>, error: CallError) -> CallError {
        if !token.is_connected() {
            return error;
        }
        // Then what went wrong was said of another's base.
        if let Err(lost) = token.confirm() {
            return lost;
        }
        self.pace.passed(Step::Withdrawing);
        self.moved = None;
        if self.take_back(token).is_err() {
            let base = &self.claim.base;
            tracing::warn!("what was begun of {base} could not be taken back; it is swept later");
        }
        error
    }

    fn take_back(&mut self, mut token: Token<'_>) -> Result<(), CallError> {
        if self.sent.is_some() {
            self.delete_base(&mut token)?;
        }
        // Nothing but its marker tells what it was that is missed.
        if self.claim.by.held.is_some() {
            return Ok(());
        }
        token.release()
    }

    fn delete_base(&mut self, token: &mut Token<'_>) -> Result<(), CallError> {
        self.deleting = true;
        let deleted = token.delete_base();
        // What libvirt has answered is over, one way or the other.
        self.deleting = deleted.is_err() && !token.is_connected();
        deleted
    }
}
