//! What may go, and what stays.

use super::agent::{Finished, Image, Orders, Work};
use super::server::Server;
use super::*;
use crate::image::inspect::tests::overlay;

fn body() -> Vec<u8> {
    numbered(5, 400_000)
}

fn run(home: &TempDir, work: Work) -> Finished {
    Orders::new(home.path(), work).run()
}

fn evict() -> Work {
    Work::Evict { entry: "a-b".into(), key: "c".into() }
}

fn verify() -> Work {
    Work::Verify { entry: "a-b".into(), key: "c".into() }
}

fn prune(dry_run: bool) -> Work {
    Work::Prune { entry: "a-b".into(), offered: Vec::new(), dry_run }
}

fn filled() -> (TempDir, Server) {
    let (home, server) = (home(), Server::of(&body()));
    run(&home, Image::at(&server.url).ensure()).done();
    (home, server)
}

#[test]
fn what_nothing_uses_goes_and_comes_again() {
    let (home, server) = filled();
    assert_eq!(run(&home, evict()).done(), body().len().to_string());
    assert_eq!(listing(home.path()), [LOCK]);
    assert_eq!(run(&home, evict()).fault().0, "NoSuchImage");
    run(&home, Image::at(&server.url).ensure()).done();
    assert_eq!(server.requests(), 2);
}

/// A lock that is no file is not ours to mend, and keeps nobody from the rest.
#[test]
fn a_lock_that_is_no_file_is_passed_over() {
    let (home, _server) = filled();
    let other = home.path().join("base-a-b-other.raw.lock");
    std::os::unix::fs::symlink("/nowhere", &other).unwrap();
    assert!(run(&home, prune(true)).done().contains(BASE));
    run(&home, prune(false)).done();
    assert!(!home.path().join(BASE).exists() && other.is_symlink());
}

/// `a-b`+`c` and `a`+`b-c` have one name: the marker tells whose it is.
#[test]
fn the_base_of_another_pair_is_not_evicted() {
    let (home, _server) = filled();
    let before = listing(home.path());
    let finished = run(&home, Work::Evict { entry: "a".into(), key: "b-c".into() });
    assert_eq!((finished.fault().0, finished.is_permanent()), ("ForeignFile", true));
    assert!(finished.fault().1.contains("\"a-b\""), "{finished:?}");
    let theirs = Work::Prune { entry: "a".into(), offered: Vec::new(), dry_run: false };
    assert_eq!(run(&home, theirs).done(), "");
    assert_eq!(listing(home.path()), before);
}

#[test]
fn what_is_used_stays_and_its_users_are_named() {
    let (home, _server) = filled();
    std::fs::write(home.path().join("first"), overlay(BASE)).unwrap();
    std::fs::write(home.path().join("second"), overlay("first")).unwrap();
    let before = inode(home.path(), BASE);
    let finished = run(&home, evict());
    let (kind, message) = finished.fault();
    assert_eq!((kind, finished.is_permanent()), ("ImageInUse", false));
    assert!(message.contains("first, second"), "{message}");
    assert_eq!(run(&home, prune(false)).done(), "");
    // Of the chain, the upper one alone tells of it, too.
    std::fs::write(home.path().join("elsewhere"), overlay(BASE)).unwrap();
    std::fs::rename(home.path().join("elsewhere"), home.path().join("first")).unwrap();
    assert_eq!(run(&home, evict()).fault().0, "ImageInUse");
    assert_eq!(inode(home.path(), BASE), before);
    for name in ["first", "second"] {
        std::fs::remove_file(home.path().join(name)).unwrap();
    }
    run(&home, evict()).done();
}

#[test]
fn a_domain_anywhere_counts() {
    let (home, _server) = filled();
    let elsewhere = self::home();
    let disk = elsewhere.path().join("disk.qcow2");
    std::fs::write(&disk, overlay(home.path().join(BASE).to_str().unwrap())).unwrap();
    struct Stopped(std::path::PathBuf);
    impl BaseUsers for Stopped {
        fn disks(&self) -> Result<Vec<DomainDisk>, Fault> {
            Ok(vec![DomainDisk { domain: "stopped".into(), file: self.0.clone() }])
        }
    }
    let pool = DirectoryPool::open(home.path()).unwrap();
    let cache = Cache::new(pool, std::sync::Arc::new(Stopped(disk)));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let source = source("http://h/x");
    let fault = runtime.block_on(cache.evict(&source.entry, &source.key)).unwrap_err();
    assert!(fault.message.contains("domain stopped"), "{fault}");
    let pruned = runtime.block_on(cache.prune(&source.entry, Vec::new(), false)).unwrap();
    assert_eq!(pruned, []);
}

#[test]
fn what_is_worked_on_is_busy() {
    use super::agent::{Action, Said};
    use crate::image::steps::Step;
    let (home, server) = (home(), Server::of(&body()));
    let orders = Orders::new(home.path(), Image::at(&server.url).ensure());
    let holder = orders.clone().at(Step::MarkerLinked, Action::Stop).spawn();
    holder.await_stop();
    let finished = run(&home, evict());
    assert!(finished.fault().1.contains(&format!("process {}", holder.id())), "{finished:?}");
    // The holder stands with the fence, so that prune can't go on either.
    let mut pruning = Orders::new(home.path(), prune(false)).asking().spawn();
    assert_eq!(pruning.next(), Some(Said::At(Step::LockBusy)));
    pruning.tell("");
    assert_eq!(pruning.finish().done(), "");
    holder.signal(nix::sys::signal::Signal::SIGCONT);
    holder.finish().done();
}

/// Whoever works through libvirt asks for no fence: what was hashed may be another's by
/// the time that its marker is to be written, and is left to them then.
#[test]
fn what_changes_while_it_is_hashed_is_not_marked() {
    use super::agent::Action;
    use crate::image::steps::Step;
    for replaced in [BASE, MARKER] {
        let (home, _server) = filled();
        let verify = Work::Verify { entry: "a-b".into(), key: "c".into() };
        // Written to, so that its marker is to be.
        let path = home.path().join(BASE);
        std::fs::write(&path, b"damaged").unwrap();
        let orders = Orders::new(home.path(), verify).at(Step::Hashed, Action::Stop).spawn();
        orders.await_stop();
        std::fs::remove_file(home.path().join(replaced)).unwrap();
        std::fs::write(home.path().join(replaced), b"another's").unwrap();
        orders.signal(nix::sys::signal::Signal::SIGCONT);
        let finished = orders.finish();
        assert_eq!(finished.fault().0, "Busy", "{finished:?}");
        assert_eq!(std::fs::read(home.path().join(replaced)).unwrap(), b"another's");
    }
}

/// Whichever of the two comes first with the fence in hand, no overlay is left over a
/// base that is gone.
#[test]
fn an_overlay_that_is_being_made_and_an_eviction() {
    let digest = Sha256Digest::of(&body());
    let make = || Work::Overlay { name: "overlay".into(), base: BASE.into(), digest };
    let mut outcomes = std::collections::BTreeSet::new();
    for round in 0..8 {
        let (home, _server) = filled();
        let works = if round % 2 == 0 { [make(), evict()] } else { [evict(), make()] };
        let both = works.map(|work| Orders::new(home.path(), work).spawn());
        for process in both {
            process.finish();
        }
        let left = listing(home.path());
        let made = left.contains(&"overlay".to_owned());
        assert_eq!(made, left.contains(&BASE.to_owned()), "{left:?}");
        outcomes.insert(made);
    }
    assert!(!outcomes.is_empty());
    // One after the other, both refuse.
    let (home, _server) = filled();
    run(&home, make()).done();
    assert_eq!(run(&home, evict()).fault().0, "ImageInUse");
    std::fs::remove_file(home.path().join("overlay")).unwrap();
    run(&home, evict()).done();
    let finished = run(&home, make());
    assert_eq!(finished.fault(), ("BaseChanged", finished.fault().1));
    assert!(finished.fault().1.contains("it has no marker"), "{finished:?}");
}

#[test]
fn prune_tells_what_it_would_remove_and_removes_that() {
    let (home, server) = filled();
    let offered = Image::at(&server.url).of("a-b", "offered");
    let used = Image::at(&server.url).of("a-b", "used");
    let theirs = Image::at(&server.url).of("e", "theirs");
    for image in [&offered, &used, &theirs] {
        run(&home, image.clone().ensure()).done();
    }
    let write = |name: &str, bytes: &[u8]| std::fs::write(home.path().join(name), bytes).unwrap();
    write("overlay", &overlay("base-a-b-used.qcow2"));
    // Debris that a publication left, a marker that was not replaced, and what isn't
    // ours: without a lock, or with no entry.
    write("base-a-b-debris.qcow2", b"half");
    write("base-a-b-debris.qcow2.lock", b"");
    write("base-a-b-c.qcow2.json.new", b"{");
    write("base-a-b-foreign.qcow2", b"theirs");
    write("base-c.qcow2", b"legacy");
    write("base-c.qcow2.json", b"0123abcd");
    let before = listing(home.path());
    let listed = |dry_run| {
        let offered = vec![offered.clone()];
        let work = Work::Prune { entry: "a-b".into(), offered, dry_run };
        run(&home, work).done().to_owned()
    };
    let rows = listed(true);
    assert_eq!(listing(home.path()), before);
    let expected = [
        ("base-a-b-c.qcow2 400000 ", "doesn't offer it"),
        ("base-a-b-c.qcow2.json ", "doesn't offer it"),
        ("base-a-b-c.qcow2.json.new 1 ", "interrupted change"),
        ("base-a-b-debris.qcow2 4 ", "interrupted publication"),
        ("base-a-b-offered.qcow2 400000 ", "nothing uses it"),
        ("base-a-b-offered.qcow2.json ", "nothing uses it"),
    ];
    assert_eq!(rows.lines().count(), expected.len(), "{rows}");
    for (row, (name, reason)) in rows.lines().zip(expected) {
        assert!(row.contains(name) && row.contains(reason), "{row}");
    }
    assert_eq!(listed(false), rows);
    assert_eq!(listed(false), "");
    let gone = |name: &String| rows.lines().any(|row| row.contains(&format!("/{name} ")));
    let expected: Vec<_> = before.into_iter().filter(|name| !gone(name)).collect();
    assert_eq!(listing(home.path()), expected);
}

#[test]
fn damage_that_size_and_time_do_not_show_is_found() {
    let (home, server) = filled();
    assert_eq!(run(&home, verify()).done(), Sha256Digest::of(&body()).to_string());
    let path = home.path().join(BASE);
    rot(&path);
    std::fs::write(home.path().join("overlay"), overlay(BASE)).unwrap();
    let damaged = Sha256Digest::of(&std::fs::read(&path).unwrap());
    let finished = run(&home, verify());
    let (kind, message) = finished.fault();
    assert_eq!(kind, "BaseChanged");
    for digest in [damaged, Sha256Digest::of(&body())] {
        assert!(message.contains(&digest.to_string()), "{message}");
    }
    // From then on it is not used, and not replaced under the overlay either.
    assert_eq!(run(&home, Image::at(&server.url).ensure()).fault().0, "BaseChanged");
    let make =
        Work::Overlay { name: "o".into(), base: BASE.into(), digest: Sha256Digest::of(&body()) };
    assert_eq!(run(&home, make.clone()).fault().0, "BaseChanged");
    assert_eq!(server.requests(), 1);
    // Restored, it is found good, and used.
    std::fs::write(&path, body()).unwrap();
    run(&home, verify()).done();
    run(&home, make).done();
    assert_eq!(
        run(&home, Work::Verify { entry: "x".into(), key: "c".into() }).fault().0,
        "NoSuchImage"
    );
}

/// One download serves many entries; what is no good is not copied.
#[test]
fn another_entrys_base_of_the_same_digest_is_copied() {
    let (home, server) = filled();
    let twin = Image::at(&server.at("/mirror.qcow2")).of("e", "twin").pinned(&body());
    run(&home, twin.clone().ensure()).done();
    assert_eq!(server.requests(), 1);
    let copy = "base-e-twin.qcow2";
    assert_ne!(inode(home.path(), copy), inode(home.path(), BASE));
    assert!(std::fs::read(home.path().join(copy)).unwrap() == body());
    let MarkerState::Valid(told) = marker(home.path(), copy) else { panic!("no marker") };
    assert_eq!(told.copied_from.as_deref(), Some(BASE));
    assert!(told.pinned && told.url.ends_with("/mirror.qcow2"));
    // Without a digest of its own nobody can tell that it is the same.
    run(&home, Image::at(&server.url).of("e", "unpinned").ensure()).done();
    assert_eq!(server.requests(), 2);
    // A base whose bytes are not what its marker says is not what is wanted.
    for base in [BASE, copy, "base-e-unpinned.qcow2"] {
        rot(&home.path().join(base));
    }
    let finished = run(&home, twin.of("e", "again").ensure());
    assert!(finished.log.contains("so it is downloaded"), "{}", finished.log);
    assert_eq!(server.requests(), 3);
    assert!(std::fs::read(home.path().join("base-e-again.qcow2")).unwrap() == body());
}

/// A pool of the predecessor's works untouched: its bases, their markers in hex, and
/// the overlays over them.
#[test]
fn the_predecessors_files_stay() {
    let (home, server) = (home(), Server::of(&body()));
    let write = |name: &str, bytes: &[u8]| std::fs::write(home.path().join(name), bytes).unwrap();
    write("base-c.qcow2", &numbered(9, 300_000));
    write("base-c.qcow2.sha256", b"0123456789abcdef");
    write("base-0123456789abcdef.qcow2", &numbered(8, 300_000));
    write("vm.qcow2", &overlay("base-c.qcow2"));
    let before: Vec<_> = listing(home.path())
        .into_iter()
        .map(|name| {
            (inode(home.path(), &name), std::fs::read(home.path().join(&name)).unwrap(), name)
        })
        .collect();
    run(&home, Image::at(&server.url).ensure()).done();
    for entry in ["a-b", "a", "c", "0123456789abcdef"] {
        run(&home, Work::Prune { entry: entry.into(), offered: Vec::new(), dry_run: false }).done();
    }
    for (number, bytes, name) in before {
        assert_eq!(inode(home.path(), &name), number, "{name}");
        assert!(std::fs::read(home.path().join(&name)).unwrap() == bytes, "{name}");
    }
}
