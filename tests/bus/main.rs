//! The daemon as a process of its own on a private bus, with libvirt's test driver:
//! everything that needs no guest, driven by the real `busctl`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use bench::Bench;

mod bench;
mod clock;
mod images;
mod load;
mod pool;
mod proxyctl;
mod terminal;

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
    assert!(other.contains("exists with another specification, differing in Port"), "{other}");

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
    let heard = bench.home.path().join("heard");
    let mut monitor = Command::new("busctl")
        .args([&format!("--address={}", bench.address), "monitor", "org.proxyd1"])
        .stdout(std::fs::File::create(&heard).unwrap())
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
    for signal in
        ["InterfacesAdded", "ProxyNew", "PropertiesChanged", "ProxyRemoved", "InterfacesRemoved"]
    {
        let member = format!("Member={signal}");
        bench.wait(&member, || {
            String::from_utf8_lossy(&std::fs::read(&heard).unwrap()).contains(&member)
        });
    }
    let _ = monitor.kill();
    let _ = monitor.wait();
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
    let objects = [
        ("org.proxyd1.Manager", "/org/proxyd1"),
        ("org.proxyd1.Proxy", "/org/proxyd1/proxy/web"),
        ("org.proxyd1.Provider", "/org/proxyd1/provider/home"),
        ("org.proxyd1.Image", "/org/proxyd1/image/home/debian_2d13"),
        ("org.proxyd1.Job", &bench.job("FetchImage ss home debian-13")),
    ];
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
