//! The daemon as a process of its own on a private bus, with libvirt's test driver:
//! everything that needs no guest, driven by the real `busctl`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const MANAGER: &str = "org.proxyd1 /org/proxyd1 org.proxyd1.Manager";
const LIMIT: Duration = Duration::from_secs(20);

/// A bus, and perhaps a daemon on it. Both end with this.
struct Bench {
    home: TempDir,
    bus: Child,
    address: String,
    daemon: Option<Child>,
}

impl Bench {
    fn new() -> Self {
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

    fn started(config: &Value) -> Self {
        let mut bench = Self::new();
        bench.configure(config);
        bench.start();
        bench
    }

    fn config_path(&self) -> PathBuf {
        self.home.path().join("config.json")
    }

    fn configure(&self, config: &Value) {
        std::fs::write(self.config_path(), config.to_string()).unwrap();
    }

    fn start(&mut self) {
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
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemon = Some(daemon);
        self.wait("the daemon to take its name", || {
            self.busctl("status org.proxyd1").status.success()
        });
    }

    /// Sends SIGTERM and gives whether the daemon ended well.
    fn stop(&mut self) -> bool {
        let mut daemon = self.daemon.take().expect("a daemon");
        let pid = nix::unistd::Pid::from_raw(daemon.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        daemon.wait().unwrap().success()
    }

    fn busctl(&self, arguments: &str) -> Output {
        // Through a shell, so that a test reads as an operator types.
        Command::new("sh")
            .args(["-c", &format!("busctl --address='{}' {arguments}", self.address)])
            .output()
            .expect("busctl (Debian: package systemd)")
    }

    fn call(&self, method: &str) -> Result<String, String> {
        let output = self.busctl(&format!("call {MANAGER} {method}"));
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    fn create(&self, name: &str, spec: &str) -> Result<String, String> {
        self.call(&format!("CreateProxy 'sa{{sv}}' {name} {spec}"))
    }

    fn property(&self, name: &str, property: &str) -> Option<Value> {
        let output = self.busctl(&format!(
            "--json=short get-property org.proxyd1 /org/proxyd1/proxy/{name} org.proxyd1.Proxy \
             {property}"
        ));
        serde_json::from_slice::<Value>(&output.stdout).ok()?.get("data").cloned()
    }

    fn proxyctl(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_proxyctl"))
            .args(arguments)
            .env("DBUS_SYSTEM_BUS_ADDRESS", &self.address)
            .output()
            .unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    fn wait(&self, what: &str, condition: impl Fn() -> bool) {
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

/// One entry on libvirt's test driver, whose pool has no directory on this host.
fn config() -> Value {
    json!({
        "images": { "debian-13": { "url": "http://127.0.0.1:9/x.qcow2" } },
        "providers": { "home": { "uri": "test:///default", "pool": "default-pool" } }
    })
}

const SPEC: &str = "2 Provider s home Image s debian-13";

#[test]
fn create_is_idempotent_and_delete_leaves_nothing() {
    let bench = Bench::started(&config());
    let path = bench.create("a-b", SPEC).unwrap();
    assert_eq!(path, r#"o "/org/proxyd1/proxy/a_2db""#);
    assert_eq!(bench.create("a-b", SPEC).unwrap(), path);
    assert_eq!(bench.call("GetProxy s a-b").unwrap(), path);
    let other = bench.create("a-b", "3 Provider s home Image s debian-13 Port q 8080").unwrap_err();
    assert!(other.contains("exists with another specification"), "{other}");

    let listed = bench.call("ListProxies").unwrap();
    assert!(listed.starts_with(r#"a(ssbsso) 1 "a-b" "#), "{listed}");
    let managed = bench.busctl(
        "call org.proxyd1 /org/proxyd1 org.freedesktop.DBus.ObjectManager GetManagedObjects",
    );
    let managed = String::from_utf8_lossy(&managed.stdout).into_owned();
    assert!(managed.contains("/org/proxyd1/proxy/a_2db"), "{managed}");

    bench.call("DeleteProxy s a-b").unwrap();
    bench.wait("the Proxy to go", || bench.call("GetProxy s a-b").is_err());
    let gone = bench.call("DeleteProxy s a-b").unwrap_err();
    assert!(gone.contains("there is no Proxy a-b"), "{gone}");
    let records = std::fs::read_dir(bench.home.path().join("state/proxies")).unwrap().count();
    assert_eq!(records, 0);
}

#[test]
fn bad_arguments_are_refused_by_name_and_leave_nothing() {
    let bench = Bench::started(&config());
    let refusals = [
        ("Web", SPEC, "proxy name \"Web\""),
        ("../x", SPEC, "proxy name"),
        ("x", "1 Provider s home", "Image: it is missing"),
        ("x", "2 Provider s nowhere Image s debian-13", "no provider entry nowhere"),
        ("x", "2 Provider s home Image s fedora", "offers no image fedora"),
        ("x", "2 Provider s home Image s file:///etc/shadow", "Image: the URL"),
        ("x", "3 Provider s home Image s debian-13 Port s 80", "Port: its type"),
        ("x", "3 Provider s home Image s debian-13 Prot q 80", "\"Prot\" is no key"),
        ("x", "3 Provider s home Image s debian-13 Vcpus u 0", "Vcpus: 0 is out of range"),
    ];
    for (name, spec, words) in refusals {
        let error = bench.create(name, spec).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(bench.call("ListProxies").unwrap(), "a(ssbsso) 0");
}

#[test]
fn what_is_missing_is_in_the_status_and_the_record_survives_a_restart() {
    let mut bench = Bench::started(&config());
    bench.create("web", &format!("3 {} UserData s s3cret", &SPEC[2..])).unwrap();
    let stuck = |bench: &Bench| {
        bench.property("web", "Reason") == Some(Value::from("PoolUnavailable"))
            && bench.property("web", "Phase") == Some(Value::from("Provisioning"))
    };
    bench.wait("the missing directory to be named", || stuck(&bench));
    let uuid = bench.property("web", "Domain").unwrap();
    assert!(bench.stop(), "SIGTERM was not answered by a clean end\n{}", bench.log());
    bench.start();
    assert_eq!(bench.property("web", "Domain").unwrap(), uuid);
    bench.wait("the missing directory to be named again", || stuck(&bench));
    assert!(!bench.log().contains("s3cret"), "user-data is in the log");
}

#[test]
fn changes_are_signalled() {
    let bench = Bench::started(&config());
    let mut monitor = Command::new("busctl")
        .args([&format!("--address={}", bench.address), "monitor", "org.proxyd1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It says so on standard error once it listens.
    let mut ready = String::new();
    BufReader::new(monitor.stderr.take().unwrap()).read_line(&mut ready).unwrap();
    bench.create("web", SPEC).unwrap();
    bench.wait("a reason", || {
        bench.property("web", "Reason") == Some(Value::from("PoolUnavailable"))
    });
    bench.call("DeleteProxy s web").unwrap();
    bench.wait("the Proxy to go", || bench.call("GetProxy s web").is_err());
    let _ = monitor.kill();
    let seen = String::from_utf8_lossy(&monitor.wait_with_output().unwrap().stdout).into_owned();
    for signal in
        ["InterfacesAdded", "ProxyNew", "PropertiesChanged", "ProxyRemoved", "InterfacesRemoved"]
    {
        assert!(seen.contains(&format!("Member={signal}")), "no {signal} in\n{seen}");
    }
}

#[test]
fn reload_takes_the_new_or_keeps_the_old() {
    let bench = Bench::started(&config());
    let mut next = config();
    next["proxies"]["declared"] = json!({ "provider": "home", "image": "debian-13" });
    bench.configure(&next);
    bench.call("Reload").unwrap();
    assert_eq!(bench.property("declared", "Origin"), Some("config".into()));
    let refused = bench.call("DeleteProxy s declared").unwrap_err();
    assert!(refused.contains("declared in the configuration"), "{refused}");

    std::fs::write(bench.config_path(), r#"{"providers": {"home": {"pol": "x"}}}"#).unwrap();
    let refused = bench.call("Reload").unwrap_err();
    assert!(refused.contains("/providers/home/pol"), "{refused}");
    assert_eq!(bench.property("declared", "Origin"), Some("config".into()));

    bench.configure(&config());
    bench.call("Reload").unwrap();
    bench.wait("the Proxy that is no longer declared to go", || {
        bench.call("GetProxy s declared").is_err()
    });
}

#[test]
fn a_second_daemon_on_the_same_state_is_refused() {
    let bench = Bench::started(&config());
    let second = Command::new(env!("CARGO_BIN_EXE_proxyd"))
        .args(["--bus", &bench.address, "--config"])
        .arg(bench.config_path())
        .arg("--state-dir")
        .arg(bench.home.path().join("state"))
        .output()
        .unwrap();
    assert!(!second.status.success());
    let words = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(words.contains("used by another proxyd"), "{words}");
}

#[test]
fn check_config_exits_as_sysexits_says() {
    let home = tempfile::tempdir().unwrap();
    let check = |name: &str, content: Option<&str>| {
        let path = home.path().join(name);
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_proxyd"));
        command.arg("--check-config").arg(&path).output().unwrap()
    };
    assert_eq!(check("good", Some(&config().to_string())).status.code(), Some(0));
    assert_eq!(check("missing", None).status.code(), Some(66));
    let bad = check("bad", Some(r#"{"providers": {"A": {"pol": 1}, "b": {}, "b": {}}}"#));
    assert_eq!(bad.status.code(), Some(78));
    let errors = String::from_utf8_lossy(&bad.stderr).into_owned();
    for pointer in ["/providers/A", "/providers/A/pol", "/providers/b"] {
        assert!(errors.lines().any(|line| line.starts_with(&format!("{pointer}: "))), "{errors}");
    }
}

/// The interfaces in `dbus/` are what the daemon serves. With `BLESS=1` they are
/// written anew.
#[test]
fn the_checked_in_interfaces_are_the_served_ones() {
    let bench = Bench::started(&config());
    bench.create("web", SPEC).unwrap();
    let objects =
        [("org.proxyd1.Manager", "/org/proxyd1"), ("org.proxyd1.Proxy", "/org/proxyd1/proxy/web")];
    for (interface, path) in objects {
        let output = bench.busctl(&format!("introspect --xml-interface org.proxyd1 {path}"));
        let served = only(&String::from_utf8_lossy(&output.stdout), interface);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("dbus/{interface}.xml"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&file, &served).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap_or_default(), served, "{interface}");
    }
}

/// One interface of an introspection document, as a document of its own.
fn only(document: &str, interface: &str) -> String {
    let begin = document.find(&format!("<interface name=\"{interface}\"")).expect("the interface");
    let begin = document[..begin].rfind('\n').map_or(0, |newline| newline + 1);
    let end = document[begin..].find("</interface>").expect("its end") + begin;
    let body = &document[begin..end];
    format!(
        "<!DOCTYPE node PUBLIC \"-//freedesktop//DTD D-BUS Object Introspection 1.0//EN\"\n \
         \"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd\">\n<node>\n{body}\
         </interface>\n</node>\n"
    )
}

#[test]
fn images_are_named_and_bad_names_are_refused() {
    let bench = Bench::started(&config());
    let refused = |call: &str| bench.call(call).unwrap_err();
    let rows = [
        ("EvictImage ss Home debian", "entry: "),
        ("EvictImage ss home ../x", "key: "),
        ("EvictImage ss nowhere debian", "no provider entry nowhere"),
        // libvirt's test driver has a pool without a directory.
        ("EvictImage ss home debian", "can't be used"),
        ("PruneImages b true", "can't be used"),
    ];
    for (call, words) in rows {
        assert!(refused(call).contains(words), "{call}: {}", refused(call));
    }
}

/// user-data of a file arrives in the record byte for byte, and nowhere else.
#[test]
fn user_data_from_a_file_is_kept_whole_and_to_itself() {
    use base64::Engine as _;
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::started(&config());
    let file = bench.home.path().join("user-data");
    let secret = [b"\x1f\x8b\0\r\n\xffs3cret".as_slice(), &[0xa5; 8 << 20]].concat();
    std::fs::write(&file, &secret).unwrap();
    let created = bench.proxyctl(&[
        "create",
        "whole",
        "--image=debian-13",
        "--user-data",
        file.to_str().unwrap(),
        "--allow=192.0.2.0/24",
    ]);
    assert!(created.status.success(), "{created:?}");
    let path = bench.home.path().join("state/proxies/whole.json");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let record: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let kept = record["spec"]["userData"].as_str().unwrap();
    assert!(base64::engine::general_purpose::STANDARD.decode(kept).unwrap() == secret);
    let shown = bench.busctl(
        "call org.proxyd1 /org/proxyd1 org.freedesktop.DBus.ObjectManager GetManagedObjects",
    );
    let seen = [shown.stdout, bench.log().into_bytes()].concat();
    assert!(!String::from_utf8_lossy(&seen).contains("s3cret"));
}

#[test]
fn proxyctl_says_what_is_wrong_and_exits_as_sysexits_says() {
    let bench = Bench::started(&config());
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = bench.proxyctl(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    };
    refused(&["create", "x", "--image=debian-13", "--vcpus=0"], 65, "Vcpus: 0 is out of range");
    refused(&["create", "x", "--image=a", "--user-data=/nowhere"], 66, "/nowhere: No such file");
    refused(&["evidence", "nobody"], 1, "there is no Proxy nobody");
    refused(&["create", "x"], 2, "--image");
    let large = bench.home.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(33 << 20).unwrap();
    let large = format!("--user-data={}", large.display());
    refused(&["create", "x", "--image=debian-13", &large], 65, "the system bus takes no message");
}

#[test]
fn proxyctl_without_a_daemon_says_how_to_start_it_and_still_shows_the_preset() {
    let bench = Bench::new();
    let output = bench.proxyctl(&["delete", "x"]);
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("systemctl start proxyd"), "{said}");
    let shown = bench.proxyctl(&["preset", "show", "--port=8080", "--allow=192.0.2.0/24"]);
    let preset = proxyd::seed::preset(8080, &["192.0.2.0/24".parse().unwrap()]);
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), preset);
}

/// The right to manage proxies is needed, and root has it on this bus.
#[test]
fn evidence_is_given_by_proxyctl() {
    let bench = Bench::started(&config());
    assert!(bench.proxyctl(&["create", "web", "--image=debian-13"]).status.success());
    let output = bench.proxyctl(&["evidence", "web"]);
    assert!(output.status.success(), "{output:?}");
    let evidence: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(evidence["proxy"], "web");
    assert!(evidence["guest"]["console"]["error"].is_string(), "{evidence:#}");
}
