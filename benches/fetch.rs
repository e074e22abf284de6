//! What the cache costs on top of a download: fetch, verification and publication of
//! 1 GiB from this machine, against `curl` to disk with fsync, and against `curl`
//! followed by `sha256sum`, all in the same run. Prints ratios. `make bench`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark may")]

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxyd::image::{BaseUsers, Cache, DirectoryPool, DomainDisk, ImageSource, Progress};
use proxyd::model::{
    EntryName, Fault, ImageFormat, ImageKey, Pin, ResourceUrl, Sha256Digest, UrlOrigin,
};
use tokio_util::sync::CancellationToken;

const SIZE: u64 = 1 << 30;
const ROUNDS: usize = 9;
/// Set for the process that fetches: URL, digest and pool.
const VARIABLE: &str = "PROXYD_BENCH_FETCH";

fn main() {
    match std::env::var(VARIABLE) {
        Ok(orders) => fetch(&orders),
        Err(_) => compare(),
    }
}

struct NoDomains;

impl BaseUsers for NoDomains {
    fn disks(&self) -> Result<Vec<DomainDisk>, Fault> {
        Ok(Vec::new())
    }
}

/// Fetches as the daemon does, and prints how much memory that took, in KiB.
fn fetch(orders: &str) {
    let [url, digest, pool] = orders.split('|').collect::<Vec<_>>().try_into().unwrap();
    let source = ImageSource {
        entry: EntryName::new("bench").unwrap(),
        key: ImageKey::new("image").unwrap(),
        url: ResourceUrl::parse(url, UrlOrigin::Api).unwrap(),
        pin: Pin::Digest(digest.parse().unwrap()),
        format: ImageFormat::Raw,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cache = Cache::new(DirectoryPool::open(Path::new(pool)).unwrap(), Arc::new(NoDomains));
    let idle = memory("VmRSS");
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    runtime.block_on(cache.ensure(&source, &progress, &cancel)).unwrap();
    println!("{}", memory("VmHWM") - idle);
}

fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A file that the page cache holds, served as fast as the kernel can.
fn serve(file: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/image.raw", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let file = file.clone();
            std::thread::spawn(move || answer(stream, &file));
        }
    });
    url
}

fn answer(mut stream: TcpStream, file: &Path) {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let _ = std::io::copy(&mut File::open(file).unwrap(), &mut stream);
}

/// Bytes that don't compress and are no known kind of image.
fn generate(path: &Path) -> Sha256Digest {
    let mut file = File::create(path).unwrap();
    let mut random = vec![0; 1 << 20];
    File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    random[..8].copy_from_slice(b"benchmrk");
    for _ in 0..SIZE >> 20 {
        random.rotate_left(4099);
        file.write_all(&random).unwrap();
    }
    file.sync_all().unwrap();
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().parse().unwrap()
}

fn shell(command: &str) {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The fastest, the median and the slowest of several runs, in seconds.
struct Times([f64; 3]);

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        Self([0, times.len() / 2, times.len() - 1].map(|index| times[index].as_secs_f64()))
    }

    /// How many times as long as `other` this took: by the medians, and by the fastest.
    fn ratio(&self, other: &Self) -> String {
        let [fastest, median, _] = self.0;
        format!("{:.2} (fastest {:.2})", median / other.0[1], fastest / other.0[0])
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [fastest, median, slowest] = self.0;
        write!(f, "{median:.2} s ({fastest:.2}–{slowest:.2})")
    }
}

fn compare() {
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = home.path().join("image");
    eprintln!("preparing 1 GiB in {}", home.path().display());
    let digest = generate(&image);
    let url = serve(image);
    let (target, pool) = (home.path().join("download"), home.path().join("pool"));
    let download = format!("curl -fsS -o {0} {url}; sync {0}", target.display());
    let summed = format!("curl -fsS -o {0} {url}; sha256sum {0} >&2; sync {0}", target.display());
    let memory = Cell::new(0);
    let mut fetch = || memory.set(memory.get().max(fetch_apart(&url, digest, &pool)));
    // Each begins with as much memory free, and as little left to write.
    let settle = || {
        let _ = std::fs::remove_file(&target);
        let _ = std::fs::remove_dir_all(&pool);
        std::fs::create_dir(&pool).unwrap();
        shell("sync");
    };
    println!("1 GiB over loopback, medians of {ROUNDS} rounds (fastest–slowest):");
    let (plain, ours) = in_turns(&settle, &mut || shell(&download), &mut fetch);
    println!("  fetch, verify, publish   {ours}");
    println!("  curl, fsync              {plain}");
    println!("    the first takes        {} times the second", ours.ratio(&plain));
    let (summed, ours) = in_turns(&settle, &mut || shell(&summed), &mut fetch);
    println!("  fetch, verify, publish   {ours}");
    println!("  curl, sha256sum, fsync   {summed}");
    println!("    the second takes       {} times the first", summed.ratio(&ours));
    println!("  memory above idle        {:.1} MiB", memory.get() as f64 / 1024.0);
}

/// How long two pieces of work take, done in turns: now the one first, now the other.
fn in_turns(settle: &dyn Fn(), one: &mut dyn FnMut(), other: &mut dyn FnMut()) -> (Times, Times) {
    let timed = |work: &mut dyn FnMut()| {
        settle();
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    let (mut ones, mut others) = (vec![], vec![]);
    for round in 0..=ROUNDS {
        let first = (round % 2 == 1).then(|| timed(other));
        let of_one = timed(one);
        let of_other = first.unwrap_or_else(|| timed(other));
        // The first round warms up.
        if round > 0 {
            ones.push(of_one);
            others.push(of_other);
        }
    }
    (Times::of(ones), Times::of(others))
}

fn fetch_apart(url: &str, digest: Sha256Digest, pool: &Path) -> u64 {
    let output = Command::new(std::env::current_exe().unwrap())
        .env(VARIABLE, format!("{url}|{digest}|{}", pool.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}
