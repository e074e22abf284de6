//! The rules of the cache, against a real directory and a real HTTP server.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::inspect::tests::{image, overlay};
use super::*;
use crate::model::{FaultKind, UrlOrigin};

pub(super) struct NoDomains;

impl BaseUsers for NoDomains {
    fn users_of(&self, _: &Path) -> Result<Vec<String>, Fault> {
        Ok(Vec::new())
    }
}

/// The image `c` of the entry `a-b` at `url`.
pub(super) fn source(url: &str) -> ImageSource {
    ImageSource {
        entry: EntryName::new("a-b").unwrap(),
        key: ImageKey::new("c").unwrap(),
        url: ResourceUrl::parse(url, UrlOrigin::Configuration).unwrap(),
        sha256: None,
        format: ImageFormat::Qcow2,
    }
}

const BASE: &str = "base-a-b-c.qcow2";
const MARKER: &str = "base-a-b-c.qcow2.json";
const LOCK: &str = "base-a-b-c.qcow2.lock";

/// A server that answers every request with the same bytes, and counts them.
struct Server {
    url: String,
    requests: Arc<AtomicUsize>,
}

impl Server {
    async fn new(answer: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/x.qcow2", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let (counter, answer) = (requests.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut request = [0; 2048];
                    let _ = stream.read(&mut request).await;
                    let _ = stream.write_all(&answer).await;
                });
            }
        });
        Self { url, requests }
    }

    /// Serves `body` as it should be.
    async fn of(body: &[u8]) -> Self {
        Self::new(response("200 OK", "", body)).await
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn response(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

async fn ensure(home: &TempDir, source: &ImageSource) -> Result<Base, Fault> {
    ensure_beside(home, source, Arc::new(NoDomains)).await
}

async fn ensure_beside(
    home: &TempDir,
    source: &ImageSource,
    domains: Arc<dyn BaseUsers>,
) -> Result<Base, Fault> {
    let pool = Arc::new(DirectoryPool::open(home.path()).unwrap());
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    ensure_base(pool, source, domains, &progress, &cancel).await
}

fn listing(home: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(home.path()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn inode(home: &TempDir, name: &str) -> u64 {
    std::fs::metadata(home.path().join(name)).unwrap().ino()
}

fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_is_fetched_once_and_then_used() {
    let (home, server) = (home(), Server::of(&image()).await);
    let mut source = source(&server.url);
    let first = ensure(&home, &source).await.unwrap();
    assert_eq!(first.digest(), Sha256Digest::of(&image()));
    assert_eq!(std::fs::read(first.path()).unwrap(), image());
    assert_eq!(std::fs::metadata(first.path()).unwrap().mode() & 0o777, 0o444);
    ensure(&home, &source).await.unwrap();
    assert_eq!(server.requests(), 1);
    assert_eq!(listing(&home), [BASE, MARKER, LOCK]);
    // A digest that appears later is checked by one hash, not by another download.
    source.sha256 = Some(first.digest());
    ensure(&home, &source).await.unwrap();
    assert_eq!(server.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_at_once_make_one_request() {
    let (home, server) = (home(), Server::of(&image()).await);
    let source = source(&server.url);
    let all = (0..8).map(|_| ensure(&home, &source));
    for base in futures_util::future::join_all(all).await {
        base.unwrap();
    }
    assert_eq!(server.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_digest_leaves_nothing() {
    let (home, server) = (home(), Server::of(&image()).await);
    let wanted = Sha256Digest::of(b"else");
    let source = ImageSource { sha256: Some(wanted), ..source(&server.url) };
    let fault = ensure(&home, &source).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::DigestMismatch);
    for digest in [wanted, Sha256Digest::of(&image())] {
        assert!(fault.message.contains(&digest.to_string()), "{fault}");
    }
    assert_eq!(listing(&home), [LOCK]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_digest_touches_nothing() {
    let (home, server) = (home(), Server::of(&image()).await);
    ensure(&home, &source(&server.url)).await.unwrap();
    let before = inode(&home, BASE);
    let wanted = Sha256Digest::of(b"else");
    let changed = ImageSource { sha256: Some(wanted), ..source(&server.url) };
    let fault = ensure(&home, &changed).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::DigestMismatch);
    for part in [&wanted.to_string(), BASE, "restore the old digest", "new key"] {
        assert!(fault.message.contains(part), "{fault}");
    }
    assert_eq!((server.requests(), inode(&home, BASE)), (1, before));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_url_needs_a_digest_that_vouches() {
    let (home, server) = (home(), Server::of(&image()).await);
    ensure(&home, &source(&server.url)).await.unwrap();
    let mut moved = source("http://127.0.0.1:9/mirror.qcow2");
    let fault = ensure(&home, &moved).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::UrlMismatch);
    assert!(fault.message.contains(&server.url) && fault.message.contains("mirror"), "{fault}");
    moved.sha256 = Some(Sha256Digest::of(&image()));
    ensure(&home, &moved).await.unwrap();
    moved.sha256 = None;
    ensure(&home, &moved).await.unwrap();
    assert_eq!(server.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn debris_is_fetched_anew_unless_something_backs_onto_it() {
    for marker in [None, Some("".to_owned()), Some("{".to_owned()), Some("[]".to_owned())] {
        let (home, server) = (home(), Server::of(&image()).await);
        std::fs::write(home.path().join(BASE), b"half").unwrap();
        if let Some(marker) = marker {
            std::fs::write(home.path().join(MARKER), marker).unwrap();
        }
        let before = inode(&home, BASE);
        // Under an overlay it stays, whatever it is.
        std::fs::write(home.path().join("theirs"), overlay(BASE)).unwrap();
        let fault = ensure(&home, &source(&server.url)).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::BaseChanged);
        assert!(fault.message.contains("theirs"), "{fault}");
        assert_eq!((server.requests(), inode(&home, BASE)), (0, before));
        std::fs::remove_file(home.path().join("theirs")).unwrap();
        ensure(&home, &source(&server.url)).await.unwrap();
        assert_eq!(std::fs::read(home.path().join(BASE)).unwrap(), image());
        assert_eq!(listing(&home), [BASE, MARKER, LOCK]);
    }
}

/// What the domains of a connection say.
struct Domains(Result<Vec<String>, Fault>);

impl BaseUsers for Domains {
    fn users_of(&self, _: &Path) -> Result<Vec<String>, Fault> {
        self.0.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn debris_stays_when_a_domain_uses_it_or_none_can_tell() {
    let silence = Fault::new(FaultKind::ProviderUnavailable, "libvirt is gone");
    let rows = [
        (Ok(vec!["domain theirs".to_owned()]), FaultKind::BaseChanged),
        (Err(silence), FaultKind::ProviderUnavailable),
    ];
    for (answer, kind) in rows {
        let (home, server) = (home(), Server::of(&image()).await);
        std::fs::write(home.path().join(BASE), b"half").unwrap();
        let before = inode(&home, BASE);
        let source = source(&server.url);
        let outcome = ensure_beside(&home, &source, Arc::new(Domains(answer))).await;
        assert_eq!(outcome.unwrap_err().kind, kind);
        assert_eq!((server.requests(), inode(&home, BASE)), (0, before));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn debris_under_an_overlay_is_adopted_when_its_bytes_are_right() {
    let home = home();
    std::fs::write(home.path().join(BASE), image()).unwrap();
    std::fs::write(home.path().join("theirs"), overlay(BASE)).unwrap();
    let before = inode(&home, BASE);
    let digest = Some(Sha256Digest::of(&image()));
    let source = ImageSource { sha256: digest, ..source("http://127.0.0.1:9/x") };
    ensure(&home, &source).await.unwrap();
    assert_eq!(inode(&home, BASE), before);
    assert!(home.path().join(MARKER).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_was_written_to_is_not_trusted() {
    let (home, server) = (home(), Server::of(&image()).await);
    ensure(&home, &source(&server.url)).await.unwrap();
    let path = home.path().join(BASE);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, [image(), vec![1]].concat()).unwrap();
    ensure(&home, &source(&server.url)).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), image());
    assert_eq!(server.requests(), 2);
    // The same bytes under another inode are proven by one hash.
    let copy = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, copy).unwrap();
    ensure(&home, &source(&server.url)).await.unwrap();
    assert_eq!(server.requests(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_base_of_another_pair_is_never_touched() {
    let (home, server) = (home(), Server::of(&image()).await);
    ensure(&home, &source(&server.url)).await.unwrap();
    let before = inode(&home, BASE);
    let same_name = ImageSource {
        entry: EntryName::new("a").unwrap(),
        key: ImageKey::new("b-c").unwrap(),
        ..source(&server.url)
    };
    let fault = ensure(&home, &same_name).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::ForeignFile);
    assert!(fault.message.contains("\"c\"") && fault.message.contains("\"a-b\""), "{fault}");
    assert_eq!(inode(&home, BASE), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_is_not_touched() {
    let server = Server::of(&image()).await;
    let fifo = |path: &Path| {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    };
    let makers: [&dyn Fn(&Path); 3] = [
        &|path| std::fs::create_dir(path).unwrap(),
        &|path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(),
        &fifo,
    ];
    for make in makers {
        let home = home();
        make(&home.path().join(BASE));
        let fault = ensure(&home, &source(&server.url)).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::ForeignFile, "{fault}");
        // As a marker it is garbage; a directory can't even be removed.
        let home = self::home();
        make(&home.path().join(MARKER));
        let outcome = ensure(&home, &source(&server.url)).await;
        let is_directory = home.path().join(MARKER).is_dir();
        assert_eq!(outcome.is_err(), is_directory, "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_answer_leaves_nothing() {
    let truncated = {
        let mut whole = response("200 OK", "", &image());
        whole.truncate(whole.len() - 1);
        whole
    };
    let html = response("200 OK", "Content-Type: text/html\r\n", b"<html>");
    let encoded = response("200 OK", "Content-Encoding: gzip\r\n", &image());
    let rows = [
        (truncated, FaultKind::FetchFailed),
        (html, FaultKind::FetchFailed),
        (encoded, FaultKind::FetchFailed),
        (response("404 Not Found", "", b""), FaultKind::FetchFailed),
        (response("503 Busy", "", b""), FaultKind::FetchFailed),
        (response("302 Found", "Location: /again\r\n", b""), FaultKind::FetchFailed),
        (response("200 OK", "", &overlay("/etc/shadow")), FaultKind::ImageRejected),
        (response("200 OK", "", b"<html>not an image</html>"), FaultKind::ImageRejected),
    ];
    for (answer, kind) in rows {
        let (home, server) = (home(), Server::new(answer).await);
        let url = server.url.replace("http://", "http://user:hunter2@");
        let fault = ensure(&home, &source(&url)).await.unwrap_err();
        assert_eq!(fault.kind, kind, "{fault}");
        assert!(!fault.message.contains("hunter2"), "{fault}");
        assert_eq!(listing(&home), [LOCK]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_file_that_appears_meanwhile_is_not_clobbered() {
    let home = home();
    let appeared = home.path().join(BASE);
    // The server puts the file there before it answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    let path = appeared.clone();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 2048];
        let _ = stream.read(&mut request).await;
        std::fs::write(&path, "theirs").unwrap();
        let _ = stream.write_all(&response("200 OK", "", &image())).await;
    });
    let fault = ensure(&home, &source(&url)).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::ForeignFile);
    assert_eq!(std::fs::read(&appeared).unwrap(), b"theirs");
    assert_eq!(listing(&home), [BASE, LOCK]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_put_in_the_pools_place_is_not_written_to() {
    let outer = home();
    let (path, moved) = (outer.path().join("pool"), outer.path().join("moved"));
    std::fs::create_dir(&path).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    let (from, to) = (path.clone(), moved.clone());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 2048];
        let _ = stream.read(&mut request).await;
        std::fs::rename(&from, &to).unwrap();
        std::fs::create_dir(&from).unwrap();
        let _ = stream.write_all(&response("200 OK", "", &image())).await;
    });
    let pool = Arc::new(DirectoryPool::open(&path).unwrap());
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    let outcome = ensure_base(pool, &source(&url), Arc::new(NoDomains), &progress, &cancel).await;
    assert_eq!(outcome.unwrap_err().kind, FaultKind::PoolUnavailable);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_download_can_be_called_off() {
    let home = home();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let source = source(&format!("http://{}/x", listener.local_addr().unwrap()));
    let pool = Arc::new(DirectoryPool::open(home.path()).unwrap());
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    let work = ensure_base(pool, &source, Arc::new(NoDomains), &progress, &cancel);
    let stop = async {
        let (stream, _) = listener.accept().await.unwrap();
        cancel.cancel();
        stream
    };
    let (outcome, _stream) = tokio::join!(work, stop);
    assert_eq!(outcome.unwrap_err().kind, FaultKind::Canceled);
    assert_eq!(listing(&home), [LOCK]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_predecessor_are_left_alone() {
    let (home, server) = (home(), Server::of(&image()).await);
    let legacy = home.path().join("base-c.qcow2");
    std::fs::write(&legacy, b"theirs").unwrap();
    std::fs::write(home.path().join("theirs"), overlay("base-c.qcow2")).unwrap();
    let before = inode(&home, "base-c.qcow2");
    ensure(&home, &source(&server.url)).await.unwrap();
    assert_eq!(std::fs::read(&legacy).unwrap(), b"theirs");
    assert_eq!(inode(&home, "base-c.qcow2"), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_file_and_a_raw_image() {
    let home = home();
    let (image, bytes) = (home.path().join("local"), vec![0; 1 << 20]);
    std::fs::write(&image, &bytes).unwrap();
    let url = format!("file://{}", image.display());
    let source = ImageSource { format: ImageFormat::Raw, ..source(&url) };
    let base = ensure(&home, &source).await.unwrap();
    assert_eq!((base.virtual_size(), base.name()), (1 << 20, "base-a-b-c.raw"));
    let pool = DirectoryPool::open(home.path()).unwrap();
    check_unchanged(&pool.fence().unwrap(), base.name(), base.digest()).unwrap();
    let other = Sha256Digest::of(b"else");
    let fault = check_unchanged(&pool.fence().unwrap(), base.name(), other).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BaseChanged);
}
