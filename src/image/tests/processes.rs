//! Several processes over one pool.

use std::sync::Barrier;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::agent::{Action, Finished, Image, Orders, Outcome, Process, Said, Work};
use super::server::Server;
use super::*;
use crate::image::steps::Step;

const EIGHT: usize = 8;

fn body() -> Vec<u8> {
    numbered(3, 1 << 20)
}

fn finish(processes: Vec<Process>) -> Vec<Finished> {
    processes.into_iter().map(Process::finish).collect()
}

#[test]
fn eight_for_one_image_make_one_request() {
    let (home, server) = (home(), Server::of(&body()));
    let orders = Orders::new(home.path(), Image::at(&server.url).ensure());
    let processes = (0..EIGHT).map(|_| orders.spawn()).collect();
    for finished in finish(processes) {
        assert_eq!(finished.done(), Sha256Digest::of(&body()).to_string());
    }
    assert_eq!(server.requests(), 1);
    assert_eq!(listing(home.path()), [BASE, MARKER, LOCK]);
}

/// The server answers only when all have asked: none of them waits for another one.
#[test]
fn eight_for_different_images_go_side_by_side() {
    let all_asked = Barrier::new(EIGHT);
    let server = Server::with(move |mut at| {
        all_asked.wait();
        at.respond("200 OK", "", &body());
    });
    let home = home();
    let processes = (0..EIGHT)
        .map(|number| {
            let image = Image::at(&server.url).of("e", &number.to_string());
            Orders::new(home.path(), image.ensure()).spawn()
        })
        .collect();
    for finished in finish(processes) {
        finished.done();
    }
    assert_eq!(server.requests(), EIGHT);
    assert_eq!(listing(home.path()).len(), 3 * EIGHT);
}

/// A server that keeps silent holds up nobody but those who want its image.
#[test]
fn a_stalled_server_holds_up_nobody_else() {
    let (asked, was_asked) = std::sync::mpsc::channel();
    let stalled = Server::with(move |mut at| {
        let _ = asked.send(());
        let _ = std::io::Read::read(&mut at.stream, &mut [0]);
    });
    let (home, server) = (home(), Server::of(&body()));
    let slow = Orders::new(home.path(), Image::at(&stalled.url).of("e", "slow").ensure()).spawn();
    was_asked.recv().unwrap();
    Orders::new(home.path(), Image::at(&server.url).ensure()).run().done();
    assert!(marker(home.path(), BASE) != MarkerState::Absent);
    slow.finish().fault();
}

/// Of an image of any size, a bounded part is in memory.
#[test]
fn memory_is_bounded() {
    let body = numbered(6, 60 << 20);
    let (home, server) = (home(), Server::of(&body));
    let mut process = Orders::new(home.path(), Work::Told).spawn();
    assert_eq!(process.next(), Some(Said::Idle));
    let idle = memory(&process, "VmRSS:");
    process.tell(&serde_json::to_string(&Image::at(&server.url).pinned(&body).ensure()).unwrap());
    assert!(matches!(process.next(), Some(Said::Outcome(Outcome::Done(_)))));
    assert_eq!(process.next(), Some(Said::Idle));
    let most = memory(&process, "VmHWM:") - idle;
    assert!(most < 32 << 10, "{most} KiB more than idle");
}

/// A line of the process's status, in KiB.
fn memory(process: &Process, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn holder(home: &Path, url: &str, action: Action) -> Process {
    Orders::new(home, Image::at(url).ensure()).at(Step::Locked, action).spawn()
}

#[test]
fn those_who_wait_for_a_stopped_process_give_up_and_steal_nothing() {
    let (home, server) = (home(), Server::of(&body()));
    let holder = holder(home.path(), &server.url, Action::Stop);
    holder.await_stop();
    let patience = Duration::from_millis(600);
    let orders = Orders::new(home.path(), Image::at(&server.url).ensure()).patience(patience);
    for finished in finish((0..3).map(|_| orders.spawn()).collect()) {
        let (kind, message) = finished.fault();
        assert_eq!((kind, finished.is_permanent()), ("Busy", false));
        let holder = format!("process {}", holder.id());
        assert!(message.contains(&holder) && message.contains(BASE), "{message}");
        // They said so meanwhile, and more than once.
        let waiting = format!("waiting for {holder}, which works on {BASE}; waited");
        assert!(finished.log.matches(&waiting).count() > 1, "{}", finished.log);
    }
    assert_eq!((server.requests(), listing(home.path())), (0, vec![LOCK.to_owned()]));
    // Once it goes on, all is as if nothing had been.
    holder.signal(Signal::SIGCONT);
    holder.finish().done();
    orders.run().done();
    assert_eq!(server.requests(), 1);
}

#[test]
fn whoever_waits_takes_over_from_one_that_dies() {
    let (home, server) = (home(), Server::of(&body()));
    let holder = holder(home.path(), &server.url, Action::Stop);
    holder.await_stop();
    let orders = Orders::new(home.path(), Image::at(&server.url).ensure()).asking();
    let mut waiting = orders.spawn();
    assert_eq!(waiting.next(), Some(Said::At(Step::LockBusy)));
    holder.signal(Signal::SIGKILL);
    assert!(holder.finish().was_killed());
    // From now on it goes on by itself.
    for _ in 0..100 {
        waiting.tell("");
    }
    waiting.finish().done();
    assert_eq!(server.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_can_be_called_off() {
    let (home, server) = (home(), Server::of(&body()));
    let holder = holder(home.path(), &server.url, Action::Stop);
    holder.await_stop();
    let cache =
        Cache::new(DirectoryPool::open(home.path()).unwrap(), std::sync::Arc::new(NoDomains));
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    let source = source(&server.url);
    let wait = cache.ensure(&source, &progress, &cancel);
    let call_off = async {
        while !matches!(progress.stage(), Stage::Waiting(_)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(wait, call_off);
    assert_eq!(outcome.unwrap_err().kind, crate::model::FaultKind::Canceled);
    assert_eq!(server.requests(), 0);
}

/// The fence is not the lock: a download that hangs keeps nobody from publishing.
#[test]
fn who_stops_with_the_fence_is_named() {
    let (home, server) = (home(), Server::of(&body()));
    let orders = Orders::new(home.path(), Image::at(&server.url).ensure());
    let stopped = orders.clone().at(Step::Fenced, Action::Stop).spawn();
    stopped.await_stop();
    let other = Image::at(&server.url).of("e", "other");
    let mut waiting = Orders::new(home.path(), other.ensure()).asking().spawn();
    let busy = std::iter::from_fn(|| {
        let said = waiting.next();
        waiting.tell("");
        said
    })
    .any(|said| said == Said::At(Step::FenceBusy));
    assert!(busy);
    stopped.signal(Signal::SIGCONT);
    stopped.finish().done();
    for _ in 0..10_000 {
        waiting.tell("");
    }
    waiting.finish().done();
}

/// A base that can't get its marker is taken back.
#[test]
fn a_marker_that_can_not_be_linked_takes_its_base_back() {
    let (home, server) = (home(), Server::of(&body()));
    let mut process = Orders::new(home.path(), Image::at(&server.url).ensure()).asking().spawn();
    while let Some(said) = process.next() {
        match said {
            Said::At(Step::LinkDurable) => {
                std::fs::create_dir(home.path().join(MARKER)).unwrap();
            }
            Said::Outcome(outcome) => {
                assert!(format!("{outcome:?}").contains("ForeignFile"), "{outcome:?}");
            }
            _ => {}
        }
        process.tell("");
    }
    assert_eq!(listing(home.path()), [MARKER, LOCK]);
}

/// Whenever a file of somebody else's appears at the base's name, it is not clobbered.
#[test]
fn a_foreign_file_that_appears_meanwhile_stays() {
    let moments = [
        Step::Locked,
        Step::Fetching,
        Step::Received,
        Step::Durable,
        Step::MarkerDurable,
        Step::Fenced,
        // Between the last look and the publication.
        Step::OldMarkerRemoved,
    ];
    for moment in moments {
        let (home, server) = (home(), Server::of(&body()));
        let mut process =
            Orders::new(home.path(), Image::at(&server.url).ensure()).asking().spawn();
        let mut outcome = None;
        while let Some(said) = process.next() {
            match said {
                Said::At(step) if step == moment => {
                    std::fs::write(home.path().join(BASE), b"theirs").unwrap();
                }
                Said::Outcome(of) => outcome = Some(of),
                _ => {}
            }
            process.tell("");
        }
        if moment == Step::Locked {
            // Before it was looked at, it is what any file of that name is: debris.
            assert!(std::fs::read(home.path().join(BASE)).unwrap() == body());
            continue;
        }
        let fault = format!("{outcome:?}");
        assert!(fault.contains("ForeignFile") && fault.contains("permanent: true"), "{fault}");
        assert_eq!(std::fs::read(home.path().join(BASE)).unwrap(), b"theirs", "{moment:?}");
        assert_eq!(listing(home.path()), [BASE, LOCK], "{moment:?}");
    }
}
