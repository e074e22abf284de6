//! The fault matrix: whatever dies or interferes, a Proxy ends where its specification
//! says, or names what stops it. One row a test, on one host; the guests have a blank
//! disk, BIOS and little memory: they run, and never boot.

use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};

use crate::host::{Host, url};

const POOL: &str = "/var/lib/libvirt/images";
const STEP: Duration = Duration::from_secs(90);
const SPEC: &str = "3 Provider s home Image s blank MemoryMiB t 128";

static HOST: LazyLock<Host> = LazyLock::new(|| {
    let host = Host::up("life", &config());
    host.run("truncate -s 16M /srv/lab/blank.raw; truncate -s 16M /srv/lab/other.raw");
    host
});

fn config() -> Value {
    let image = |file: &str| json!({ "url": url(file), "format": "raw", "firmware": "bios" });
    json!({
        "images": { "blank": image("blank.raw"), "other": image("other.raw") },
        "providers": { "home": { "virtType": "qemu" } },
        "health": { "url": url("generate_204"), "interval": "2s", "timeout": "1s" },
        "metrics": { "listen": "unix:/run/proxyd/metrics.sock" }
    })
}

/// The state of the entry's connection, as busctl shows it.
fn link() -> String {
    HOST.run(
        "busctl get-property org.proxyd1 /org/proxyd1/provider/home org.proxyd1.Provider State",
    )
}

/// A table without its spacing.
fn words(table: &str) -> String {
    table.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A Proxy whose guest runs, gone at the end of its row.
struct Guest {
    name: &'static str,
}

impl Guest {
    fn running(name: &'static str) -> Self {
        Self::of(name, SPEC)
    }

    fn of(name: &'static str, spec: &str) -> Self {
        HOST.create(name, spec);
        HOST.await_text(name, "Reason", "AwaitingAddress", STEP);
        Self { name }
    }

    fn id(&self) -> Option<u32> {
        let id = HOST.attempt(&format!("virsh -q domid proxy-{}", self.name)).stdout;
        String::from_utf8_lossy(&id).trim().parse().ok()
    }

    /// Waits until the guest was started again.
    fn is_started_again(&self, before: Option<u32>) {
        HOST.wait("the guest to start again", STEP, || self.id().is_some() && self.id() != before);
        HOST.await_text(self.name, "Reason", "AwaitingAddress", STEP);
    }

    /// The journal's lines about this Proxy with the given subject in the catalog.
    fn told(&self, subject: &str) -> bool {
        let lines = HOST.run(&format!(
            "journalctl -q -u proxyd PROXYD_PROXY={} -x --no-pager -o short",
            self.name
        ));
        lines.contains(&format!("Subject: {subject}"))
    }

    fn condition(&self, kind: &str) -> (bool, String, String) {
        let all = HOST.property(self.name, "Conditions").expect("conditions");
        let row = all.as_array().and_then(|rows| rows.iter().find(|row| row[0] == kind));
        let row = row.unwrap_or_else(|| panic!("no condition {kind} in {all}"));
        let text = |at: usize| row[at].as_str().unwrap_or_default().to_owned();
        (row[1] == Value::Bool(true), text(2), text(3))
    }

    fn order(&self, order: &str) -> String {
        HOST.proxyctl(&order.replace('@', self.name))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            HOST.delete(self.name);
        }
    }
}

#[test]
#[ignore = "needs the lab: make test"]
fn qemu_is_killed() {
    let guest = Guest::running("q-kill");
    let before = guest.id();
    HOST.run("kill -9 $(cat /run/libvirt/qemu/proxy-q-kill.pid)");
    guest.is_started_again(before);
    assert!(guest.told("A guest went down by itself or by another hand"));
}

const WATCHDOG: &str = "/etc/systemd/system/proxyd.service.d/watchdog.conf";

#[test]
#[ignore = "needs the lab: make test"]
fn proxyd_is_killed_and_frozen() {
    let guest = Guest::running("d-kill");
    let before = guest.id();
    let pid = || HOST.run("systemctl show -P MainPID proxyd");
    // The unit's own is a minute, which is long to wait.
    HOST.write(WATCHDOG, b"[Service]\nWatchdogSec=10s\n");
    HOST.run("systemctl daemon-reload");
    for signal in ["KILL", "STOP"] {
        let old = pid();
        HOST.run(&format!("kill -{signal} {old}"));
        // Frozen, it is the watchdog that notices.
        HOST.wait("another proxyd", Duration::from_secs(120), || {
            let new = pid();
            new != old && new != "0"
        });
        HOST.await_text(guest.name, "Reason", "AwaitingAddress", STEP);
        assert_eq!(guest.id(), before, "the guest was touched ({signal})");
    }
    assert_eq!(HOST.run("virsh -q list --all --name | grep -c ^proxy-d-kill"), "1");
    HOST.run(&format!("rm {WATCHDOG}; systemctl daemon-reload; systemctl restart proxyd"));
}

#[test]
#[ignore = "needs the lab: make test"]
fn libvirtd_is_killed() {
    let guest = Guest::running("l-kill");
    let before = guest.id();
    HOST.run("kill -9 $(pidof libvirtd)");
    // The sockets start it again when somebody asks; until then nothing is connected.
    HOST.wait("the loss to be told", STEP, || {
        let lines = HOST.run("journalctl -q -u proxyd -x --no-pager | tail -n 300");
        lines.contains("Subject: libvirt can't be reached")
    });
    HOST.wait("the connection", STEP, || link() == "s \"connected\"");
    HOST.await_text(guest.name, "Reason", "AwaitingAddress", STEP);
    assert_eq!(guest.id(), before, "the guest was touched");
    // Events come over the new connection, too: it is down for seconds, not minutes.
    HOST.run("virsh -q destroy proxy-l-kill");
    HOST.wait("the guest to start again", Duration::from_secs(20), || {
        guest.id().is_some() && guest.id() != before
    });
}

/// A connection that is dead without being closed: only keepalive notices.
#[test]
#[ignore = "needs the lab: make test"]
fn libvirtd_hangs() {
    let guest = Guest::running("hangs");
    let before = guest.id();
    let pid = HOST.run("pidof libvirtd");
    HOST.run(&format!("kill -STOP {pid}"));
    // Whoever only reads does not wait for it.
    let manager = "busctl --timeout=2 call org.proxyd1 /org/proxyd1";
    HOST.run(&format!(
        "{manager} org.freedesktop.DBus.ObjectManager GetManagedObjects; \
         {manager} org.proxyd1.Manager ListProxies; proxyctl image list; proxyctl show hangs"
    ));
    HOST.wait("the dead connection to be noticed", STEP, || link() == "s \"failed\"");
    HOST.run(&format!("kill -CONT {pid}"));
    HOST.wait("the connection", STEP, || link() == "s \"connected\"");
    HOST.await_text(guest.name, "Reason", "AwaitingAddress", STEP);
    assert_eq!(guest.id(), before, "the guest was touched");
}

#[test]
#[ignore = "needs the lab: make test"]
fn virtlogd_is_killed() {
    let guest = Guest::running("v-kill");
    let before = guest.id();
    HOST.run("kill -9 $(pidof virtlogd)");
    HOST.run("virsh -q destroy proxy-v-kill");
    guest.is_started_again(before);
    assert_eq!(HOST.run("virsh domstate proxy-v-kill"), "running");
}

#[test]
#[ignore = "needs the lab: make test"]
fn it_is_destroyed_undefined_and_resized_by_hand() {
    let guest = Guest::running("by-hand");
    let before = guest.id();
    HOST.run("virsh -q destroy proxy-by-hand");
    guest.is_started_again(before);
    let defined = || HOST.attempt("virsh -q dumpxml --inactive proxy-by-hand").status.success();
    let before = guest.id();
    HOST.run("virsh -q undefine proxy-by-hand");
    HOST.wait("the definition to be put back", STEP, || {
        defined() && HOST.run("virsh dominfo proxy-by-hand | grep Persistent").contains("yes")
    });
    assert_eq!(guest.id(), before, "a running guest was touched");
    assert!(guest.told("Something of a guest was changed or taken"));
    // Off and undefined: nothing is left but the volumes.
    HOST.run("virsh -q destroy proxy-by-hand; virsh -q undefine proxy-by-hand || true");
    guest.is_started_again(before);
    let memory = "virsh dumpxml --inactive proxy-by-hand | grep '<memory'";
    let wanted = HOST.run(memory);
    HOST.run("virsh -q setmaxmem proxy-by-hand 65536 --config");
    HOST.run("virsh -q destroy proxy-by-hand");
    HOST.wait("the size to be put back", STEP, || HOST.run(memory) == wanted);
}

#[test]
#[ignore = "needs the lab: make test"]
fn it_is_suspended_by_hand() {
    let guest = Guest::running("paused");
    HOST.run("virsh -q suspend proxy-paused");
    HOST.await_text("paused", "Reason", "DomainFailed", STEP);
    let message = HOST.text("paused", "Message");
    assert!(message.contains("virsh resume proxy-paused"), "{message}");
    assert_eq!(HOST.property("paused", "Permanent"), Some(Value::Bool(false)));
    assert_eq!(HOST.run("virsh domstate proxy-paused"), "paused");
    HOST.run("virsh -q resume proxy-paused");
    // By an event, not by the slow look.
    HOST.await_text("paused", "Reason", "AwaitingAddress", Duration::from_secs(15));
    drop(guest);
}

#[test]
#[ignore = "needs the lab: make test"]
fn pool_and_network_are_stopped() {
    let guest = Guest::running("stopped");
    let rows = [
        ("pool-destroy", "PoolUnavailable", "pool-start"),
        ("net-destroy", "NetworkUnavailable", "net-start"),
    ];
    for (stop, reason, start) in rows {
        let before = guest.id();
        HOST.run(&format!("virsh -q {stop} default"));
        assert_eq!(guest.id(), before, "a running guest was touched");
        HOST.run("virsh -q destroy proxy-stopped");
        HOST.await_text("stopped", "Reason", reason, STEP);
        HOST.run(&format!("virsh -q {start} default"));
        guest.is_started_again(before);
    }
}

/// A boot sector that writes 32 KiB after 32 KiB to its disk by INT 13h, function 43h.
const WRITER: &str = "31c08ed88ec08ed0bc007cbe307cb443b000b280cd1366830638 7c40ebed";
const PACKET: &str = "10004000008000004000000000000000";

#[test]
#[ignore = "needs the lab: make test"]
fn the_disk_is_full() {
    let host = &*HOST;
    let code = WRITER.replace(' ', "");
    host.run(&format!(
        "python3 -c '
b = bytearray(16 << 20)
code, packet = bytes.fromhex(\"{code}\"), bytes.fromhex(\"{PACKET}\")
b[:len(code)] = code; b[0x30:0x30 + len(packet)] = packet; b[510:512] = bytes([0x55, 0xaa])
open(\"/srv/lab/writer.raw\", \"wb\").write(b)'
         mkdir -p /srv/tiny; mount -t tmpfs -o size=8M,mode=0711 tmpfs /srv/tiny
         virsh -q pool-define-as tiny dir --target /srv/tiny; virsh -q pool-start tiny"
    ));
    let mut config = config();
    config["providers"]["tiny"] = json!({ "type": "kvm2", "virtType": "qemu", "pool": "tiny" });
    config["images"]["writer"] =
        json!({ "url": url("writer.raw"), "format": "raw", "firmware": "bios" });
    host.configure(&config);
    assert!(host.reload().status.success());
    host.create("full", "3 Provider s tiny Image s writer MemoryMiB t 128");
    // No room for the base: said, and cured by itself.
    host.await_text("full", "Reason", "NoSpace", STEP);
    host.run("mount -o remount,size=20M /srv/tiny; virsh -q pool-refresh tiny");
    // The base has room now, and what the guest writes has not: QEMU pauses it.
    host.wait("the full disk to be told", STEP, || {
        host.text("full", "Message").contains("virsh resume") || {
            host.run("journalctl -q -u proxyd PROXYD_PROXY=full --no-pager").contains("ioerror")
        }
    });
    host.run("mount -o remount,size=64M /srv/tiny");
    host.wait("the guest to go on", STEP, || {
        host.run("virsh domstate proxy-full") == "running"
            && host.text("full", "Reason") == "AwaitingAddress"
    });
    host.delete("full");
    host.configure(&self::config());
    assert!(host.reload().status.success());
    host.run("virsh -q pool-destroy tiny; virsh -q pool-undefine tiny; umount -l /srv/tiny");
}

#[test]
#[ignore = "needs the lab: make test"]
fn a_record_is_torn_and_its_guest_adopted() {
    let guest = Guest::running("torn");
    let other = Guest::running("whole");
    let (before, domain) = (guest.id(), HOST.text("torn", "Domain"));
    HOST.run(
        "systemctl stop proxyd; truncate -s 100 /var/lib/proxyd/proxies/torn.json; \
         systemctl start proxyd",
    );
    HOST.await_text(other.name, "Reason", "AwaitingAddress", STEP);
    assert!(HOST.run("journalctl -q -u proxyd --no-pager | tail -n 50").contains("set aside as"));
    assert_eq!(HOST.property("torn", "Phase"), None);
    let left = words(&HOST.proxyctl("provider leftovers home"));
    assert!(left.contains("torn proxy-torn") && left.contains(&domain), "{left}");
    assert!(!left.contains("whole"), "{left}");
    // Its name is not taken over by mere coincidence.
    HOST.create("torn", SPEC);
    HOST.await_text("torn", "Reason", "ForeignDomain", STEP);
    assert_eq!(HOST.property("torn", "Permanent"), Some(Value::Bool(true)));
    HOST.delete("torn");
    assert_eq!(guest.id(), before, "a foreign domain was touched");
    HOST.proxyctl("provider adopt home torn --image blank --memory 128");
    HOST.await_text("torn", "Reason", "AwaitingAddress", STEP);
    assert_eq!((guest.id(), HOST.text("torn", "Domain")), (before, domain));
    assert_eq!(HOST.proxyctl("provider leftovers home"), "");
    // What nobody adopts is removed by its domain's name, with its volumes.
    HOST.run("systemctl stop proxyd; rm /var/lib/proxyd/proxies/torn.json; systemctl start proxyd");
    HOST.await_text(other.name, "Reason", "AwaitingAddress", STEP);
    HOST.proxyctl("provider remove-leftover home proxy-torn");
    assert_eq!(HOST.proxyctl("provider leftovers home"), "");
    assert!(!HOST.exists(&format!("{POOL}/proxy-torn.qcow2")));
    HOST.run("rm -f /var/lib/proxyd/proxies/*.unreadable-*");
    std::mem::forget(guest);
}

#[test]
#[ignore = "needs the lab: make test"]
fn its_files_are_removed() {
    let guest = Guest::running("files");
    let console = "/var/log/libvirt/qemu/proxy-files.console.log";
    HOST.run(&format!("rm {console}"));
    let before = guest.id();
    HOST.run("virsh -q destroy proxy-files");
    guest.is_started_again(before);
    HOST.proxyctl("console files");
    for part in ["proxy-files.qcow2", "proxy-files-seed.img"] {
        let before = guest.id();
        HOST.run(&format!(
            "rm {POOL}/{part}; virsh -q pool-refresh default; virsh -q destroy proxy-files"
        ));
        guest.is_started_again(before);
        assert!(HOST.exists(&format!("{POOL}/{part}")), "{part}");
    }
    assert!(guest.told("Something of a guest was changed or taken"));
}

#[test]
#[ignore = "needs the lab: make test"]
fn its_base_changes_under_it() {
    let guest = Guest::running("ground");
    let before = guest.id();
    let base = format!("{POOL}/base-home-blank.raw");
    let time = HOST.run(&format!("stat -c %y {base}"));
    // An event has it looked at before its five minutes are over.
    let look = || HOST.run("virsh -q suspend proxy-ground; virsh -q resume proxy-ground");
    HOST.run(&format!("touch {base}"));
    HOST.wait("the change to be told", STEP, || {
        look();
        guest.condition("ImageReady").1 == "BaseChanged"
    });
    assert_eq!(guest.id(), before, "the guest was touched");
    assert!(guest.told("Something of a guest was changed or taken"));
    HOST.run(&format!("touch -d '{time}' {base}"));
    HOST.wait("the restored base to be told", STEP, || {
        look();
        guest.condition("ImageReady").0
    });
}

#[test]
#[ignore = "needs the lab: make test"]
fn what_is_not_ours_is_never_touched() {
    let nvram = "/var/lib/libvirt/qemu/nvram";
    HOST.run(&format!(
        "mkdir -p {nvram}; echo theirs > {nvram}/proxy-mine_VARS.fd; \
         qemu-img create -q -f qcow2 {POOL}/proxy-mine.qcow2 1M; virsh -q pool-refresh default"
    ));
    let state =
        format!("cat {nvram}/proxy-mine_VARS.fd; stat -c '%i %s %Y' {POOL}/proxy-mine.qcow2");
    let before = HOST.run(&state);
    HOST.create("mine", SPEC);
    HOST.await_text("mine", "Reason", "ForeignFile", STEP);
    let message = HOST.text("mine", "Message");
    assert!(message.contains("proxy-mine.qcow2"), "{message}");
    HOST.delete("mine");
    assert_eq!(HOST.run(&state), before);
    HOST.run(&format!("rm {POOL}/proxy-mine.qcow2; virsh -q pool-refresh default"));
    let uefi =
        format!("4 Provider s home Image s {} ImageFormat s raw MemoryMiB t 256", url("blank.raw"));
    let guest = Guest::of("mine", &uefi);
    let own = HOST.run("virsh dumpxml proxy-mine | grep '<nvram'");
    assert!(own.contains(&HOST.text("mine", "Domain")), "{own}");
    drop(guest);
    assert_eq!(HOST.run(&format!("cat {nvram}/proxy-mine_VARS.fd")), "theirs");
    let left = HOST.run(&format!("ls {nvram} | grep -c mine"));
    assert_eq!(left, "1", "its own NVRAM was left");
    HOST.run(&format!("rm {nvram}/proxy-mine_VARS.fd"));
}

#[test]
#[ignore = "needs the lab: make test"]
fn changes_take_effect_in_their_time() {
    let guest = Guest::running("change");
    let before = guest.id();
    assert_eq!(guest.order("update @ --memory 160"), "MemoryMiB: next-start");
    HOST.wait("the change to be awaited", STEP, || {
        guest.condition("UpToDate").1 == "RestartNeeded"
    });
    assert_eq!(guest.id(), before, "the guest was restarted unasked");
    HOST.run("virsh dumpxml --inactive proxy-change | grep -q \"<memory unit='KiB'>163840\"");
    // A blank guest does not heed, and is ended after its time.
    guest.order("restart @");
    guest.is_started_again(before);
    HOST.wait("the change to be there", STEP, || guest.condition("UpToDate").0);
    HOST.run("virsh dumpxml proxy-change | grep -q \"<memory unit='KiB'>163840\"");

    // Off, and on again; also when somebody starts it by hand.
    guest.order("stop @");
    HOST.await_text("change", "Phase", "Stopped", STEP);
    assert_eq!(HOST.run("virsh domstate proxy-change"), "shut off");
    assert!(HOST.run("virsh dominfo proxy-change | grep Autostart").contains("disable"));
    HOST.run("systemctl restart proxyd");
    HOST.await_text("change", "Phase", "Stopped", STEP);
    guest.order("start @");
    HOST.await_text("change", "Reason", "AwaitingAddress", STEP);
    assert!(guest.told("A Proxy was given an order"));

    // What is in the disk waits for a new guest.
    let before = guest.id();
    assert_eq!(guest.order("update @ --image other"), "Image: rebuild");
    HOST.wait("the rebuild to be awaited", STEP, || {
        guest.condition("UpToDate").1 == "RebuildNeeded"
    });
    assert_eq!(guest.id(), before, "the guest was rebuilt unasked");
    let uuid = HOST.text("change", "Domain");
    guest.order("rebuild @");
    guest.is_started_again(before);
    assert_eq!(HOST.text("change", "Domain"), uuid);
    HOST.run(&format!("qemu-img info -U {POOL}/proxy-change.qcow2 | grep -q base-home-other"));
    let refused = HOST.attempt("proxyctl update change --memory 1");
    assert_eq!(refused.status.code(), Some(65), "{refused:?}");
}

#[test]
#[ignore = "needs the lab: make test"]
fn a_successor_that_does_not_answer_is_given_up() {
    let guest = Guest::running("heir");
    let (before, uuid) = (guest.id(), HOST.text("heir", "Domain"));
    guest.order("rebuild --overlap --timeout 8 @");
    HOST.wait("the new guest to run", STEP, || {
        HOST.attempt("virsh -q domid 'proxy-heir.b'").status.success()
    });
    assert_eq!(guest.condition("UpToDate").1, "Rebuilding");
    // The daemon dies meanwhile: there is still one present guest and one successor.
    HOST.run("systemctl kill --signal=KILL proxyd; systemctl restart proxyd");
    HOST.wait("it to be given up", STEP, || guest.told("A new guest did not take over"));
    HOST.wait("the new guest to be gone", STEP, || {
        HOST.run("virsh -q list --all --name | grep -c '^proxy-heir'") == "1"
            && guest.condition("UpToDate").1 == "RebuildFailed"
    });
    assert_eq!((guest.id(), HOST.text("heir", "Domain")), (before, uuid));
    let left = HOST.run(&format!("ls {POOL} | grep 'proxy-heir.b' || true"));
    assert_eq!(left, "");
    let refused = HOST.attempt("proxyctl stop heir && proxyctl rebuild --overlap heir");
    assert_eq!(refused.status.code(), Some(65), "{refused:?}");
}

#[test]
#[ignore = "needs the lab: make test"]
fn declared_proxies_come_change_and_go() {
    let declare = |proxies: Value| {
        let mut config = config();
        config["proxies"] = proxies;
        HOST.configure(&config);
        assert!(HOST.reload().status.success());
    };
    let proxy = |image: &str, on_removal: &str| json!({ "provider": "home", "image": image, "memoryMiB": 128, "onRemoval": on_removal });
    declare(json!({ "goes": proxy("blank", "delete"), "stays": proxy("blank", "keep") }));
    for name in ["goes", "stays"] {
        HOST.await_text(name, "Reason", "AwaitingAddress", STEP);
        assert_eq!(HOST.text(name, "Origin"), "config");
    }
    let refused = HOST.attempt("proxyctl update goes --memory 256");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("change it there"), "{refused:?}");
    declare(json!({ "goes": proxy("other", "delete"), "stays": proxy("blank", "keep") }));
    HOST.wait("the change to be made", STEP, || {
        let info = HOST.attempt(&format!("qemu-img info -U {POOL}/proxy-goes.qcow2")).stdout;
        String::from_utf8_lossy(&info).contains("base-home-other")
            && HOST.text("goes", "Reason") == "AwaitingAddress"
    });
    let kept = HOST.run("virsh -q domid proxy-stays");
    declare(json!({}));
    HOST.wait("the one to go", STEP, || HOST.property("goes", "Phase").is_none());
    assert_eq!(HOST.text("stays", "Origin"), "api");
    assert_eq!(HOST.run("virsh -q domid proxy-stays"), kept);
    HOST.delete("stays");
}

#[test]
#[ignore = "needs the lab: make test"]
fn the_host_is_checked_and_the_metrics_are_told() {
    let guest = Guest::running("count");
    let check = HOST.attempt("proxyctl provider check home");
    let rows = words(&String::from_utf8_lossy(&check.stdout));
    for row in ["connection", "pool", "publish", "space", "network", "firmware", "kvm"] {
        assert!(rows.contains(&format!("{row} ok")), "{row} in\n{rows}");
    }
    assert!(check.status.success());
    HOST.run("virsh -q net-destroy default");
    let check = HOST.attempt("proxyctl provider check home");
    let rows = words(&String::from_utf8_lossy(&check.stdout));
    HOST.run("virsh -q net-start default");
    assert!(rows.contains("network FAIL") && rows.contains("virsh net-start"), "{rows}");
    assert_eq!(check.status.code(), Some(1));
    HOST.attempt("proxyctl image evict home other");
    HOST.proxyctl("image fetch home other");
    let metrics = HOST.run("curl -sf --unix-socket /run/proxyd/metrics.sock http://x/metrics");
    for line in [
        "proxyd_proxies{phase=\"Provisioning\"} 1",
        "proxyd_proxy_healthy{proxy=\"count\"} 0",
        "proxyd_image_fetches_total{result=\"done\"}",
        "proxyd_image_fetched_bytes_total",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    drop(guest);
}

/// The configured image moves on: told, and nothing else happens.
#[test]
#[ignore = "needs the lab: make test"]
fn an_outdated_image_is_told() {
    let guest = Guest::running("old");
    let before = guest.id();
    assert_eq!(HOST.property("old", "ImageOutdated"), Some(Value::Bool(false)));
    let mut moved = config();
    moved["images"]["blank"]["url"] = url("other.raw").into();
    HOST.configure(&moved);
    assert!(HOST.reload().status.success());
    HOST.wait("it to be told", STEP, || {
        HOST.property("old", "ImageOutdated") == Some(Value::Bool(true))
    });
    assert_eq!(guest.id(), before);
    HOST.configure(&config());
    assert!(HOST.reload().status.success());
}

/// A guest outlives its image's place in the configuration: it can be stopped, put right
/// and started.
#[test]
#[ignore = "needs the lab: make test"]
fn its_image_leaves_the_configuration() {
    let guest = Guest::of("orphan", "3 Provider s home Image s other MemoryMiB t 128");
    let mut without = config();
    without["images"].as_object_mut().expect("images").remove("other");
    HOST.configure(&without);
    assert!(HOST.reload().status.success());
    let before = guest.id();
    HOST.run("virsh -q destroy proxy-orphan; virsh -q undefine proxy-orphan || true");
    guest.is_started_again(before);
    guest.order("stop @");
    HOST.await_text("orphan", "Phase", "Stopped", STEP);
    assert!(HOST.run("virsh dominfo proxy-orphan | grep Autostart").contains("disable"));
    HOST.configure(&config());
    assert!(HOST.reload().status.success());
}

/// proxyd dies at random moments while Proxies are created and deleted. In the end
/// there are the wanted domains, nothing else, and no record is lost. The number of
/// deaths is PROXYD_SOAK_KILLS.
#[test]
#[ignore = "needs the lab: make test"]
fn random_deaths_lose_nothing() {
    let kills: u32 =
        std::env::var("PROXYD_SOAK_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let count: u32 = if kills > 50 { 20 } else { 6 };
    HOST.run(
        "mkdir -p /etc/systemd/system/proxyd.service.d; printf '[Unit]\\nStartLimitIntervalSec=0\\n\
         [Service]\\nRestartSec=100ms\\n' > /etc/systemd/system/proxyd.service.d/soak.conf; \
         systemctl daemon-reload",
    );
    // Wishes are repeated until they are heard, as a person would; each turn asks for
    // every Proxy, or for none of the odd ones.
    let script = format!(
        "set -u
call() {{ timeout 30 busctl call org.proxyd1 /org/proxyd1 org.proxyd1.Manager \"$@\" >/dev/null 2>&1; }}
(
  for turn in $(seq 1000); do
    [ -e /run/soak-over ] && break
    for n in $(seq {count}); do
      if [ $((turn % 2)) = 1 ] || [ $((n % 2)) = 0 ]; then
        call CreateProxy 'sa{{sv}}' soak-$n {SPEC}
      else
        call DeleteProxy s soak-$n
      fi
    done
  done
) &
rm -f /run/soak-over
for kill in $(seq {kills}); do
  sleep 0.$((RANDOM % 10))$((RANDOM % 10)); sleep $((RANDOM % 2))
  pid=$(systemctl show -P MainPID proxyd)
  [ \"$pid\" != 0 ] && kill -9 $pid
done
touch /run/soak-over; wait
"
    );
    HOST.run(&script);
    // The last word: all the even ones, none of the odd ones.
    let settle = Duration::from_secs(300);
    HOST.wait("the last wishes to be heard", settle, || {
        (1..=count).all(|number| {
            let name = format!("soak-{number}");
            if number % 2 == 0 {
                HOST.create(&name, SPEC).status.success()
            } else {
                let delete = format!(
                    "busctl call org.proxyd1 /org/proxyd1 org.proxyd1.Manager DeleteProxy s {name}"
                );
                let output = HOST.attempt(&delete);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                output.status.success() || said.contains("there is no Proxy")
            }
        })
    });
    let wanted: Vec<String> = (1..=count)
        .filter(|number| number % 2 == 0)
        .map(|number| format!("soak-{number}"))
        .collect();
    HOST.wait("exactly the wanted guests to run", settle, || {
        let running = HOST.run("virsh -q list --name | grep ^proxy-soak | sort");
        let mut expected: Vec<_> = wanted.iter().map(|name| format!("proxy-{name}")).collect();
        expected.sort();
        running.lines().eq(expected.iter().map(String::as_str))
            && wanted.iter().all(|name| HOST.text(name, "Reason") == "AwaitingAddress")
    });
    let domains = HOST.run("virsh -q list --all --name | grep -c ^proxy-soak");
    let volumes = HOST.run(&format!("ls {POOL} | grep -c '^proxy-soak'"));
    let records = HOST.run("ls /var/lib/proxyd/proxies | grep -c '^soak-.*json$'");
    let expected = wanted.len().to_string();
    assert_eq!((domains, records), (expected.clone(), expected));
    assert_eq!(volumes, (2 * wanted.len()).to_string());
    assert_eq!(HOST.run("ls /var/lib/proxyd/proxies | grep -v 'json$' || true"), "");
    assert_eq!(HOST.proxyctl("provider leftovers home"), "");
    let deaths = HOST.run("systemctl show -P NRestarts proxyd");
    assert!(deaths.parse::<u32>().is_ok_and(|number| number >= kills / 2), "{deaths} deaths");
    for name in &wanted {
        HOST.delete(name);
    }
    HOST.run("rm -r /etc/systemd/system/proxyd.service.d/soak.conf; systemctl daemon-reload");
    HOST.run("! virsh -q list --all --name | grep ^proxy-soak");
}
