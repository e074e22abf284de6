//! Processes of their own that use the cache as any other would: this very test
//! program, started again. They can be made to die, to stop, or to ask, at every step.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::NoDomains;
use crate::image::inspect::tests::overlay;
use crate::image::limits::Limits;
use crate::image::steps::Step;
use crate::image::{Cache, DirectoryPool, ImageSource, Progress, check_unchanged};
use crate::model::{
    EntryName, Fault, ImageFormat, ImageKey, Pin, ResourceUrl, Sha256Digest, UrlOrigin,
};

/// Nothing here takes longer; whoever waits so long shows the evidence.
const DEADLINE: Duration = Duration::from_secs(60);
const VARIABLE: &str = "PROXYD_TEST_AGENT";

/// What a process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Work {
    Ensure(Image),
    Evict {
        entry: String,
        key: String,
    },
    Verify {
        entry: String,
        key: String,
    },
    Prune {
        entry: String,
        offered: Vec<Image>,
        dry_run: bool,
    },
    /// Makes an overlay as the provider does, over the base with that digest.
    Overlay {
        name: String,
        base: String,
        digest: Sha256Digest,
    },
    /// One after the other.
    All(Vec<Work>),
    /// Over and over, until it is killed.
    Forever(Vec<Work>),
    /// What is told on its standard input, line by line.
    Told,
}

/// An image, for the way into another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Image {
    pub entry: String,
    pub key: String,
    pub url: String,
    pub sha256: Option<Sha256Digest>,
    pub sha256_url: Option<String>,
    pub raw: bool,
}

impl Image {
    /// The image `c` of the entry `a-b` at `url`.
    pub fn at(url: &str) -> Self {
        Self {
            entry: "a-b".into(),
            key: "c".into(),
            url: url.into(),
            sha256: None,
            sha256_url: None,
            raw: false,
        }
    }

    pub fn pinned(mut self, body: &[u8]) -> Self {
        self.sha256 = Some(Sha256Digest::of(body));
        self
    }

    pub fn of(mut self, entry: &str, key: &str) -> Self {
        (self.entry, self.key) = (entry.into(), key.into());
        self
    }

    pub fn listed(mut self, url: &str) -> Self {
        self.sha256_url = Some(url.into());
        self
    }

    pub fn raw(mut self) -> Self {
        self.raw = true;
        self
    }

    pub fn ensure(self) -> Work {
        Work::Ensure(self)
    }

    pub fn source(&self) -> ImageSource {
        let url = |text: &str| ResourceUrl::parse(text, UrlOrigin::Configuration).unwrap();
        ImageSource {
            entry: EntryName::new(&self.entry).unwrap(),
            key: ImageKey::new(&self.key).unwrap(),
            url: url(&self.url),
            pin: match &self.sha256_url {
                Some(list) => Pin::Listed(url(list)),
                None => self.sha256.into(),
            },
            format: if self.raw { ImageFormat::Raw } else { ImageFormat::Qcow2 },
        }
    }
}

/// What is to happen when a step is passed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Action {
    Kill,
    Stop,
    /// The file system is filled up by this file.
    Fill(PathBuf),
}

/// All that a process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pool: PathBuf,
    work: Work,
    at: Option<(Step, Action)>,
    /// At every step it asks on standard output and waits for a line.
    asks: bool,
    lock: Duration,
    image_bytes: Option<u64>,
}

impl Orders {
    pub fn new(pool: &Path, work: Work) -> Self {
        let lock = Duration::from_secs(30);
        Self { pool: pool.into(), work, at: None, asks: false, lock, image_bytes: None }
    }

    pub fn at(mut self, step: Step, action: Action) -> Self {
        self.at = Some((step, action));
        self
    }

    pub fn asking(mut self) -> Self {
        self.asks = true;
        self
    }

    /// How long it waits for a lock.
    pub fn patience(mut self, lock: Duration) -> Self {
        self.lock = lock;
        self
    }

    pub fn at_most(mut self, bytes: u64) -> Self {
        self.image_bytes = Some(bytes);
        self
    }

    pub fn spawn(&self) -> Process {
        Process::spawn(self, &[])
    }

    /// Runs it to its end.
    pub fn run(&self) -> Finished {
        self.spawn().finish()
    }
}

/// What came of a piece of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Done(String),
    Failed { kind: String, permanent: bool, message: String },
}

/// A process that ended.
#[derive(Debug)]
pub struct Finished {
    pub outcome: Option<Outcome>,
    pub signal: Option<i32>,
    /// What it logged.
    pub log: String,
}

impl Finished {
    pub fn done(&self) -> &str {
        match &self.outcome {
            Some(Outcome::Done(text)) => text,
            other => panic!("{other:?}, signal {:?}\n{}", self.signal, self.log),
        }
    }

    /// Kind and message of the fault.
    pub fn fault(&self) -> (&str, &str) {
        match &self.outcome {
            Some(Outcome::Failed { kind, message, .. }) => (kind, message),
            other => panic!("{other:?}, signal {:?}\n{}", self.signal, self.log),
        }
    }

    pub fn is_permanent(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Failed { permanent: true, .. }))
    }

    pub fn was_killed(&self) -> bool {
        self.signal == Some(Signal::SIGKILL as i32)
    }
}

/// What a process says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// It has passed a step, and waits for leave to go on.
    At(Step),
    /// It has nothing to do.
    Idle,
    Outcome(Outcome),
}

/// A process at work. Dropping it ends it.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<Said>,
    log: Option<std::thread::JoinHandle<String>>,
}

impl Process {
    pub fn spawn(orders: &Orders, environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "image::tests::agent::agent", "--ignored", "--nocapture"])
            .env(VARIABLE, serde_json::to_string(orders).unwrap())
            .env_remove("http_proxy")
            .env_remove("HTTP_PROXY")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, said) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let said = line.strip_prefix('@').map(|json| serde_json::from_str(json).unwrap());
                if said.is_some_and(|said| sender.send(said).is_err()) {
                    break;
                }
            }
        });
        let mut errors = child.stderr.take().unwrap();
        let log = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let input = child.stdin.take();
        Self { child, input, said, log: Some(log) }
    }

    pub fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal);
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next that it says; nothing when it has ended.
    pub fn next(&mut self) -> Option<Said> {
        match self.said.recv_timeout(DEADLINE) {
            Ok(said) => Some(said),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                self.signal(Signal::SIGKILL);
                let log = self.log.take().map(|log| log.join().unwrap()).unwrap_or_default();
                panic!("a process said nothing for {DEADLINE:?}\n{log}");
            }
        }
    }

    pub fn tell(&mut self, line: &str) {
        // It may have been killed.
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    /// Waits until it stands still, by its own signal.
    pub fn await_stop(&self) {
        let path = format!("/proc/{}/stat", self.child.id());
        let stopped = || {
            let stat = std::fs::read_to_string(&path).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        until("the process to stop", stopped);
    }

    pub fn finish(mut self) -> Finished {
        // Nobody tells it anything any more.
        self.input = None;
        let mut outcome = None;
        while let Some(said) = self.next() {
            if let Said::Outcome(of) = said {
                outcome = Some(of);
            }
        }
        let status = self.child.wait().unwrap();
        let log = self.log.take().map(|log| log.join().unwrap()).unwrap_or_default();
        Finished { outcome, signal: status.signal(), log }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a condition.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "waited {DEADLINE:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Bounds that don't make tests wait.
pub fn tight() -> Limits {
    Limits {
        connect: Duration::from_secs(5),
        stall: Duration::from_millis(400),
        least: 16,
        attempts: 3,
        first_delay: Duration::from_millis(10),
        last_delay: Duration::from_millis(50),
        image_bytes: 64 << 20,
        unpacked_bytes: 4 << 20,
        unpacked_ratio: 100,
        lock: Duration::from_secs(30),
        lock_poll: Duration::from_millis(4),
        lock_note: Duration::from_millis(100),
    }
}

static CONTROL: OnceLock<(Orders, Mutex<()>, AtomicUsize)> = OnceLock::new();

/// Passes a step: in a process that was told so, something happens here.
pub fn passed(step: Step) {
    let Some((orders, turn, fired)) = CONTROL.get() else { return };
    match &orders.at {
        Some((at, action)) if *at == step && fired.fetch_add(1, Ordering::SeqCst) == 0 => {
            act(action);
        }
        _ => {}
    }
    if orders.asks {
        let _turn = turn.lock().unwrap();
        say(&Said::At(step));
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line).unwrap() == 0 {
            std::process::exit(0);
        }
    }
}

fn act(action: &Action) {
    match action {
        Action::Kill => kill(Pid::this(), Signal::SIGKILL).unwrap(),
        // To this very thread: one sent to the process may reach another one first,
        // and this would go on for a while.
        Action::Stop => raise(Signal::SIGSTOP).unwrap(),
        Action::Fill(path) => fill(path),
    }
}

/// Fills up the file system that `path` is on, to the last block.
pub fn fill(path: &Path) {
    let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![7; size]).is_ok() && file.sync_data().is_ok() {}
    }
}

fn say(said: &Said) {
    let mut out = std::io::stdout().lock();
    // The test harness may stand in mid-line.
    let _ = write!(out, "\n@{}\n", serde_json::to_string(said).unwrap());
    let _ = out.flush();
}

#[test]
#[ignore = "the other tests start this as a process of its own"]
fn agent() {
    let Ok(text) = std::env::var(VARIABLE) else { return };
    let orders: Orders = serde_json::from_str(&text).unwrap();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let _ = CONTROL.set((orders.clone(), Mutex::new(()), AtomicUsize::new(0)));
    let mut limits = Limits { lock: orders.lock, ..tight() };
    limits.image_bytes = orders.image_bytes.unwrap_or(limits.image_bytes);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(perform_all(&orders, &limits));
}

async fn perform_all(orders: &Orders, limits: &Limits) {
    match &orders.work {
        Work::All(works) => {
            for work in works {
                report(perform(orders, limits, work).await);
            }
        }
        Work::Forever(works) => loop {
            for work in works {
                let _ = perform(orders, limits, work).await;
            }
        },
        Work::Told => loop {
            say(&Said::Idle);
            let mut line = String::new();
            if std::io::stdin().read_line(&mut line).unwrap() == 0 {
                return;
            }
            let work = serde_json::from_str(&line).unwrap();
            report(perform(orders, limits, &work).await);
        },
        work => report(perform(orders, limits, work).await),
    }
}

fn report(outcome: Result<String, Fault>) {
    say(&Said::Outcome(match outcome {
        Ok(text) => Outcome::Done(text),
        Err(fault) => Outcome::Failed {
            kind: fault.kind.name().to_owned(),
            permanent: fault.is_permanent(),
            message: fault.message,
        },
    }));
}

async fn perform(orders: &Orders, limits: &Limits, work: &Work) -> Result<String, Fault> {
    let pool = DirectoryPool::open(&orders.pool)?;
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    if let Work::Overlay { name, base, digest } = work {
        return tokio::task::block_in_place(|| make_overlay(&pool, name, base, *digest));
    }
    let cache = Cache::new(pool, std::sync::Arc::new(NoDomains)).with_limits(limits.clone());
    let named =
        |entry: &str, key: &str| (EntryName::new(entry).unwrap(), ImageKey::new(key).unwrap());
    match work {
        Work::Ensure(image) => {
            let base = cache.ensure(&image.source(), &progress, &cancel).await?;
            Ok(base.digest().to_string())
        }
        Work::Evict { entry, key } => {
            let (entry, key) = named(entry, key);
            Ok(cache.evict(&entry, &key).await?.to_string())
        }
        Work::Verify { entry, key } => {
            let (entry, key) = named(entry, key);
            Ok(cache.verify(&entry, &key, &progress, &cancel).await?.to_string())
        }
        Work::Prune { entry, offered, dry_run } => {
            let offered = offered.iter().map(Image::source).collect();
            let entry = EntryName::new(entry).unwrap();
            let rows = cache.prune(&entry, offered, *dry_run).await?;
            Ok(rows
                .iter()
                .map(|row| format!("{} {} {}\n", row.path.display(), row.bytes, row.reason))
                .collect())
        }
        work => unreachable!("{work:?}"),
    }
}

/// As the provider does: checked and made with the fence in hand.
fn make_overlay(
    pool: &DirectoryPool,
    name: &str,
    base: &str,
    digest: Sha256Digest,
) -> Result<String, Fault> {
    let fence = pool.fence()?;
    check_unchanged(&fence, base, digest)?;
    std::fs::write(pool.path_of(name), overlay(base)).unwrap();
    drop(fence);
    Ok(name.to_owned())
}
