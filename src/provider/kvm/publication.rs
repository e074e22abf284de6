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
use crate::image::{ImageSource, Spooled, Volume, pending_writer};
use crate::model::{Fault, FaultKind};
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
    /// How often it was taken up.
    attempts: usize,
    /// Bytes of a base of its own that were sent; none before it has one.
    sent: Option<u64>,
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
            attempts: 0,
            sent: None,
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
        !self.completing && self.moved.is_some_and(in_time)
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
            None => {
                if let Some(judged) = &self.replaced {
                    marked::remove(place.0, place.1, &claim.base, judged)?;
                }
                Token::take(place, &claim, &pace, room)?
            }
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
        self.upload(place.0, token, &volume, offset)?;
        self.pace.passed(Step::Uploaded);
        let before = Facts::of(&volume)?.identity;
        let found = self.transfer.hash(place.0, &volume, &mut |_| token.beat())?;
        // What was written meanwhile shows in the time.
        let after = Facts::of(&volume)?.identity;
        if found == self.image.content() && before == after {
            return Ok((volume, after));
        }
        let path = volume.path()?;
        Err(self.wrong(&path, &found.to_string()).into())
    }

    /// The base at `path` has the sha256 `found`, which is not what it should be.
    fn wrong(&mut self, path: &str, found: &str) -> Fault {
        let begins = format!("{path} reads back with the sha256 {found}");
        let wanted = self.image.content();
        if self.used_by.is_empty() {
            // What was sent is of no use to anybody.
            self.sent = self.sent.or(Some(0));
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
                Some((volume, _)) if sent == size => Ok((volume, size)),
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
            Some(_) if self.used_by.is_empty() || self.was_never_complete() => {
                // Whoever began it may be writing to it still, so this one goes.
                token.delete_base()?;
                self.create(place.1, token)
            }
            // A base that something uses is never written to, whatever its marker says;
            // it can be just what it should be, and have lost its marker.
            Some((volume, _)) => Ok((volume, size)),
        }
    }

    /// Whether what is there was begun and not completed, and nothing says that it is used
    /// all the same. A guest that runs would.
    fn was_never_complete(&self) -> bool {
        let marker = self.replaced.as_deref();
        !self.used_by.is_named() && marker.is_some_and(|bytes| pending_writer(bytes).is_some())
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
        let volume = NewVolume {
            name: base,
            // As raw and of exactly its length: libvirt would write a header of its own.
            format: "raw",
            capacity: size,
            allocation: size,
            mode: Some("0444"),
            backing: None,
        };
        let Some(volume) = volume.create(pool)? else {
            return Err(busy(&format!("somebody else has just made {base}")).into());
        };
        // What is there now is nobody's but ours.
        (self.sent, self.used_by) = (Some(0), Users::default());
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
    fn withdraw(&mut self, place: Place<'_>, mut token: Token<'_>, error: CallError) -> CallError {
        if !place.0.is_alive().unwrap_or(false) {
            return error;
        }
        // Then what went wrong was said of another's base.
        if let Err(lost) = token.confirm() {
            return lost;
        }
        self.pace.passed(Step::Withdrawing);
        self.moved = None;
        let removed = match self.sent {
            Some(_) => self.remove_base(place, &mut token),
            None => Ok(()),
        };
        if removed.and_then(|()| token.release()).is_err() {
            let base = &self.claim.base;
            tracing::warn!("what was begun of {base} could not be taken back; it is swept later");
        }
        error
    }

    /// Removes what was sent, unless somebody has begun to use it regardless.
    fn remove_base(&self, place: Place<'_>, token: &mut Token<'_>) -> Result<(), CallError> {
        let path = host::pool_path(place.1)?.join(&self.claim.base);
        let users = users::of_base(place.0, place.1, &path, &mut || token.beat())?;
        if users.is_named() {
            return Ok(());
        }
        token.delete_base()
    }
}
