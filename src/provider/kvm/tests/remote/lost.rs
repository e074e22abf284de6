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
