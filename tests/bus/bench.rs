//! A private bus with the daemon as a process of its own on it.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const MANAGER: &str = "org.proxyd1 /org/proxyd1 org.proxyd1.Manager";
const LIMIT: Duration = Duration::from_secs(20);

/// A bus, and perhaps a daemon on it. Both end with this.
pub struct Bench {
    pub home: TempDir,
    bus: Child,
    pub address: String,
    daemon: Option<Child>,
}

impl Bench {
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut bus = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--print-address=1"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("dbus-daemon (Debian: package dbus)");
        let mut address = String::new();
        BufReader::new(bus.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { home, bus, address: address.trim().to_owned(), daemon: None }
    }

    pub fn started(config: &Value) -> Self {
        let mut bench = Self::new();
        bench.configure(config);
        bench.start();
        bench
    }

    pub fn config_path(&self) -> PathBuf {
        self.home.path().join("config.json")
    }

    pub fn configure(&self, config: &Value) {
        std::fs::write(self.config_path(), config.to_string()).unwrap();
    }

    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// The same with an environment for the daemon.
    pub fn start_with(&mut self, environment: &[(&str, &std::ffi::OsStr)]) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.home.path().join("log"))
            .unwrap();
        let daemon = Command::new(env!("CARGO_BIN_EXE_proxyd"))
            .args(["--bus", &self.address, "--config"])
            .arg(self.config_path())
            .arg("--state-dir")
            .arg(self.home.path().join("state"))
            .arg("--cache-dir")
            .arg(self.home.path().join("cache"))
            .envs(environment.iter().copied())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemon = Some(daemon);
        self.wait("the daemon to take its name", || {
            self.busctl("status org.proxyd1").status.success()
        });
    }

    /// Sends SIGTERM and gives whether the daemon ended well.
    pub fn stop(&mut self) -> bool {
        let mut daemon = self.daemon.take().expect("a daemon");
        let pid = nix::unistd::Pid::from_raw(daemon.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        daemon.wait().unwrap().success()
    }

    pub fn busctl(&self, arguments: &str) -> Output {
        // Through a shell, so that a test reads as an operator types.
        Command::new("sh")
            .args(["-c", &format!("busctl --address='{}' {arguments}", self.address)])
            .output()
            .expect("busctl (Debian: package systemd)")
    }

    pub fn call(&self, method: &str) -> Result<String, String> {
        let output = self.busctl(&format!("call {MANAGER} {method}"));
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    pub fn create(&self, name: &str, spec: &str) -> Result<String, String> {
        self.call(&format!("CreateProxy 'sa{{sv}}' {name} {spec}"))
    }

    /// Calls a method that gives a job, and gives the job's path.
    pub fn job(&self, method: &str) -> String {
        let path = self.call(method).unwrap();
        path.trim_start_matches("o ").trim_matches('"').to_owned()
    }

    pub fn property(&self, name: &str, property: &str) -> Option<Value> {
        let output = self.busctl(&format!(
            "--json=short get-property org.proxyd1 /org/proxyd1/proxy/{name} org.proxyd1.Proxy \
             {property}"
        ));
        serde_json::from_slice::<Value>(&output.stdout).ok()?.get("data").cloned()
    }

    pub fn proxyctl(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_proxyctl"))
            .args(arguments)
            .env("DBUS_SYSTEM_BUS_ADDRESS", &self.address)
            .output()
            .unwrap()
    }

    /// Resident memory of the daemon in KiB.
    pub fn memory(&self) -> u64 {
        let pid = self.daemon.as_ref().expect("a daemon").id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    pub fn wait(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !condition() {
            assert!(Instant::now() < deadline, "waited {LIMIT:?} for {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for child in self.daemon.iter_mut().chain([&mut self.bus]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
