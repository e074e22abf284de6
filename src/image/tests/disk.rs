//! Disks that are full, read-only, or suddenly another one: real file systems, on
//! loop devices.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::agent::{Action, Finished, Image, Orders, Work, fill};
use super::server::Server;
use super::*;
use crate::image::inspect::tests::overlay;
use crate::image::steps::Step;

fn body() -> Vec<u8> {
    numbered(4, 6 << 20)
}

/// A directory put in the place of the pool's in mid-download gets nothing.
#[test]
fn a_directory_put_in_the_pools_place_is_not_written_to() {
    let outer = home();
    let (path, moved) = (outer.path().join("pool"), outer.path().join("moved"));
    std::fs::create_dir(&path).unwrap();
    let (from, to) = (path.clone(), moved.clone());
    let server = Server::with(move |mut at| {
        if at.number == 0 {
            std::fs::rename(&from, &to).unwrap();
            std::fs::create_dir(&from).unwrap();
        }
        at.respond("200 OK", "", &body());
    });
    let orders = Orders::new(&path, Image::at(&server.url).ensure());
    let finished = orders.run();
    let (kind, message) = finished.fault();
    assert_eq!((kind, finished.is_permanent()), ("PoolUnavailable", false));
    assert!(message.contains("another directory was put in its place"), "{message}");
    assert_eq!((listing(&path), listing(&moved)), (vec![], vec![LOCK.to_owned()]));
    orders.run().done();
    assert_eq!(listing(&path), [BASE, MARKER, LOCK]);
}

/// A file system of its own, mounted while this lives.
struct Disk {
    home: TempDir,
    mounts: Vec<PathBuf>,
}

fn run(command: &str, arguments: &[&str]) {
    let output = Command::new(command).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{command} {arguments:?} (as root, with loop devices): {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Disk {
    /// An ext4 of `mib` MiB.
    fn new(mib: u64) -> Self {
        let home = home();
        Self { mounts: vec![mount(home.path(), mib, EXT4)], home }
    }

    /// An XFS, which can share blocks between files.
    fn sharing() -> Self {
        let home = home();
        Self { mounts: vec![mount(home.path(), 320, XFS)], home }
    }

    /// An ext4 of `mib` MiB on a disk that in truth has only `real` MiB.
    fn thin(mib: u64, real: u64) -> Self {
        let home = home();
        let below = home.path().join("below");
        std::fs::create_dir(&below).unwrap();
        let size = format!("size={real}m");
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", below.to_str().unwrap()]);
        let mounts = vec![below.clone(), mount(&below, mib, EXT4)];
        Self { home, mounts }
    }

    fn pool(&self) -> &Path {
        self.mounts.last().unwrap()
    }

    fn remount(&self, how: &str) {
        run("mount", &["-o", &format!("remount,{how}"), self.pool().to_str().unwrap()]);
    }

    fn listing(&self) -> Vec<String> {
        listing(self.pool()).into_iter().filter(|name| name != "lost+found").collect()
    }

    fn free(&self) -> u64 {
        DirectoryPool::open(self.pool()).unwrap().available().unwrap()
    }
}

const EXT4: &[&str] = &["mkfs.ext4", "-q", "-m0"];
const XFS: &[&str] = &["mkfs.xfs", "-q"];

fn mount(home: &Path, mib: u64, mkfs: &[&str]) -> PathBuf {
    let (image, pool) = (home.join("disk.img"), home.join("pool"));
    std::fs::create_dir(&pool).unwrap();
    std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
    run(mkfs[0], &[&mkfs[1..], &[image.to_str().unwrap()]].concat());
    run("mount", &["-o", "loop", image.to_str().unwrap(), pool.to_str().unwrap()]);
    pool
}

impl Drop for Disk {
    fn drop(&mut self) {
        for mount in self.mounts.iter().rev() {
            if !unmount(mount) {
                let home = self.home.path().display();
                eprintln!("{} is still mounted, below {home}", mount.display());
            }
        }
    }
}

/// Unmounts, waiting for the kernel to let go of a loop device on it, which it does a
/// moment after that device's own file system is gone.
fn unmount(mount: &Path) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let output = Command::new("umount").arg(mount).output();
        if output.is_ok_and(|output| output.status.success()) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_full(finished: &Finished, words: &str) {
    let (kind, message) = finished.fault();
    assert_eq!((kind, finished.is_permanent()), ("NoSpace", false), "{message}");
    assert!(message.contains(words) && message.contains("free some"), "{message}");
}

/// Without a length, so that it shows only while writing.
fn unannounced() -> Server {
    Server::with(|mut at| {
        at.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
        for piece in body().chunks(1 << 16) {
            at.send(format!("{:x}\r\n", piece.len()).as_bytes());
            at.send(&[piece, b"\r\n"].concat());
        }
        at.send(b"0\r\n\r\n");
    })
}

#[test]
#[ignore = "needs root and loop devices: make test"]
fn a_disk_that_is_full_takes_nothing_and_keeps_nothing() {
    let disk = Disk::new(16);
    std::fs::write(disk.pool().join("theirs"), vec![1; 8 << 20]).unwrap();
    let before = disk.free();
    // It is seen before the first byte is written, where the length is known.
    let server = Server::of(&body());
    let orders = Orders::new(disk.pool(), Image::at(&server.url).ensure());
    is_full(&orders.run(), "needs 6291456 bytes");
    // And while writing, where it isn't.
    let server = unannounced();
    let orders = Orders::new(disk.pool(), Image::at(&server.url).ensure());
    is_full(&orders.run(), BASE);
    assert_eq!(disk.listing(), [LOCK, "theirs"]);
    assert!(before - disk.free() < 65536, "room was lost");
    std::fs::remove_file(disk.pool().join("theirs")).unwrap();
    orders.run().done();
    assert_eq!(disk.listing(), [BASE, MARKER, LOCK]);
}

/// The disk says that it has room, and has none when it comes to it.
#[test]
#[ignore = "needs root and loop devices: make test"]
fn a_disk_that_turns_out_full_at_fsync_publishes_nothing() {
    // The larger one is flushed before its end: that fsync fails, and the kernel tells
    // such a failure only once.
    for (mib, real) in [(6, 5), (48, 20)] {
        let disk = Disk::thin(96, real);
        let server = Server::of(&numbered(4, mib << 20));
        let finished = Orders::new(disk.pool(), Image::at(&server.url).ensure()).run();
        let (kind, message) = finished.fault();
        // The kernel tells either ENOSPC or EIO of such a disk.
        assert!(["NoSpace", "PoolUnavailable"].contains(&kind), "{message}");
        assert!(!finished.is_permanent() && message.contains("can't be written"), "{message}");
        assert_eq!(disk.listing().iter().filter(|name| *name != LOCK).count(), 0);
    }
}

#[test]
#[ignore = "needs root and loop devices: make test"]
fn a_disk_that_is_full_when_the_marker_comes_publishes_nothing() {
    for moment in [Step::Verified, Step::Durable] {
        let disk = Disk::new(16);
        let filler = disk.pool().join("filler");
        let server = Server::of(&body());
        let orders = Orders::new(disk.pool(), Image::at(&server.url).ensure());
        let finished = orders.clone().at(moment, Action::Fill(filler.clone())).run();
        is_full(&finished, MARKER);
        assert_eq!(disk.listing(), [LOCK, "filler"]);
        std::fs::remove_file(filler).unwrap();
        orders.run().done();
        assert_eq!(disk.listing(), [BASE, MARKER, LOCK]);
    }
}

/// A marker that can't be replaced stays what it was, and so does what it says.
#[test]
#[ignore = "needs root and loop devices: make test"]
fn a_disk_that_is_full_when_a_marker_is_to_change_keeps_the_old_one() {
    let disk = Disk::new(16);
    let filler = disk.pool().join("filler");
    let server = Server::of(&body());
    Orders::new(disk.pool(), Image::at(&server.url).ensure()).run().done();
    let before = std::fs::read(disk.pool().join(MARKER)).unwrap();
    let pinned = Orders::new(disk.pool(), Image::at(&server.url).pinned(&body()).ensure());
    is_full(&pinned.clone().at(Step::Hashed, Action::Fill(filler.clone())).run(), MARKER);
    assert_eq!(std::fs::read(disk.pool().join(MARKER)).unwrap(), before);
    assert_eq!(disk.listing(), [BASE, MARKER, LOCK, "filler"]);
    // What is there can be used, and evicted, all the same.
    Orders::new(disk.pool(), Image::at(&server.url).ensure()).run().done();
    let evict = Work::Evict { entry: "a-b".into(), key: "c".into() };
    fill(&filler);
    Orders::new(disk.pool(), evict).run().done();
    std::fs::remove_file(filler).unwrap();
    pinned.run().done();
}

#[test]
#[ignore = "needs root and loop devices: make test"]
fn a_pool_that_is_read_only_is_named_and_still_serves() {
    let disk = Disk::new(32);
    let server = Server::of(&body());
    let orders = Orders::new(disk.pool(), Image::at(&server.url).ensure());
    orders.run().done();
    disk.remount("ro");
    orders.run().done();
    let rows = [
        Image::at(&server.url).of("e", "other").ensure(),
        Image::at(&server.url).pinned(&body()).ensure(),
        Work::Evict { entry: "a-b".into(), key: "c".into() },
    ];
    for work in rows {
        let finished = Orders::new(disk.pool(), work).run();
        let (kind, message) = finished.fault();
        assert_eq!((kind, finished.is_permanent()), ("PoolUnavailable", false));
        assert!(message.contains("read-only") && message.contains("ReadWritePaths"), "{message}");
    }
    assert_eq!(server.requests(), 1);
    disk.remount("rw");
    std::fs::write(disk.pool().join("theirs"), overlay(BASE)).unwrap();
    Orders::new(disk.pool(), Image::at(&server.url).pinned(&body()).ensure()).run().done();
}

/// Where the file system can, another entry's copy takes no room of its own.
#[test]
#[ignore = "needs root and loop devices: make test"]
fn a_copy_shares_its_blocks_where_the_file_system_can() {
    let disk = Disk::sharing();
    let body = numbered(4, 48 << 20);
    let server = Server::of(&body);
    Orders::new(disk.pool(), Image::at(&server.url).ensure()).run().done();
    run("sync", &[]);
    let before = disk.free();
    let twin = Image::at(&server.url).of("e", "twin").pinned(&body);
    Orders::new(disk.pool(), twin.ensure()).run().done();
    run("sync", &[]);
    let taken = before.saturating_sub(disk.free());
    assert!(taken < 4 << 20, "{taken} bytes more are taken");
    assert!(std::fs::read(disk.pool().join("base-e-twin.qcow2")).unwrap() == body);
    assert_eq!(server.requests(), 1);
}
