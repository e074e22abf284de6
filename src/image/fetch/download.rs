//! Receiving an image: attempts that go on where the last one broke off when that is
//! safe, and begin anew when it isn't.

use std::sync::Arc;
use std::time::Instant;

use reqwest::Client;
use tokio::io::AsyncReadExt as _;

use super::decode::Compression;
use super::http::{self, Answer, Broken, Resume, failed};
use super::local;
use super::output::Written;
use super::retry::Retry;
use super::sink::Sink;
use crate::image::ImageSource;
use crate::image::hash::CHUNK;
use crate::image::limits::Limits;
use crate::image::marker::Validators;
use crate::image::pool::{DirectoryPool, canceled};
use crate::image::progress::{Progress, Stage};
use crate::model::{Fault, FaultKind};

/// A download that gains so much between two failures is getting somewhere.
const GAIN: u64 = 1 << 20;

/// What was received, and what its server said of it.
pub(in crate::image) type Arrived = (Written, Validators);

pub(super) struct Download<'a> {
    pub(super) pool: &'a Arc<DirectoryPool>,
    pub(super) source: &'a ImageSource,
    pub(super) limits: &'a Limits,
    pub(super) progress: &'a Progress,
}

/// A download under way.
struct Flow {
    sink: Sink,
    /// Bytes that arrived.
    offset: u64,
    /// Of the whole, when that is known.
    total: Option<u64>,
    validators: Validators,
    /// Whether it was put together from several answers.
    resumed: bool,
}

impl Download<'_> {
    /// # Errors
    /// `FetchFailed` for the transport, `NoSpace`, `ImageRejected`.
    pub(super) async fn receive(&self) -> Result<Arrived, Fault> {
        if local::is_local(&self.source.url) {
            return self.copy().await;
        }
        let client = http::client(&self.source.url, self.limits)?;
        let mut flow = None;
        let (mut retry, mut offset) = (Retry::new(self.limits), 0);
        loop {
            let broken = match self.attempt(&client, &mut flow).await {
                Ok(arrived) => return Ok(arrived),
                Err(broken) => broken,
            };
            let reached = flow.as_ref().map_or(0, |flow: &Flow| flow.offset);
            if reached >= offset + GAIN {
                retry.gained();
            }
            offset = offset.max(reached);
            retry.wait(broken, self.progress).await?;
        }
    }

    /// One request and what comes of it; `flow` keeps what can be gone on with.
    async fn attempt(&self, client: &Client, flow: &mut Option<Flow>) -> Result<Arrived, Broken> {
        let resume = flow.as_ref().and_then(|flow| self.resume(flow));
        self.progress.enter(Stage::Requesting, 0);
        let answer = match http::get(client, &self.source.url, resume.as_ref()).await {
            Err(Broken::Anew(fault)) => {
                discard(flow).await;
                return Err(Broken::Again(fault, None));
            }
            answer => answer?,
        };
        if !answer.resumes {
            discard(flow).await;
        }
        let current = match flow {
            Some(flow) => {
                flow.resumed = true;
                flow
            }
            None => flow.insert(self.begin(&answer)?),
        };
        self.progress.enter(Stage::Downloading, current.total.unwrap_or(0));
        self.progress.advance(usize::try_from(current.offset).unwrap_or(usize::MAX));
        let pumped = self.pump(answer.response, current).await;
        let resumable = self.resume(current).is_some();
        match (pumped, flow.take()) {
            (Ok(()), Some(whole)) => self.complete(whole).await,
            (Err(Stopped::Transport(broken)), Some(part)) if resumable => {
                *flow = Some(part);
                Err(broken)
            }
            (Err(Stopped::Transport(broken)), mut part) => {
                discard(&mut part).await;
                Err(broken)
            }
            (_, part) => {
                let fault = match part {
                    Some(part) => part.sink.ended().await,
                    None => canceled(),
                };
                Err(Broken::Final(fault))
            }
        }
    }

    /// Where to go on, when it is safe: only a strong validator tells that the rest
    /// belongs to what is there, and only a digest that it does in fact.
    fn resume(&self, flow: &Flow) -> Option<Resume> {
        let etag = flow.validators.etag.as_ref().filter(|etag| etag.starts_with('"'))?;
        let safe = self.source.pin.digest().is_some() && flow.offset > 0;
        safe.then(|| Resume { offset: flow.offset, total: flow.total, etag: etag.clone() })
    }

    /// Begins anew with an answer that has the whole.
    fn begin(&self, answer: &Answer) -> Result<Flow, Broken> {
        if !answer.framed && self.source.pin.digest().is_none() {
            let words = "the server doesn't tell where it ends, so nobody can tell whether it is \
                         whole: give its sha256";
            return Err(Broken::Final(failed(&self.source.url, words)));
        }
        self.check_room(answer.total)?;
        Ok(Flow {
            sink: self.sink()?,
            offset: 0,
            total: answer.total,
            validators: answer.validators.clone(),
            resumed: false,
        })
    }

    fn sink(&self) -> Result<Sink, Fault> {
        let compression = Compression::of(&self.source.url);
        Sink::new(self.pool, &self.source.base_name(), compression, self.limits)
    }

    fn check_room(&self, length: Option<u64>) -> Result<(), Fault> {
        let Some(length) = length else { return Ok(()) };
        let (url, most) = (&self.source.url, self.limits.image_bytes);
        if length > most {
            let text = format!("{url} has {length} bytes, and {most} are the most");
            return Err(Fault::new(FaultKind::ImageRejected, text));
        }
        let available = self.pool.available()?;
        if length <= available {
            return Ok(());
        }
        let text = format!(
            "{url} needs {length} bytes, and {} has {available} left: free some, or give it more \
             room",
            self.pool.path().display()
        );
        Err(Fault::new(FaultKind::NoSpace, text))
    }

    async fn pump(&self, mut response: reqwest::Response, flow: &mut Flow) -> Result<(), Stopped> {
        let url = &self.source.url;
        let mut pace = Pace::new(flow.offset);
        loop {
            let piece = response.chunk().await;
            let piece = piece.map_err(|error| Stopped::Transport(http::broken(url, error)))?;
            let Some(piece) = piece else { break };
            flow.offset += piece.len() as u64;
            self.progress.advance(piece.len());
            if !flow.sink.send(piece).await {
                return Err(Stopped::Writer);
            }
            if !pace.holds(flow.offset, self.limits) {
                let words = "the server sends next to nothing";
                return Err(Stopped::Transport(Broken::Again(failed(url, words), None)));
            }
        }
        match flow.total.filter(|total| *total != flow.offset) {
            None => Ok(()),
            Some(total) => {
                let words = format!("{} of {total} bytes arrived", flow.offset);
                Err(Stopped::Transport(Broken::Again(failed(url, &words), None)))
            }
        }
    }

    async fn complete(&self, flow: Flow) -> Result<Arrived, Broken> {
        let written = flow.sink.finish().await?;
        let wanted = self.source.pin.digest();
        if flow.resumed && wanted.is_some_and(|wanted| wanted != written.digests.downloaded) {
            // Put together from parts, it says nothing about the file on the server.
            let words = "its parts don't fit together";
            return Err(Broken::Again(failed(&self.source.url, words), None));
        }
        Ok((written, flow.validators))
    }

    /// The same for a file of this host.
    async fn copy(&self) -> Result<Arrived, Fault> {
        let url = &self.source.url;
        let unreadable = |error: &dyn std::fmt::Display| {
            Fault::new(FaultKind::FetchFailed, format!("{url} can't be read: {error}"))
        };
        let (file, length) = local::open(url).await.map_err(|error| unreadable(&error))?;
        self.check_room(Some(length))?;
        self.progress.enter(Stage::Downloading, length);
        let mut sink = self.sink()?;
        match self.read(file, &mut sink).await {
            Ok(read) if read == length => {}
            Ok(_) => return Err(unreadable(&"it changed while it was read")),
            Err(Some(error)) => return Err(unreadable(&error)),
            Err(None) => return Err(sink.ended().await),
        }
        Ok((sink.finish().await?, Validators::default()))
    }

    /// Sends `file` to its end, and tells its length; no error is the writer's.
    async fn read(
        &self,
        mut file: tokio::fs::File,
        sink: &mut Sink,
    ) -> Result<u64, Option<std::io::Error>> {
        let mut length = 0;
        loop {
            let mut piece = vec![0; CHUNK];
            let read = file.read(&mut piece).await.map_err(Some)?;
            if read == 0 {
                return Ok(length);
            }
            piece.truncate(read);
            length += read as u64;
            self.progress.advance(read);
            if !sink.send(piece.into()).await {
                return Err(None);
            }
        }
    }
}

/// Gives up what was received.
async fn discard(flow: &mut Option<Flow>) {
    if let Some(stale) = flow.take() {
        stale.sink.discard().await;
    }
}

enum Stopped {
    Writer,
    Transport(Broken),
}

/// How fast a server is, over the length of a stall.
struct Pace {
    since: Instant,
    offset: u64,
}

impl Pace {
    fn new(offset: u64) -> Self {
        Self { since: Instant::now(), offset }
    }

    /// False when a server that isn't silent might as well be.
    fn holds(&mut self, offset: u64, limits: &Limits) -> bool {
        if self.since.elapsed() < limits.stall {
            return true;
        }
        let enough = offset - self.offset >= limits.least;
        *self = Self::new(offset);
        enough
    }
}
