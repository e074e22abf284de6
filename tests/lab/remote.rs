//! A host that drives another over ssh: the main job, what can be wrong with the way
//! there, and everything that can happen to a publication.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::host::{Host, lab, text, url};

const FAR: &str = "10.77.1.2";
const POOL: &str = "/var/lib/libvirt/images";
const KEYS: &str = "/srv/far";
/// Under software emulation a guest takes minutes, more on a busy machine.
const BOOT: Duration = Duration::from_secs(900);
const STEP: Duration = Duration::from_secs(120);
/// Entries of the fleet.
const FLEET: usize = 50;

struct Pair {
    near: Host,
    far: Host,
}

impl Pair {
    /// Two hosts that are joined, and sshd on the one that lets a key of the other in.
    fn up() -> Self {
        let far = Host::up("far", &far_config());
        far.run(
            "ssh-keygen -A >/dev/null; useradd -m -s /bin/bash -g operator -G libvirt operator; \
             install -d -m 700 -o operator /home/operator/.ssh; install -d -m 700 /root/.ssh; \
             sed -i 's/^#*PasswordAuthentication.*/PasswordAuthentication no/' \
             /etc/ssh/sshd_config; systemctl start ssh",
        );
        far.write("/srv/guests.xml", GUESTS.as_bytes());
        far.run("virsh -q net-define /srv/guests.xml; virsh -q net-start guests");
        let near = Host::up("near", &json!({ "providers": { "here": {} } }));
        assert!(lab(&["link", "near", "far"]).status.success());
        near.run("ip route add 10.77.2.0/24 via 10.77.1.2");
        near.run(&format!(
            "mkdir -p {KEYS}; ssh-keygen -q -t ed25519 -N '' -f {KEYS}/ssh-far; \
             ssh-keygen -q -t ed25519 -N '' -f {KEYS}/other"
        ));
        let pair = Self { near, far };
        pair.let_in("ssh-far");
        pair
    }

    /// Lets that key of the near host in, and no other.
    fn let_in(&self, key: &str) {
        let key = self.near.run(&format!("cat {KEYS}/{key}.pub"));
        self.far.run(&format!(
            "echo '{key}' | tee /root/.ssh/authorized_keys > /home/operator/.ssh/authorized_keys; \
             chown operator /home/operator/.ssh/authorized_keys"
        ));
    }

    /// The far host's keys, as ssh-keyscan prints them.
    fn known_hosts(&self) -> String {
        self.far.run(&format!("cat /etc/ssh/ssh_host_*_key.pub | sed 's/^/{FAR} /'"))
    }

    fn entry(&self) -> Value {
        json!({
            "type": "kvm",
            "uri": format!("qemu+ssh://operator@{FAR}/system"),
            "virtType": "qemu",
            "network": { "network": "guests" },
            "ssh": { "keyCredential": "ssh-far", "knownHosts": self.known_hosts() }
        })
    }

    fn config(&self) -> Value {
        json!({
            "images": images(),
            "providers": { "away": self.entry() },
            // Asked for by the guest: the near host's server, by the way that both have.
            "health": { "url": "http://10.77.1.1:8080/generate_204", "interval": "5s" }
        })
    }

    /// One row of the preflight of `away`: whether it passed, and what it says.
    fn check(&self, row: &str) -> (bool, String) {
        let rows = self.near.attempt("proxyctl --json provider check away");
        let rows: Value = serde_json::from_slice(&rows.stdout).expect("rows");
        let found = rows.as_array().into_iter().flatten().find(|found| found["what"] == row);
        let found = found.unwrap_or_else(|| panic!("no row {row} in {rows}"));
        (found["passed"] == true, found["message"].as_str().unwrap_or_default().to_owned())
    }

    fn check_fails(&self, words: &[&str]) {
        let (passed, message) = self.check("ssh");
        assert!(!passed, "{message}");
        for word in words {
            assert!(message.contains(word), "no {word:?} in {message}");
        }
    }

    fn check_passes(&self) {
        for row in ["ssh", "connection", "pool", "publish", "space", "network", "firmware", "kvm"] {
            let (passed, message) = self.check(row);
            assert!(passed, "{row}: {message}");
        }
    }
}

/// A network that other hosts have a way to.
const GUESTS: &str = "<network><name>guests</name><forward mode='route'/><bridge name='virbr7'/>\
    <ip address='10.77.2.1' netmask='255.255.255.0'><dhcp><range start='10.77.2.10' \
    end='10.77.2.99'/></dhcp></ip></network>";

fn images() -> Value {
    json!({
        "debian-13": { "url": url("ready.qcow2") },
        "blank": { "url": url("blank.raw"), "format": "raw" }
    })
}

/// What the far host's own daemon has: another entry, the same pool and the same keys.
fn far_config() -> Value {
    json!({
        "images": images(),
        "providers": { "own": { "type": "kvm", "virtType": "qemu" } },
        "health": { "url": url("generate_204") }
    })
}

#[test]
#[ignore = "needs the lab: make test"]
fn a_proxy_on_another_host_and_what_can_be_wrong_with_the_way_there() {
    let pair = Pair::up();
    for host in [&pair.near, &pair.far] {
        host.run("head -c 16M /dev/urandom > /srv/lab/blank.raw");
    }
    pair.near.configure(&pair.config());
    assert!(pair.near.reload().status.success());
    the_key_is_missed_by_name(&pair);
    no_other_key_is_offered(&pair);
    there_has_to_be_a_way_from_sshd_to_libvirt(&pair);
    whatever_happens_at_whichever_step(&pair);

    let created = pair.near.create(
        "web",
        "4 Provider s away Image s debian-13 Vcpus u 2 \
        AllowedClients as 1 10.77.1.1/32",
    );
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    pair.near.await_text("web", "Reason", "AwaitingAddress", STEP);
    the_console_is_read_from_there(&pair);
    two_daemons_share_the_pool(&pair);
    pair.near.wait("Proxy web to be healthy", BOOT, || {
        pair.near.property("web", "Healthy") == Some(Value::Bool(true))
    });
    assert_eq!(pair.near.text("web", "Phase"), "Ready");
    assert_eq!(pair.near.text("web", "AddressSource"), "agent");
    let endpoint = pair.near.text("web", "Endpoint");
    assert!(endpoint.starts_with("http://10.77.2."), "{endpoint}");
    let page = pair.near.run(&format!("curl -sf -x {endpoint} http://10.77.1.1:8080/page.html"));
    assert!(!page.is_empty());
    a_changed_host_key_is_refused(&pair);
    the_line_is_cut(&pair);
    pair.near.delete("web");
    pair.far.nothing_is_left();
    let pools = pair.far.run("virsh -q pool-list --all --name");
    assert_eq!(pools.trim(), "default", "a pool was left");
}

fn the_key_is_missed_by_name(pair: &Pair) {
    pair.check_fails(&["credential \"ssh-far\"", "LoadCredential=ssh-far:"]);
    let drop_in = format!("[Service]\nLoadCredential=ssh-far:{KEYS}/ssh-far\n");
    pair.near.write("/etc/systemd/system/proxyd.service.d/ssh.conf", drop_in.as_bytes());
    pair.near.run("systemctl daemon-reload; systemctl restart proxyd");
    pair.check_passes();
    let shown = pair.near.proxyctl("provider list");
    assert!(shown.contains("connected"), "{shown}");
}

/// A key that would be let in lies where ssh looks by itself.
fn no_other_key_is_offered(pair: &Pair) {
    let home = pair.near.run("getent passwd proxyd | cut -d: -f6");
    pair.near.run(&format!(
        "mkdir -p {home}/.ssh; cp {KEYS}/other {home}/.ssh/id_ed25519; chown -R proxyd {home}/.ssh"
    ));
    pair.let_in("other");
    pair.near.run("systemctl restart proxyd");
    pair.check_fails(&["Permission denied (publickey)", "the key of the credential \"ssh-far\""]);
    pair.let_in("ssh-far");
    pair.check_passes();
    pair.near.run(&format!("rm -r {home}/.ssh"));
}

/// virt-ssh-helper, or else nc.
fn there_has_to_be_a_way_from_sshd_to_libvirt(pair: &Pair) {
    let away = |program: &str| {
        pair.far
            .run(&format!("p=$(command -v {program}); mv $p $p.away; rm -f /etc/alternatives/nc"));
    };
    away("virt-ssh-helper");
    pair.near.run("systemctl restart proxyd");
    pair.check_fails(&["no way to libvirt from there", "virt-ssh-helper (or nc)"]);
    pair.far.run("ln -s /bin/nc.openbsd /etc/alternatives/nc");
    pair.check_passes();
    pair.far.run("mv /usr/bin/virt-ssh-helper.away /usr/bin/virt-ssh-helper");
    pair.near.run("systemctl restart proxyd");
    pair.check_passes();
}

/// The rows are unit tests of the provider, which can stop it at every step; they run
/// over there, and over this line.
fn whatever_happens_at_whichever_step(pair: &Pair) {
    let program = unit_tests();
    let root = PathBuf::from(text(&lab(&["root", "near"])));
    std::fs::copy(&program, root.join("srv/unit-tests")).expect("the tests in the lab host");
    pair.near.write(&format!("{KEYS}/known_hosts"), pair.known_hosts().as_bytes());
    let output = pair.near.attempt(&format!(
        "PROXYD_FAR={KEYS} /srv/unit-tests --ignored --test-threads=1 kvm::tests::remote"
    ));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("test result: ok."), "{said}");
    pair.far.run(&format!(
        "rm -rf {POOL}/base-* {POOL}/proxy-* {POOL}/theirs*; \
        virsh -q pool-refresh default"
    ));
}

/// The unit tests, built.
fn unit_tests() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--locked", "--lib", "--no-run", "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::null())
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let program = said.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    let mut programs = program.collect::<Vec<_>>();
    programs.pop().expect("a program with the unit tests")
}

/// QEMU's log of the domain is there from its start; a console may say nothing yet.
fn the_console_is_read_from_there(pair: &Pair) {
    let log = "/var/log/libvirt/qemu/proxy-web.console.log";
    pair.near.wait("the console of web to be read", STEP, || {
        let there = pair.far.run(&format!("head -c 200 {log} | base64 -w0"));
        let read = pair.near.attempt("proxyctl console web | head -c 200 | base64 -w0");
        !there.is_empty() && text(&read) == there
    });
    let evidence: Value = serde_json::from_str(&pair.near.proxyctl("evidence web")).unwrap();
    let told = evidence.to_string();
    assert!(told.contains("qemu-system-x86_64"), "no log of QEMU's in {told}");
}

/// At the same time, over one pool: files of their own.
fn two_daemons_share_the_pool(pair: &Pair) {
    let spec = |entry: &str| format!("3 Provider s {entry} Image s blank MemoryMiB t 128");
    pair.near.create("one", &spec("away"));
    pair.far.create("two", &spec("own"));
    pair.near.await_text("one", "Reason", "AwaitingAddress", STEP);
    pair.far.await_text("two", "Reason", "AwaitingAddress", STEP);
    for entry in ["away", "own"] {
        let host = if entry == "away" { &pair.near } else { &pair.far };
        let wanted = host.run("sha256sum < /srv/lab/blank.raw");
        assert_eq!(pair.far.run(&format!("sha256sum < {POOL}/base-{entry}-blank.raw")), wanted);
    }
    // Who removes a base and dies in the middle leaves it without its marker.
    let marker = format!("{POOL}/base-away-blank.raw.json");
    pair.far.run(&format!("rm {marker}; virsh -q destroy proxy-one"));
    pair.near.wait("one to be started again", STEP, || {
        let state = pair.far.attempt("virsh domstate proxy-one");
        pair.far.exists(&marker) && text(&state) == "running"
    });
    // Each lets go of its own, and of nothing else.
    pair.near.delete("one");
    pair.near.proxyctl("image evict away blank");
    assert!(pair.far.exists(&format!("{POOL}/base-own-blank.raw")));
    assert!(!pair.far.exists(&format!("{POOL}/base-away-blank.raw")));
    pair.far.delete("two");
    let pruned = pair.far.proxyctl("image prune");
    assert!(pruned.contains("base-own-blank.raw") && !pruned.contains("away"), "{pruned}");
    assert!(pair.far.exists(&format!("{POOL}/base-away-debian-13.qcow2")));
}

/// Refused whatever else fits; the guest runs on, and is heard of again with the new key.
fn a_changed_host_key_is_refused(pair: &Pair) {
    pair.far.run("rm /etc/ssh/ssh_host_*; ssh-keygen -A >/dev/null; systemctl restart ssh");
    pair.near.run("systemctl restart proxyd");
    pair.check_fails(&["REMOTE HOST IDENTIFICATION HAS CHANGED", "ssh.knownHosts"]);
    let listed = pair.near.proxyctl("provider list");
    assert!(listed.contains("failed"), "{listed}");
    pair.near.configure(&pair.config());
    assert!(pair.near.reload().status.success());
    pair.check_passes();
    pair.near.wait("Proxy web to be healthy", STEP, || {
        pair.near.property("web", "Healthy") == Some(Value::Bool(true))
    });
}

/// Packets are dropped, and nothing is closed: it is noticed, told, and got over.
fn the_line_is_cut(pair: &Pair) {
    let rule = format!("INPUT -s {FAR} -p tcp --sport 22 -j DROP");
    pair.near.run(&format!("iptables -I {rule}"));
    let state = || {
        let providers: Value =
            serde_json::from_str(&pair.near.proxyctl("--json provider list")).unwrap();
        providers[0]["state"].as_str().unwrap_or_default().to_owned()
    };
    let started = Instant::now();
    pair.near.wait("the loss to be noticed", Duration::from_secs(60), || state() == "failed");
    eprintln!("the loss of the line was noticed after {:?}", started.elapsed());
    // What asks nobody answers at once.
    let asked = Instant::now();
    pair.near.run("timeout 2 proxyctl list; timeout 2 proxyctl image list");
    assert!(asked.elapsed() < Duration::from_secs(4));
    pair.near.run(&format!("iptables -D {rule}"));
    pair.near.wait("the line to be back", Duration::from_secs(90), || state() == "connected");
}

#[test]
#[ignore = "needs the lab: make test"]
fn one_daemon_drives_a_fleet() {
    let pair = Pair::up();
    let (near, far) = (&pair.near, &pair.far);
    near.run("head -c 8M /dev/urandom > /srv/lab/blank.raw");
    let drop_in = format!("[Service]\nLoadCredential=ssh-far:{KEYS}/ssh-far\n");
    near.write("/etc/systemd/system/proxyd.service.d/ssh.conf", drop_in.as_bytes());
    let mut config = pair.config();
    config["images"] = json!({ "blank": { "url": url("blank.raw"), "format": "raw",
        "sha256": near.run("sha256sum < /srv/lab/blank.raw | cut -d' ' -f1") } });
    let providers = (0..FLEET).map(|number| (format!("host-{number}"), pair.entry()));
    let mut providers: serde_json::Map<_, _> = providers.collect();
    // Nobody answers there, and nobody says so.
    far.run("iptables -I INPUT -p tcp --dport 2222 -j DROP");
    for number in 0..3 {
        let mut gone = pair.entry();
        gone["uri"] = json!(format!("qemu+ssh://operator@{FAR}:2222/system"));
        providers.insert(format!("gone-{number}"), gone);
    }
    config["providers"] = Value::Object(providers);
    near.configure(&config);
    near.run("systemctl daemon-reload; systemctl restart proxyd");

    let started = Instant::now();
    let fetch = (0..FLEET).map(|number| {
        format!("(proxyctl image fetch host-{number} blank 2>&1 >/dev/null || echo {number}) &")
    });
    let failed = near.run(&format!("{} wait", fetch.collect::<Vec<_>>().join(" ")));
    let took = started.elapsed();
    assert_eq!(failed, "");
    let there = far.run(&format!("ls {POOL} | grep -c 'base-host-.*-blank.raw$'"));
    assert_eq!(there, FLEET.to_string());
    let wanted = near.run("sha256sum < /srv/lab/blank.raw");
    let all =
        far.run(&format!("cd {POOL}; for f in base-host-*.raw; do sha256sum < $f; done | sort -u"));
    assert_eq!(all, wanted);
    let requests =
        near.run("journalctl -u lab-http -o cat --no-pager | grep -c 'GET /blank.raw' || true");
    assert_eq!(requests, "1", "it was downloaded more than once");
    let listed: Value = serde_json::from_str(&near.proxyctl("--json provider list")).unwrap();
    let of = |state: &str| {
        let all = listed.as_array().into_iter().flatten();
        all.filter(|provider| provider["state"] == state).count()
    };
    assert_eq!((of("connected"), of("failed") + of("connecting")), (FLEET, 3), "{listed}");
    let pid = near.run("systemctl show -P MainPID proxyd");
    let peak = near.run(&format!("awk '/VmHWM/ {{print $2}}' /proc/{pid}/status"));
    let ssh: usize = near.run("pgrep -c -x ssh").parse().unwrap();
    eprintln!("{FLEET} hosts: {took:?}, peak {peak} KiB, {ssh} times ssh");
    assert!(peak.parse::<u64>().unwrap() < 400 << 10, "{peak} KiB");
    assert!(ssh <= FLEET + 3, "{ssh} connections");
}

/// Not a test: the ratio of one upload to that of virsh, over the same line.
#[test]
#[ignore = "needs the lab: make bench"]
fn bench_upload() {
    let pair = Pair::up();
    let (near, far) = (&pair.near, &pair.far);
    let size = 1_u64 << 30;
    near.run(&format!("head -c {size} /dev/urandom > /srv/lab/blank.raw"));
    let drop_in = format!("[Service]\nLoadCredential=ssh-far:{KEYS}/ssh-far\n");
    near.write("/etc/systemd/system/proxyd.service.d/ssh.conf", drop_in.as_bytes());
    near.configure(&pair.config());
    near.run("systemctl daemon-reload; systemctl restart proxyd");
    near.write(&format!("{KEYS}/known_hosts"), pair.known_hosts().as_bytes());
    near.run(&format!("install -d -m 700 /root/.ssh; cp {KEYS}/known_hosts /root/.ssh/"));
    let uri = format!("qemu+ssh://operator@{FAR}/system?keyfile={KEYS}/ssh-far");
    let mut ratios = Vec::new();
    for _ in 0..3 {
        far.run(&format!(
            "virsh -q vol-create-as default peer {size} --allocation {size} --format raw"
        ));
        let started = Instant::now();
        near.run(&format!("virsh -q -c '{uri}' vol-upload --pool default peer /srv/lab/blank.raw"));
        let peer = started.elapsed().as_secs_f64();
        far.run("virsh -q vol-delete --pool default peer");
        near.run("proxyctl image fetch away blank");
        let told = near.run(
            "journalctl -u proxyd -o cat --no-pager | \
             sed -n 's/.*bytes were uploaded in \\([0-9.]*\\) s.*/\\1/p' | tail -n 1",
        );
        let ours: f64 = told.parse().expect("a time in the journal");
        near.run("proxyctl image evict away blank");
        println!(
            "upload of {size} bytes: {ours:.2} s, virsh {peer:.2} s, ratio {:.2}",
            ours / peer
        );
        ratios.push(ours / peer);
    }
    ratios.sort_by(f64::total_cmp);
    println!("upload: {:.2} times the time of virsh vol-upload (median of 3)", ratios[1]);
}
