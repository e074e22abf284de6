//! What breaks a connection in the middle of a publication.

use super::*;

/// All of them at once: the line is cut for all. With `lease` they go on by themselves,
/// and without they give up, and begin anew.
async fn cut_at_every_step(entry: &str, lease: Duration) {
    let picture = picture(1);
    let mut publications = Vec::new();
    for (key, wanted) in STEPS {
        let (mut pace, stop) = stopping(wanted);
        pace.lease = lease;
        let writer = Writer::new(entry, pace);
        let source = picture.source(entry, key, true);
        // One after the other: sshd turns some of too many away.
        writer.storage.survey(Vec::new()).await.unwrap();
        publications.push((writer.begin(&source), writer, source, stop));
    }
    publications.iter().for_each(|(.., stop)| stop.wait());
    // The last of them is ready for all others already.
    let early = Writer::new(entry, Pace::default());
    let used = early.ensure_at_last(&picture.source(entry, "completed", true)).await;
    let overlay = format!("proxy-{entry}.qcow2");
    early.storage.overlay(&used, &overlay, 32 << 20).await.unwrap();
    let line = Cut::new();
    for (.., stop) in &publications {
        stop.go.send(()).unwrap();
    }
    // Until ssh has noticed, and given up.
    let dead = Instant::now() + Duration::from_secs(25);
    while Instant::now() < dead {
        for (task, _, source, _) in &publications {
            let name = source.base_name();
            let may_end = lease < LIMIT || name == used.file;
            assert!(!task.is_finished() || may_end, "{name} ended");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    drop(line);
    revive();
    publications.iter().for_each(|(_, _, source, _)| nothing_unverified(&source.base_name()));
    for (task, writer, source, _) in publications {
        let name = source.base_name();
        let outcome = tokio::time::timeout(LIMIT, task).await.expect(&name).unwrap();
        match outcome {
            // What is sent when it is taken up shows that its writer lives.
            Ok(_) => assert!(was_taken_up(&name), "{name}: nothing shows that it went on"),
            // It may have arrived, and so nothing is done about it but to look again.
            Err(fault) if lease < LIMIT || name == used.file => {
                assert_eq!(fault.kind, FaultKind::ProviderUnavailable, "{name}: {fault}");
                nothing_unverified(&name);
                writer.ensure_at_last(&source).await;
            }
            Err(fault) => panic!("{name} did not go on: {fault}"),
        }
        assert_eq!(digest_there(&name), picture.digest.to_string());
        assert!(matches!(marker_there(&name), MarkerState::Valid(_)), "{name}");
        // Whoever comes later finds it ready.
        Writer::new(entry, Pace::default()).ensure(&source).await.unwrap();
    }
    assert_eq!(names_there(&overlay), overlay);
    early.storage.unchanged(&used).await.unwrap();
}

/// Whether a marker was begun on, and then written again over another connection.
fn was_taken_up(base: &str) -> bool {
    there(&format!("grep -c '\t' {POOL}/{base}.json || true")) != "0"
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn a_line_that_is_cut_at_any_step_is_gone_on_with() {
    cut_at_every_step("cut", Pace::default().lease).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn a_line_that_is_cut_for_too_long_has_it_begun_anew() {
    cut_at_every_step("gone", Duration::from_secs(5)).await;
}

/// The programs that this process has started.
fn children() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("children")).ok()
    };
    let all: Vec<_> = tasks.filter_map(of).collect();
    all.iter().flat_map(|pids| pids.split_whitespace()).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn ssh_or_libvirtd_may_die_in_the_middle() {
    for (key, kill) in [("ssh", true), ("libvirtd", false)] {
        let picture = picture(2);
        let (pace, stop) = stopping(half);
        let writer = Writer::new("killed", pace);
        let source = picture.source("killed", key, true);
        let task = writer.begin(&source);
        stop.wait();
        if kill {
            let ssh = children();
            assert!(ssh.len() >= 2, "one for calls, one for bulk: {ssh:?}");
            here(&format!("kill -9 {}", ssh.join(" ")));
            revive();
        } else {
            there("systemctl kill -s KILL libvirtd");
        }
        stop.go.send(()).unwrap();
        let base = tokio::time::timeout(LIMIT, task).await.unwrap().unwrap().unwrap();
        assert_eq!(digest_there(&base.file), picture.digest.to_string(), "{key}");
    }
}
