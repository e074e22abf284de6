//! The wall clock jumps: waits are by another clock, and go on. The daemon's own clock
//! is faked, since nobody may set this machine's.

use std::path::PathBuf;

use serde_json::json;

use crate::bench::Bench;

fn library() -> PathBuf {
    let directories = std::fs::read_dir("/usr/lib").expect("/usr/lib");
    let candidates = directories.flatten().map(|d| d.path().join("faketime/libfaketime.so.1"));
    let found = candidates.into_iter().find(|path| path.exists());
    found.expect("libfaketime (Debian: package libfaketime)")
}

#[test]
fn attempts_go_on_when_the_clock_jumps() {
    let mut bench = Bench::new();
    let clock = bench.home.path().join("clock");
    std::fs::write(&clock, "+0").unwrap();
    bench.configure(&json!({
        "images": { "a": { "url": "http://127.0.0.1:9/x.qcow2" } },
        "providers": { "home": { "uri": "test:///default", "pool": "nowhere" } }
    }));
    bench.start_with(&[
        ("LD_PRELOAD", library().as_os_str()),
        ("FAKETIME_TIMESTAMP_FILE", clock.as_os_str()),
        ("FAKETIME_NO_CACHE", "1".as_ref()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".as_ref()),
    ]);
    bench.create("web", "2 Provider s home Image s a").unwrap();
    let next = || bench.property("web", "NextAttempt").and_then(|at| at.as_u64()).unwrap_or(0);
    bench.wait("a first attempt", || next() > 0);
    let ten_years = 10 * 365 * 24 * 3600 * 1_000_000;
    for (jump, forward) in [("+3650d", true), ("-3650d", false)] {
        let before = next();
        std::fs::write(&clock, jump).unwrap();
        bench.wait("an attempt by the new clock", || {
            let (low, high) = if forward { (before, next()) } else { (next(), before) };
            high.saturating_sub(low) > ten_years / 2
        });
        let since = next();
        bench.wait("the attempt after it", || next() > since);
    }
}
