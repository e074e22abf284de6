//! More than one writer, or one that comes back.

use super::*;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn of_any_number_of_writers_one_publishes() {
    let picture = picture(4);
    let completed = Arc::new(AtomicU64::new(0));
    let source = picture.source("many", "x", true);
    let writers: Vec<_> = (0..5)
        .map(|_| {
            let completed = completed.clone();
            let hook = Hook::new(move |step| {
                if step == Step::Completed {
                    completed.fetch_add(1, Ordering::SeqCst);
                }
            });
            Writer::new("many", Pace { hook, ..Pace::default() })
        })
        .collect();
    let all = writers.iter().map(|writer| writer.ensure_at_last(&source));
    let bases = futures_util::future::join_all(all).await;
    assert!(bases.iter().all(|base| base.digest == picture.digest));
    assert_eq!(completed.load(Ordering::SeqCst), 1);
    assert_eq!(digest_there(&source.base_name()), picture.digest.to_string());
}

/// The one that was taken for dead wakes up at any step, and finds that it has lost.
/// The other's bytes are others: an image without a digest has changed meanwhile.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn who_was_taken_for_dead_changes_nothing_any_more() {
    let (old, new) = (picture(5), picture(6));
    // With its own sense of time, and without: the fence alone has to hold.
    for (entry, lease) in [("late", Duration::from_secs(2)), ("later", Duration::from_secs(180))] {
        for (key, wanted) in STEPS {
            let (mut pace, stop) = stopping(wanted);
            pace.lease = lease;
            let first = Writer::new(entry, pace);
            let task = first.begin(&old.source(entry, key, false));
            stop.wait();
            let second =
                Writer::new(entry, Pace { dead_after: Duration::from_secs(3), ..Pace::default() });
            let source = new.source(entry, key, false);
            let completed = key == "completed";
            let base = if completed {
                // It is published, in fact; another URL is refused.
                let fault = second.ensure(&source).await.unwrap_err();
                assert_eq!(fault.kind, FaultKind::UrlMismatch, "{fault}");
                second.ensure(&old.source(entry, key, false)).await.unwrap()
            } else {
                let fault = second.ensure(&source).await.unwrap_err();
                assert_eq!(fault.kind, FaultKind::Busy, "{fault}");
                second.ensure_at_last(&source).await
            };
            second
                .storage
                .overlay(&base, &format!("proxy-{entry}-{key}.qcow2"), 32 << 20)
                .await
                .unwrap();
            stop.go.send(()).unwrap();
            let outcome = tokio::time::timeout(LIMIT, task).await.unwrap().unwrap();
            let expected = if completed { &old } else { &new };
            match outcome {
                Err(fault) => assert_eq!(fault.kind, FaultKind::Busy, "{key}: {fault}"),
                Ok(_) => assert!(completed, "{key}: it believes that it has published"),
            }
            assert_eq!(digest_there(&base.file), expected.digest.to_string(), "{entry} {key}");
            second.storage.unchanged(&base).await.unwrap();
        }
    }
}

/// Bytes that arrive as others are found by reading them back, and go; who was held up
/// before it could take them away takes away nothing of another's.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn wrong_bytes_are_found_and_taken_back() {
    let picture = picture(7);
    let source = picture.source("wrong", "x", true);
    let damage = format!(
        "printf XYZ | dd of={POOL}/{} bs=1 seek=1000000 conv=notrunc status=none",
        source.base_name()
    );
    let once = AtomicBool::new(true);
    let hook = Hook::new(move |step| {
        if step == Step::Uploaded && once.swap(false, Ordering::SeqCst) {
            there(&damage);
        }
    });
    let writer = Writer::new("wrong", Pace { hook, ..Pace::default() });
    let fault = writer.ensure(&source).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::PoolUnavailable, "{fault}");
    assert!(fault.message.contains("reads back with the sha256"), "{fault}");
    assert_eq!(names_there("base-wrong"), "", "something was left");
    writer.ensure(&source).await.unwrap();
    assert_eq!(digest_there(&source.base_name()), picture.digest.to_string());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn who_takes_back_late_takes_nothing_of_anothers() {
    let picture = picture(8);
    let source = picture.source("back", "x", true);
    let damage = format!(
        "printf XYZ | dd of={POOL}/{} bs=1 seek=1000000 conv=notrunc status=none",
        source.base_name()
    );
    let (pace, stop) = stopping(|step| step == Step::Withdrawing);
    let stopped = pace.hook.clone();
    let hook = Hook::new(move |step| {
        if step == Step::Uploaded {
            there(&damage);
        }
        stopped.pass(step);
    });
    let first = Writer::new("back", Pace { hook, ..pace });
    let task = first.begin(&source);
    stop.wait();
    let second =
        Writer::new("back", Pace { dead_after: Duration::from_secs(3), ..Pace::default() });
    let base = second.ensure_at_last(&source).await;
    stop.go.send(()).unwrap();
    let fault = task.await.unwrap().unwrap_err();
    assert_eq!(fault.kind, FaultKind::PoolUnavailable, "{fault}");
    assert_eq!(digest_there(&base.file), picture.digest.to_string());
    second.storage.unchanged(&base).await.unwrap();
}

/// What a daemon that died has left, it takes up at once when it is started again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn what_it_left_itself_is_swept_at_once() {
    let picture = picture(12);
    for (key, wanted) in STEPS {
        let source = picture.source("own", key, true);
        let (pace, stop) = stopping(wanted);
        let first = Writer::new("own", pace);
        let task = first.begin(&source);
        stop.wait();
        // Its thread is stopped for good, as far as the pool can tell.
        let again = first.again("own", Pace::default());
        again.ensure(&source).await.unwrap_or_else(|fault| panic!("{key}: {fault}"));
        assert_eq!(digest_there(&source.base_name()), picture.digest.to_string());
        drop(stop);
        let _ = task.await;
        again.storage.unchanged(&again.ensure(&source).await.unwrap()).await.unwrap();
    }
}
