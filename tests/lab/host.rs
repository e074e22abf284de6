//! A lab host under test: booted, with proxyd installed as a user would, and taken
//! down again whatever happens.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The port of the lab's HTTP server.
const HTTP: &str = "http://192.168.122.1:8080";

pub struct Host {
    name: String,
}

impl Host {
    /// Boots a host and installs proxyd with `config`.
    pub fn up(name: &str, config: &Value) -> Self {
        Self::up_with(name, config, &[])
    }

    /// The same with an environment for the lab's own program.
    pub fn up_with(name: &str, config: &Value, environment: &[(&str, &str)]) -> Self {
        let host = Self::boot(name, environment);
        host.install();
        host.configure(config);
        host.run("systemctl enable --quiet --now proxyd");
        host
    }

    /// Boots a host that has no proxyd yet.
    pub fn boot(name: &str, environment: &[(&str, &str)]) -> Self {
        lab(&["down", name]);
        let up = program().args(["up", name]).envs(environment.iter().copied()).output();
        let up = up.expect("the lab's program runs");
        let said = String::from_utf8_lossy(&up.stderr).into_owned();
        assert!(up.status.success(), "the lab host {name} does not come up: {said}");
        let host = Self { name: name.to_owned() };
        assert!(lab(&["serve", name]).status.success(), "the lab's HTTP server does not start");
        host
    }

    /// The host's root directory, from outside.
    pub fn root(&self) -> String {
        text(&lab(&["root", &self.name]))
    }

    fn install(&self) {
        let root = self.root();
        let status = Command::new("make")
            .args(["--no-print-directory", "install", &format!("DESTDIR={root}")])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdout(Stdio::null())
            .status()
            .expect("make runs");
        assert!(status.success(), "make install failed");
        self.run("/usr/share/proxyd/activate");
    }

    /// Puts `config` in place of the configuration file.
    pub fn configure(&self, config: &Value) {
        self.write("/etc/proxyd/config.json", config.to_string().as_bytes());
    }

    /// Runs a shell command that has to succeed, and gives its output.
    pub fn run(&self, command: &str) -> String {
        let output = self.attempt(command);
        assert!(
            output.status.success(),
            "{command}\nfailed with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        text(&output)
    }

    /// Runs a shell command and gives whatever comes of it.
    pub fn attempt(&self, command: &str) -> Output {
        lab(&["exec", &self.name, "bash", "-ec", command])
    }

    pub fn write(&self, path: &str, content: &[u8]) {
        let whole = PathBuf::from(self.root() + path);
        std::fs::create_dir_all(whole.parent().expect("an absolute path")).expect("a directory");
        std::fs::write(&whole, content).expect("a file in the lab host");
    }

    pub fn exists(&self, path: &str) -> bool {
        self.attempt(&format!("test -e '{path}'")).status.success()
    }

    /// Creates a Proxy by `busctl`, with `spec` in busctl's own notation.
    pub fn create(&self, name: &str, spec: &str) -> Output {
        self.attempt(&format!(
            "busctl call org.proxyd1 /org/proxyd1 org.proxyd1.Manager CreateProxy 'sa{{sv}}' \
             {name} {spec}"
        ))
    }

    /// Runs `proxyctl`, which has to succeed.
    pub fn proxyctl(&self, arguments: &str) -> String {
        self.run(&format!("proxyctl {arguments}"))
    }

    pub fn delete(&self, name: &str) {
        self.run(&format!(
            "busctl call org.proxyd1 /org/proxyd1 org.proxyd1.Manager DeleteProxy s {name}"
        ));
        self.wait(&format!("Proxy {name} to go"), Duration::from_secs(60), || {
            self.property(name, "Phase").is_none()
        });
    }

    pub fn reload(&self) -> Output {
        self.attempt("busctl call org.proxyd1 /org/proxyd1 org.proxyd1.Manager Reload")
    }

    /// A property of a Proxy; nothing when there is no such Proxy.
    pub fn property(&self, name: &str, property: &str) -> Option<Value> {
        let output = self.attempt(&format!(
            "busctl --json=short get-property org.proxyd1 /org/proxyd1/proxy/{} \
             org.proxyd1.Proxy {property}",
            name.replace('-', "_2d")
        ));
        let parsed: Value = serde_json::from_slice(&output.stdout).ok()?;
        parsed.get("data").cloned()
    }

    pub fn text(&self, name: &str, property: &str) -> String {
        let value = self.property(name, property);
        value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// Waits until `condition` holds; prints the evidence when it never does.
    pub fn wait(&self, what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + limit;
        while !condition() {
            if Instant::now() > deadline {
                self.evidence();
                panic!("waited {limit:?} for {what}");
            }
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    /// Waits for a Proxy to give `value` for `property`.
    pub fn await_text(&self, name: &str, property: &str, value: &str, limit: Duration) {
        let what = format!("{property} of Proxy {name} to be {value}");
        self.wait(&what, limit, || self.text(name, property) == value);
    }

    /// Nothing of any Proxy may be left: no domain, volume, NVRAM, console or record.
    pub fn nothing_is_left(&self) {
        let left = self.run(
            "virsh list --all --name | grep ^proxy- || true; \
             ls -A /var/lib/libvirt/images | grep ^proxy- || true; \
             ls -A /var/lib/libvirt/qemu/nvram /var/log/libvirt/qemu | \
                 grep -E 'proxy.*(VARS|console)' || true; \
             ls -A /var/lib/proxyd/proxies",
        );
        assert_eq!(left, "");
    }

    fn evidence(&self) {
        let commands = [
            "busctl call org.proxyd1 /org/proxyd1 org.proxyd1.Manager ListProxies",
            "journalctl -u proxyd -n 60 --no-pager -o cat",
            "virsh list --all; ls -li /var/lib/libvirt/images",
            "tail -n 5 /var/log/libvirt/qemu/*.log",
        ];
        for command in commands {
            let output = self.attempt(command);
            eprintln!("--- {command}\n{}", String::from_utf8_lossy(&output.stdout));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.evidence();
        }
        lab(&["down", &self.name]);
    }
}

/// The URL of something that the lab's HTTP server serves.
pub fn url(path: &str) -> String {
    format!("{HTTP}/{path}")
}

/// Runs the lab's own program.
pub fn lab(arguments: &[&str]) -> Output {
    program().args(arguments).output().expect("the lab's program runs")
}

fn program() -> Command {
    let mut program = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/lab"));
    program.stdin(Stdio::null());
    program
}

/// What a command printed, trimmed.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
