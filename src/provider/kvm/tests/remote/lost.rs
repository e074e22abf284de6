//! Bases and markers that have gone from under what uses them.

use super::*;

/// Overwrites what the server offers.
fn offer(picture: &Picture, other: &Picture) {
    std::fs::copy(other.file.path(), picture.file.path()).unwrap();
}

/// A base that is missed comes back as what it was, and never as anything else.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn a_base_that_is_missed_comes_back_only_as_what_it_was() {
    let (picture, kept, changed) = (picture(13), picture(13), picture(14));
    let source = picture.source("missed", "x", false);
    let writer = Writer::new("missed", Pace::default());
    let base = writer.ensure(&source).await.unwrap();
    writer.storage.overlay(&base, "proxy-missed.qcow2", 32 << 20).await.unwrap();
    let lose = |what: &str| there(&format!("cd {POOL}; rm {what}; virsh -q pool-refresh default"));

    lose(&base.file);
    offer(&picture, &changed);
    // Another daemon, whose spool has nothing of it yet.
    let other = Writer::new("missed", Pace::default());
    let fault = other.ensure(&source).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::DigestMismatch, "{fault}");
    assert_eq!(names_there("base-missed"), format!("{}.json", base.file));
    assert!(matches!(marker_there(&base.file), MarkerState::Valid(_)));
    offer(&picture, &kept);
    assert_eq!(other.ensure_at_last(&source).await.digest, picture.digest);
    writer.storage.unchanged(&base).await.unwrap();

    // Without its marker nothing tells what it was, but a digest that is asked for.
    lose(&format!("{0} {0}.json", base.file));
    let fault = writer.ensure(&source).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::BaseChanged, "{fault}");
    assert!(fault.message.contains("proxy-missed.qcow2"), "{fault}");
    assert_eq!(names_there("base-missed"), "");
    writer.ensure(&picture.source("missed", "x", true)).await.unwrap();
    writer.storage.unchanged(&base).await.unwrap();
}

/// Who removes a base and dies in the middle has taken its marker, from under an overlay
/// perhaps: it is found to be what it was, and can be used again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn what_a_removal_that_died_has_left_is_used_again() {
    let picture = picture(15);
    let source = picture.source("died", "x", true);
    let (pace, stop) = stopping(|step| step == Step::Unmarked);
    let writer = Writer::new("died", pace);
    let base = writer.ensure(&source).await.unwrap();
    let inode = there(&format!("stat -c %i {POOL}/{}", base.file));
    let (storage, key) = (writer.storage.clone(), source.key.clone());
    let evicted = tokio::spawn(async move { storage.evict(&key).await });
    stop.wait();
    there(&format!(
        "qemu-img create -q -f qcow2 -F raw -b {POOL}/{} {POOL}/proxy-died.qcow2",
        base.file
    ));
    let other = Writer::new("died", Pace::default());
    let fault = other.storage.unchanged(&base).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Busy, "{fault}");
    other.ensure(&source).await.unwrap();
    other.storage.unchanged(&base).await.unwrap();
    assert_eq!(there(&format!("stat -c %i {POOL}/{}", base.file)), inode);
    // And should it only have slept, it takes nothing any more.
    stop.go.send(()).unwrap();
    let fault = evicted.await.unwrap().unwrap_err();
    assert_eq!(fault.kind, FaultKind::Busy, "{fault}");
    other.storage.unchanged(&base).await.unwrap();
}

/// Cut short in whichever way, it still is known what it was that is missed, and what was
/// made of it by then is in nobody's way.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn a_base_that_is_missed_outlives_interruptions() {
    let (kept, changed) = (picture(16), picture(17));
    for (key, canceled) in [("died", false), ("canceled", true)] {
        let picture = picture(16);
        let source = picture.source("again", key, false);
        let base = Writer::new("again", Pace::default()).ensure(&source).await.unwrap();
        let overlay = format!("proxy-again-{key}.qcow2");
        Writer::new("again", Pace::default())
            .storage
            .overlay(&base, &overlay, 32 << 20)
            .await
            .unwrap();
        there(&format!("cd {POOL}; rm {}; virsh -q pool-refresh default", base.file));
        let (pace, stop) = stopping(half);
        let writer = Writer::new("again", pace);
        let cancel = CancellationToken::new();
        let (storage, work, called_off) = (writer.storage.clone(), source.clone(), cancel.clone());
        let task =
            tokio::spawn(
                async move { storage.ensure(&work, &Progress::default(), &called_off).await },
            );
        stop.wait();
        if canceled {
            cancel.cancel();
            stop.go.send(()).unwrap();
            let fault = task.await.unwrap().unwrap_err();
            assert_eq!(fault.kind, FaultKind::Canceled, "{fault}");
            assert_eq!(names_there(&base.file), format!("{}.json", base.file));
        }
        offer(&picture, &changed);
        let after = writer.again("again", Pace::default());
        after.forget();
        let fault = after.ensure(&source).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::DigestMismatch, "{key}: {fault}");
        offer(&picture, &kept);
        let restored = after.ensure(&source).await.unwrap_or_else(|fault| panic!("{key}: {fault}"));
        assert_eq!(restored.digest, kept.digest);
        assert_eq!(digest_there(&base.file), kept.digest.to_string());
        drop(stop);
        after.storage.unchanged(&base).await.unwrap();
    }
}

/// Who only looked whether a base can be used as it is has made nothing: nobody takes that
/// for half of one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn an_adoption_that_dies_leaves_the_base_as_it_was() {
    let picture = picture(18);
    let source = picture.source("look", "x", true);
    let base = Writer::new("look", Pace::default()).ensure(&source).await.unwrap();
    let inode = there(&format!("stat -c %i {POOL}/{}", base.file));
    there(&format!("cd {POOL}; rm {}.json; virsh -q pool-refresh default", base.file));
    // It hashes without asking anybody to send the image.
    std::fs::write(picture.file.path(), "gone").unwrap();
    let (pace, stop) = stopping(|step| step == Step::Begun);
    let writer = Writer::new("look", pace);
    let task = writer.begin(&source);
    stop.wait();
    let after = writer.again("look", Pace::default());
    let adopted = after.ensure(&source).await.unwrap();
    assert_eq!(adopted.virtual_size, base.virtual_size);
    assert_eq!(there(&format!("stat -c %i {POOL}/{}", base.file)), inode);
    drop(stop);
    assert_eq!(task.await.unwrap().unwrap_err().kind, FaultKind::Busy);
    after.storage.unchanged(&base).await.unwrap();
}

/// What somebody else has left is pruned once it has not moved for long enough, also by
/// whoever looks first and prunes then.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn what_another_daemon_left_is_pruned_in_the_end() {
    let picture = picture(19);
    let (pace, stop) = stopping(half);
    let dead = Writer::new("leftover", pace);
    let task = dead.begin(&picture.source("leftover", "x", true));
    stop.wait();
    let pace = Pace { dead_after: Duration::from_secs(2), ..Pace::default() };
    let storage = Writer::new("leftover", pace).storage;
    assert_eq!(storage.prune(Vec::new(), true).await.unwrap(), []);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let listed = storage.prune(Vec::new(), true).await.unwrap();
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert_eq!(storage.prune(Vec::new(), false).await.unwrap(), listed);
    assert_eq!(names_there("base-leftover"), "");
    drop(stop);
    assert_eq!(task.await.unwrap().unwrap_err().kind, FaultKind::Busy);
    assert_eq!(names_there("base-leftover"), "");
}
