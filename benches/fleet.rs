//! What many Proxies cost the daemon: on libvirt's test driver, whose guests are names
//! alone, with a stub for all of their proxies. Prints time, memory and CPU per Proxy
//! for growing numbers, and the CPU of a fleet that is only probed. `make bench`.
//!
//! It runs itself in a network namespace of its own, where every guest's address is
//! this machine: `unshare` and `ip`, as root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark may")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const INNER: &str = "PROXYD_BENCH_FLEET";
const NUMBERS: [u32; 3] = [250, 500, 1000];
const LIMIT: Duration = Duration::from_secs(600);
/// Long enough that every Proxy is probed twice.
const IDLE: Duration = Duration::from_secs(60);

fn main() {
    if std::env::var_os(INNER).is_none() {
        let prepare = "ip link set lo up && ip route add local 10.77.0.0/16 dev lo && exec \"$0\"";
        let status = Command::new("unshare")
            .args(["-n", "sh", "-c", prepare])
            .arg(std::env::current_exe().unwrap())
            .env(INNER, "1")
            .status()
            .expect("unshare (Debian: package util-linux)");
        assert!(status.success(), "the fleet's benchmark failed: {status}");
        return;
    }
    serve();
    println!("Proxies on libvirt's test driver, all Ready, probed every 30 s:");
    let costs: Vec<Cost> = NUMBERS.iter().map(|number| measure(*number)).collect();
    let per =
        |cost: &Cost| (cost.memory / f64::from(cost.number), cost.cpu / f64::from(cost.number));
    let (first, last) = (per(&costs[0]), per(costs.last().unwrap()));
    println!(
        "  a Proxy of the last costs {:.2} times the memory and {:.2} times the CPU of one of the \
         first",
        last.0 / first.0,
        last.1 / first.1
    );
}

struct Cost {
    number: u32,
    /// KiB above those of a daemon without Proxies.
    memory: f64,
    /// Milliseconds of CPU until all are Ready.
    cpu: f64,
}

/// Every proxy of every guest: it answers 204 to whatever is asked.
fn serve() {
    let listener = TcpListener::bind("0.0.0.0:3128").unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 2048];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
        }
    });
}

/// A bus and a daemon, which end with this.
struct Fleet {
    home: tempfile::TempDir,
    bus: Child,
    daemon: Child,
    address: String,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in [&mut self.daemon, &mut self.bus] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Fleet {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        prepare(home.path());
        let mut bus = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--print-address=1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("dbus-daemon (Debian: package dbus)");
        let mut address = String::new();
        BufReader::new(bus.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let address = address.trim().to_owned();
        let daemon = Command::new(env!("CARGO_BIN_EXE_proxyd"))
            .args(["--bus", &address, "--config"])
            .arg(home.path().join("config.json"))
            .arg("--state-dir")
            .arg(home.path().join("state"))
            .arg("--cache-dir")
            .arg(home.path().join("cache"))
            .env("PROXYD_LOG", "warn")
            .stderr(std::fs::File::create(home.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let fleet = Self { home, bus, daemon, address };
        fleet.wait("the daemon", || fleet.call("ListProxies", "").is_some());
        fleet
    }

    fn call(&self, method: &str, arguments: &str) -> Option<String> {
        let call = format!(
            "busctl --timeout=60 --address='{}' call org.proxyd1 /org/proxyd1 \
             org.proxyd1.Manager {method} {arguments}",
            self.address
        );
        let output = Command::new("sh").args(["-c", &call]).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done() {
            let log = std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
            let tail: String = log.lines().rev().take(20).collect::<Vec<_>>().join("\n");
            assert!(Instant::now() < deadline, "waited {LIMIT:?} for {what}\n{tail}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Resident memory in KiB.
    fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// CPU time used so far, in milliseconds.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.daemon.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // utime and stime, in the kernel's unit for user space: a hundredth of a second.
        let ticks: f64 = [11, 12].map(|at: usize| fields[at].parse::<f64>().unwrap()).iter().sum();
        ticks * 10.0
    }
}

/// A host of libvirt's test driver, an image and a configuration.
fn prepare(home: &Path) {
    let pool = home.join("pool");
    std::fs::create_dir(&pool).unwrap();
    let image = home.join("blank.raw");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let node = format!(
        "<node><network><name>default</name><bridge name='virbr0'/><ip address='10.77.0.1' \
         netmask='255.255.0.0'><dhcp><range start='10.77.0.2' end='10.77.255.254'/></dhcp></ip>\
         </network><pool type='dir'><name>default</name><target><path>{}</path></target></pool>\
         </node>",
        pool.display()
    );
    std::fs::write(home.join("node.xml"), node).unwrap();
    let config = serde_json::json!({
        "images": {
            "blank": { "url": format!("file://{}", image.display()), "format": "raw" }
        },
        "providers": { "test": { "uri": format!("test://{}", home.join("node.xml").display()) } },
        "health": { "url": "http://10.77.0.1/generate_204", "interval": "30s" }
    });
    std::fs::write(home.join("config.json"), config.to_string()).unwrap();
}

fn measure(number: u32) -> Cost {
    let fleet = Fleet::start();
    let (memory, cpu, began) = (fleet.memory(), fleet.cpu(), Instant::now());
    let create = format!(
        "for n in $(seq {number}); do busctl --address='{}' call org.proxyd1 /org/proxyd1 \
         org.proxyd1.Manager CreateProxy 'sa{{sv}}' fleet-$n 2 Provider s test Image s blank \
         >/dev/null || exit 1; done",
        fleet.address
    );
    assert!(Command::new("sh").args(["-c", &create]).status().unwrap().success());
    let all = || {
        let listed = fleet.call("ListProxies", "").unwrap_or_default();
        listed.matches("\"Ready\" true").count() == number as usize
    };
    fleet.wait("all to be Ready and healthy", all);
    let took = began.elapsed();
    let cost = Cost { number, memory: fleet.memory() - memory, cpu: fleet.cpu() - cpu };
    let before = fleet.cpu();
    std::thread::sleep(IDLE);
    let idle = (fleet.cpu() - before) / (IDLE.as_secs_f64() * 10.0);
    println!(
        "  {number:5}: all in {:6.1} s; each {:6.1} KiB and {:5.2} ms of CPU; probed only, {idle:.2} \
         % of a core",
        took.as_secs_f64(),
        cost.memory / f64::from(number),
        cost.cpu / f64::from(number)
    );
    cost
}
