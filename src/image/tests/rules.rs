//! What is done with what is found: the rules one by one.

use std::path::Path;
use std::sync::Arc;

use super::agent::tight;
use super::server::{Server, response};
use super::*;
use crate::image::inspect::tests::{image, overlay};
use crate::model::FaultKind;

async fn ensure(home: &TempDir, source: &ImageSource) -> Result<Base, Fault> {
    ensure_beside(home, source, Arc::new(NoDomains)).await
}

async fn ensure_beside(
    home: &TempDir,
    source: &ImageSource,
    users: Arc<dyn BaseUsers>,
) -> Result<Base, Fault> {
    let cache = Cache::new(DirectoryPool::open(home.path()).unwrap(), users).with_limits(tight());
    cache.ensure(source, &Progress::default(), &CancellationToken::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_is_fetched_once_and_then_used() {
    let (home, server) = (home(), Server::of(&image()));
    let mut source = source(&server.url);
    let first = ensure(&home, &source).await.unwrap();
    assert_eq!(first.digest(), Sha256Digest::of(&image()));
    assert_eq!(std::fs::read(first.path()).unwrap(), image());
    assert_eq!(std::fs::metadata(first.path()).unwrap().mode() & 0o777, 0o444);
    ensure(&home, &source).await.unwrap();
    assert_eq!(server.requests(), 1);
    assert_eq!(listing(home.path()), [BASE, MARKER, LOCK]);
    // A digest that appears later is checked by one hash, not by another download.
    source.pin = Pin::Digest(first.digest());
    ensure(&home, &source).await.unwrap();
    assert_eq!(server.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_at_once_make_one_request() {
    let (home, server) = (home(), Server::of(&image()));
    let source = source(&server.url);
    let all = (0..8).map(|_| ensure(&home, &source));
    for base in futures_util::future::join_all(all).await {
        base.unwrap();
    }
    assert_eq!(server.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_digest_leaves_nothing() {
    let (home, server) = (home(), Server::of(&image()));
    let wanted = Sha256Digest::of(b"else");
    let source = ImageSource { pin: Pin::Digest(wanted), ..source(&server.url) };
    let fault = ensure(&home, &source).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::DigestMismatch);
    for digest in [wanted, Sha256Digest::of(&image())] {
        assert!(fault.message.contains(&digest.to_string()), "{fault}");
    }
    assert_eq!(listing(home.path()), [LOCK]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_digest_touches_nothing() {
    let (home, server) = (home(), Server::of(&image()));
    ensure(&home, &source(&server.url)).await.unwrap();
    let before = inode(home.path(), BASE);
    let wanted = Sha256Digest::of(b"else");
    let changed = ImageSource { pin: Pin::Digest(wanted), ..source(&server.url) };
    let fault = ensure(&home, &changed).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::DigestMismatch);
    for part in [&wanted.to_string(), BASE, "restore the old digest", "new key"] {
        assert!(fault.message.contains(part), "{fault}");
    }
    assert_eq!((server.requests(), inode(home.path(), BASE)), (1, before));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_url_needs_a_digest_that_vouches() {
    let (home, server) = (home(), Server::of(&image()));
    ensure(&home, &source(&server.url)).await.unwrap();
    let mut moved = source("http://127.0.0.1:9/mirror.qcow2");
    let fault = ensure(&home, &moved).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::UrlMismatch);
    assert!(fault.message.contains(&server.url) && fault.message.contains("mirror"), "{fault}");
    moved.pin = Pin::Digest(Sha256Digest::of(&image()));
    ensure(&home, &moved).await.unwrap();
    moved.pin = Pin::None;
    ensure(&home, &moved).await.unwrap();
    assert_eq!(server.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn debris_is_fetched_anew_unless_something_backs_onto_it() {
    for marker in [None, Some("".to_owned()), Some("{".to_owned()), Some("[]".to_owned())] {
        let (home, server) = (home(), Server::of(&image()));
        std::fs::write(home.path().join(BASE), b"half").unwrap();
        if let Some(marker) = marker {
            std::fs::write(home.path().join(MARKER), marker).unwrap();
        }
        let before = inode(home.path(), BASE);
        // Under an overlay it stays, whatever it is.
        std::fs::write(home.path().join("theirs"), overlay(BASE)).unwrap();
        let fault = ensure(&home, &source(&server.url)).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::BaseChanged);
        assert!(fault.message.contains("theirs"), "{fault}");
        assert_eq!((server.requests(), inode(home.path(), BASE)), (0, before));
        std::fs::remove_file(home.path().join("theirs")).unwrap();
        ensure(&home, &source(&server.url)).await.unwrap();
        assert_eq!(std::fs::read(home.path().join(BASE)).unwrap(), image());
        assert_eq!(listing(home.path()), [BASE, MARKER, LOCK]);
    }
}

/// What the domains of a connection say.
struct Domains(Result<Vec<DomainDisk>, Fault>);

impl BaseUsers for Domains {
    fn disks(&self) -> Result<Vec<DomainDisk>, Fault> {
        self.0.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn debris_stays_when_a_domain_uses_it_or_none_can_tell() {
    let silence = Fault::new(FaultKind::ProviderUnavailable, "libvirt is gone");
    let rows = [(Ok(()), FaultKind::BaseChanged), (Err(silence), FaultKind::ProviderUnavailable)];
    for (answer, kind) in rows {
        let (home, server) = (home(), Server::of(&image()));
        std::fs::write(home.path().join(BASE), b"half").unwrap();
        let before = inode(home.path(), BASE);
        let source = source(&server.url);
        let file = home.path().join(BASE);
        let answer = answer.map(|()| vec![DomainDisk { domain: "theirs".into(), file }]);
        let outcome = ensure_beside(&home, &source, Arc::new(Domains(answer))).await;
        assert_eq!(outcome.unwrap_err().kind, kind);
        assert_eq!((server.requests(), inode(home.path(), BASE)), (0, before));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn debris_under_an_overlay_is_adopted_when_its_bytes_are_right() {
    let home = home();
    std::fs::write(home.path().join(BASE), image()).unwrap();
    std::fs::write(home.path().join("theirs"), overlay(BASE)).unwrap();
    let before = inode(home.path(), BASE);
    let pin = Pin::Digest(Sha256Digest::of(&image()));
    let source = ImageSource { pin, ..source("http://127.0.0.1:9/x") };
    ensure(&home, &source).await.unwrap();
    assert_eq!(inode(home.path(), BASE), before);
    assert!(home.path().join(MARKER).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_was_written_to_is_not_trusted() {
    let (home, server) = (home(), Server::of(&image()));
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
    let (home, server) = (home(), Server::of(&image()));
    ensure(&home, &source(&server.url)).await.unwrap();
    let before = inode(home.path(), BASE);
    let same_name = ImageSource {
        entry: EntryName::new("a").unwrap(),
        key: ImageKey::new("b-c").unwrap(),
        ..source(&server.url)
    };
    let fault = ensure(&home, &same_name).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::ForeignFile);
    assert!(fault.message.contains("\"c\"") && fault.message.contains("\"a-b\""), "{fault}");
    assert_eq!(inode(home.path(), BASE), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_is_not_touched() {
    let server = Server::of(&image());
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

/// What can't be replaced by a marker is refused before anything is fetched.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_in_place_of_a_marker_costs_no_download() {
    let (home, server) = (home(), Server::of(&image()));
    std::fs::create_dir(home.path().join(MARKER)).unwrap();
    let fault = ensure(&home, &source(&server.url)).await.unwrap_err();
    assert_eq!((fault.kind, server.requests()), (FaultKind::ForeignFile, 0));
}

/// How the image stands in `home`.
async fn seen(home: &TempDir, source: &ImageSource) -> Sighting {
    let cache = Cache::new(DirectoryPool::open(home.path()).unwrap(), Arc::new(NoDomains));
    let seen = cache.survey(&source.entry, vec![source.clone()]).await.unwrap();
    assert_eq!(seen.len(), 1);
    seen.into_iter().next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_only_looks_is_told_what_stands_there() {
    let (home, server) = (home(), Server::of(&image()));
    let source = source(&server.url);
    let path = home.path().join(BASE);
    assert_eq!(seen(&home, &source).await.standing, Standing::Absent);
    std::fs::write(&path, "half").unwrap();
    assert_eq!(seen(&home, &source).await.standing, Standing::Debris);
    ensure(&home, &source).await.unwrap();
    let ready = seen(&home, &source).await;
    assert_eq!((ready.standing, ready.message.as_str()), (Standing::Ready, ""));
    assert_eq!(ready.seen.unwrap().digest, Sha256Digest::of(&image()));

    let wanted = Pin::Digest(Sha256Digest::of(b"else"));
    let other = seen(&home, &ImageSource { pin: wanted, ..source.clone() }).await;
    assert_eq!(other.standing, Standing::Conflict);
    assert!(other.message.contains("restore the old digest"), "{}", other.message);

    // Damage that size and time don't show is found by hashing, and said from then on.
    rot(&path);
    let cache = Cache::new(DirectoryPool::open(home.path()).unwrap(), Arc::new(NoDomains));
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    let verify = || cache.verify(&source.entry, &source.key, &progress, &cancel);
    assert_eq!(verify().await.unwrap_err().kind, FaultKind::BaseChanged);
    let damaged = seen(&home, &source).await;
    assert_eq!((damaged.standing, damaged.seen), (Standing::Conflict, None));
    assert!(damaged.message.contains("found damaged"), "{}", damaged.message);

    std::fs::remove_file(&path).unwrap();
    let gone = seen(&home, &source).await;
    assert_eq!((gone.standing, gone.seen), (Standing::Absent, None));
    assert_eq!(verify().await.unwrap_err().kind, FaultKind::NoSuchImage);
    std::fs::create_dir(&path).unwrap();
    assert_eq!(seen(&home, &source).await.standing, Standing::Conflict);
    assert_eq!(verify().await.unwrap_err().kind, FaultKind::ForeignFile);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_download_can_be_called_off() {
    let home = home();
    let cancel = CancellationToken::new();
    let (at, called_off) = (cancel.clone(), response("200 OK", "", &image()));
    let server = Server::with(move |mut exchange| {
        exchange.send(&called_off[..1000]);
        at.cancel();
        // Open until the client goes.
        let _ = std::io::Read::read(&mut exchange.stream, &mut [0]);
    });
    let cache = Cache::new(DirectoryPool::open(home.path()).unwrap(), Arc::new(NoDomains));
    let outcome = cache.ensure(&source(&server.url), &Progress::default(), &cancel).await;
    assert_eq!(outcome.unwrap_err().kind, FaultKind::Canceled);
    assert_eq!(listing(home.path()), [LOCK]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_predecessor_are_left_alone() {
    let (home, server) = (home(), Server::of(&image()));
    let legacy = home.path().join("base-c.qcow2");
    std::fs::write(&legacy, b"theirs").unwrap();
    std::fs::write(home.path().join("theirs"), overlay("base-c.qcow2")).unwrap();
    let before = inode(home.path(), "base-c.qcow2");
    ensure(&home, &source(&server.url)).await.unwrap();
    assert_eq!(std::fs::read(&legacy).unwrap(), b"theirs");
    assert_eq!(inode(home.path(), "base-c.qcow2"), before);
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

/// A base that was deleted under an overlay comes back as it was, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_is_lost_is_replaced_by_the_same_bytes_only() {
    for (with_marker, pinned) in [(true, false), (false, true), (false, false)] {
        let (home, server) = (home(), Server::of(&image()));
        let mut source = source(&server.url);
        ensure(&home, &source).await.unwrap();
        std::fs::write(home.path().join("theirs"), overlay(BASE)).unwrap();
        std::fs::remove_file(home.path().join(BASE)).unwrap();
        if !with_marker {
            std::fs::remove_file(home.path().join(MARKER)).unwrap();
        }
        if pinned {
            source.pin = Pin::Digest(Sha256Digest::of(&image()));
        }
        let outcome = ensure(&home, &source).await;
        if with_marker || pinned {
            assert_eq!(outcome.unwrap().digest(), Sha256Digest::of(&image()));
        } else {
            let fault = outcome.unwrap_err();
            assert_eq!(fault.kind, FaultKind::BaseChanged);
            assert!(
                fault.message.contains("theirs") && fault.message.contains("missing"),
                "{fault}"
            );
            assert_eq!(server.requests(), 1);
        }
    }
    // What the server has by now is something else.
    let (home, server) = (
        home(),
        Server::with(|mut at| {
            at.respond("200 OK", "", &numbered(u8::try_from(at.number).unwrap(), 300_000));
        }),
    );
    ensure(&home, &source(&server.url)).await.unwrap();
    std::fs::write(home.path().join("theirs"), overlay(BASE)).unwrap();
    std::fs::remove_file(home.path().join(BASE)).unwrap();
    let fault = ensure(&home, &source(&server.url)).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::DigestMismatch);
    assert!(!home.path().join(BASE).exists());
}
