//! Publishing to a real host over a real line, with everything that can go wrong at
//! every step. Run by the lab, inside a host that has another one to talk to.

mod line;
mod lost;
mod pool;
mod writers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::config::{
    NetworkAttachment, ProviderSettings, ProviderType, SshDestination, SshSettings, VirtType,
};
use crate::image::{ImageSource, Marker, MarkerState, Progress, Spool, Standing};
use crate::model::{
    EntryName, Fault, FaultKind, ImageFormat, ImageKey, Pin, ResourceUrl, Sha256Digest, UrlOrigin,
};
use crate::provider::kvm::Publisher as _;
use crate::provider::kvm::connection::Link;
use crate::provider::kvm::pace::{Pace, Step};
use crate::provider::kvm::storage::Storage;
use crate::provider::kvm::tests::hook::Hook;
use crate::provider::{Bells, Places};
use crate::store::BaseRef;

const FAR: &str = "10.77.1.2";
const POOL: &str = "/var/lib/libvirt/images";
/// Large enough for many messages, and for much to be on its way.
const SIZE: usize = 24 << 20;
/// Nothing here takes longer.
const LIMIT: Duration = Duration::from_secs(90);

/// The directory with the key and the known hosts.
fn home() -> PathBuf {
    std::env::var_os("PROXYD_FAR").expect("run by the lab").into()
}

/// Runs a command on the other host, by a way of its own.
fn there(command: &str) -> String {
    let home = home();
    let output = Command::new("ssh")
        .args(["-F", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-i"])
        .arg(home.join("ssh-far"))
        .arg("-o")
        .arg(format!("UserKnownHostsFile={}", home.join("known_hosts").display()))
        .args([&format!("root@{FAR}"), &format!("set -e; {command}")])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {words}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Starts a libvirtd there again that no longer answers. libvirt 11.3 locks itself up
/// when it reads of a client's end while data of an upload by that client still waits
/// (it closes the client from within the stream's event, and both take one lock): any
/// client that dies can do that, virsh too, and it is rare.
fn revive() {
    let hung = "timeout 10 virsh -q pool-list >/dev/null || { echo hung; systemctl kill -s KILL \
                libvirtd; }";
    if there(hung) == "hung" {
        eprintln!("libvirtd has locked itself up, and was started again");
    }
}

fn here(command: &str) {
    let status = Command::new("sh").args(["-ec", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Packets to and from the other host are dropped, and nothing is closed, as long as this
/// lives.
struct Cut;

impl Cut {
    fn new() -> Self {
        Self::rules("-I");
        Self
    }

    fn rules(verb: &str) {
        here(&format!(
            "iptables {verb} INPUT -s {FAR} -j DROP; \
             iptables -t mangle {verb} POSTROUTING -d {FAR} -j DROP"
        ));
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        Self::rules("-D");
    }
}

fn settings(entry: &str, pool: &str) -> ProviderSettings {
    let destination =
        SshDestination { host: FAR.into(), user: Some("operator".into()), port: None };
    let known_hosts = std::fs::read_to_string(home().join("known_hosts")).unwrap();
    ProviderSettings {
        name: EntryName::new(entry).unwrap(),
        kind: ProviderType::Kvm,
        uri: format!("qemu+ssh://operator@{FAR}/system"),
        pool: pool.into(),
        network: NetworkAttachment::Network("default".into()),
        virt_type: VirtType::Qemu,
        install_guest_agent: true,
        vendor_data: None,
        images: BTreeMap::new(),
        ssh: Some(SshSettings { destination, key_credential: "ssh-far".into(), known_hosts }),
        max_concurrent: 8,
    }
}

/// A daemon of its own, as far as others can tell.
struct Writer {
    storage: Storage,
    spool: Arc<TempDir>,
}

impl Writer {
    fn new(entry: &str, pace: Pace) -> Self {
        Self::with(
            settings(entry, "default"),
            Arc::new(tempfile::tempdir_in("/var/tmp").unwrap()),
            pace,
        )
    }

    fn with(settings: ProviderSettings, spool: Arc<TempDir>, pace: Pace) -> Self {
        let places = Places { runtime: spool.path().join("run"), credentials: Some(home()) };
        let link = Link::new(&settings, Bells::default(), &places);
        let storage =
            Storage::new(Arc::new(settings), link, Spool::new(spool.path().join("spool")), pace);
        Self { storage, spool }
    }

    /// The same daemon, started again.
    fn again(&self, entry: &str, pace: Pace) -> Self {
        Self::with(settings(entry, "default"), self.spool.clone(), pace)
    }

    /// Empties its spool, but for its name.
    fn forget(&self) {
        for file in std::fs::read_dir(self.spool.path().join("spool")).unwrap() {
            let path = file.unwrap().path();
            if path.is_file() && path.file_name().is_none_or(|name| name != "writer") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    async fn ensure(&self, source: &ImageSource) -> Result<BaseRef, Fault> {
        let (progress, cancel) = (Progress::default(), CancellationToken::new());
        let ensured = self.storage.ensure(source, &progress, &cancel);
        tokio::time::timeout(LIMIT, ensured)
            .await
            .unwrap_or_else(|_| panic!("{} hangs: {progress}", source.base_name()))
    }

    /// Tries until it works, or `LIMIT` is over.
    async fn ensure_at_last(&self, source: &ImageSource) -> BaseRef {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.ensure(source).await {
                Ok(base) => return base,
                Err(fault) if fault.is_permanent() || Instant::now() > deadline => {
                    panic!("{}: {fault}", source.base_name())
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(300)).await,
            }
        }
    }

    /// Publishes in a task of its own.
    fn begin(&self, source: &ImageSource) -> tokio::task::JoinHandle<Result<BaseRef, Fault>> {
        let (storage, source) = (self.storage.clone(), source.clone());
        tokio::spawn(async move {
            storage.ensure(&source, &Progress::default(), &CancellationToken::new()).await
        })
    }
}

/// An image whose bytes are its own, by `seed`.
struct Picture {
    file: tempfile::NamedTempFile,
    digest: Sha256Digest,
}

fn picture(seed: u8) -> Picture {
    let bytes: Vec<u8> = (0..SIZE)
        .map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed)
        .collect();
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    Picture { file, digest: Sha256Digest::of(&bytes) }
}

impl Picture {
    fn source(&self, entry: &str, key: &str, pinned: bool) -> ImageSource {
        let url = format!("file://{}", self.file.path().display());
        ImageSource {
            entry: EntryName::new(entry).unwrap(),
            key: ImageKey::new(key).unwrap(),
            url: ResourceUrl::parse(&url, UrlOrigin::Configuration).unwrap(),
            pin: if pinned { Pin::Digest(self.digest) } else { Pin::None },
            format: ImageFormat::Raw,
        }
    }
}

fn digest_there(base: &str) -> String {
    there(&format!("sha256sum < {POOL}/{base} | cut -d' ' -f1"))
}

fn marker_there(base: &str) -> MarkerState {
    let text = there(&format!("cat {POOL}/{base}.json 2>/dev/null | base64 -w0"));
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    if bytes.is_empty() { MarkerState::Absent } else { Marker::parse(&bytes) }
}

/// A valid marker is never beside other bytes than it says.
fn nothing_unverified(base: &str) {
    if let MarkerState::Valid(marker) = marker_there(base) {
        assert_eq!(digest_there(base), marker.content().to_string(), "{base}");
    }
}

fn names_there(pattern: &str) -> String {
    there(&format!("ls {POOL} | grep -e '{pattern}' || true"))
}

/// Where a publication is to stop until it is let go.
struct Stop {
    reached: Receiver<()>,
    go: Sender<()>,
}

/// A pace whose publication stops at the first step that is `wanted`.
fn stopping(wanted: impl Fn(Step) -> bool + Send + Sync + 'static) -> (Pace, Stop) {
    let (tell, reached) = channel();
    let (go, told) = channel();
    let (gate, first) = (Mutex::new((tell, told)), AtomicBool::new(true));
    let hook = Hook::new(move |step| {
        if wanted(step) && first.swap(false, Ordering::SeqCst) {
            let gate = gate.lock().unwrap();
            gate.0.send(()).unwrap();
            // Dropped, the test has failed: then nobody shall wait.
            let _ = gate.1.recv_timeout(LIMIT);
        }
    });
    (Pace { hook, ..Pace::default() }, Stop { reached, go })
}

impl Stop {
    fn wait(&self) {
        self.reached.recv_timeout(LIMIT).expect("the step is never reached");
    }
}

fn half(step: Step) -> bool {
    matches!(step, Step::Sent(bytes) if bytes >= SIZE as u64 / 2)
}

type Wanted = fn(Step) -> bool;

const STEPS: [(&str, Wanted); 6] = [
    ("begun", |step| step == Step::Begun),
    ("allocated", |step| step == Step::Allocated),
    ("sent", half),
    ("uploaded", |step| step == Step::Uploaded),
    ("proven", |step| step == Step::Proven),
    ("completed", |step| step == Step::Completed),
];
