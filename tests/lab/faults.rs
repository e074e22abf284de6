//! What a host may lack, and what an image may be: each is named, and what time can
//! cure is cured without a hand. The guests here have a blank disk: they run, and
//! never boot.

use std::time::Duration;

use serde_json::{Value, json};

use crate::host::{Host, url};

const POOL: &str = "/var/lib/libvirt/images";
const STEP: Duration = Duration::from_secs(90);
/// Twice the longest wait between attempts, and the work itself.
const RECOVERY: Duration = Duration::from_secs(90);
const SPEC: &str = "3 Provider s home Image s blank MemoryMiB t 256";

fn config(digest: Option<&str>) -> Value {
    let mut image = json!({ "url": url("blank.raw"), "format": "raw" });
    if let Some(digest) = digest {
        image["sha256"] = digest.into();
    }
    json!({
        "images": { "blank": image },
        "providers": { "home": { "virtType": "qemu" } },
        "health": { "url": url("generate_204") }
    })
}

fn blank(host: &Host) -> String {
    host.run("truncate -s 16M /srv/lab/blank.raw; sha256sum < /srv/lab/blank.raw | cut -d' ' -f1")
}

#[test]
#[ignore = "needs the lab: make test"]
fn what_is_missing_is_named_and_cured_once_it_is_there() {
    let host = Host::up("faults", &config(None));
    let digest = blank(&host);

    // Without libvirt, pool, network or firmware, one after the other.
    let lacks = [
        (
            "systemctl stop libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd",
            "ProviderUnavailable",
            "qemu:///system",
            "systemctl start libvirtd.socket libvirtd",
        ),
        (
            "virsh -q pool-destroy default",
            "PoolUnavailable",
            "default",
            "virsh -q pool-start default",
        ),
        (
            "virsh pool-dumpxml default > /tmp/pool.xml; virsh -q pool-destroy default; \
             virsh -q pool-undefine default",
            "PoolUnavailable",
            "no storage pool \"default\"",
            "virsh -q pool-define /tmp/pool.xml; virsh -q pool-start default; \
             virsh -q pool-autostart default",
        ),
        (
            "virsh net-dumpxml default > /tmp/net.xml; virsh -q net-destroy default; \
             virsh -q net-undefine default",
            "NetworkUnavailable",
            "no network \"default\"",
            "virsh -q net-define /tmp/net.xml; virsh -q net-start default; \
             virsh -q net-autostart default",
        ),
        (
            "virsh -q net-destroy default",
            "NetworkUnavailable",
            "default",
            "virsh -q net-start default",
        ),
        (
            "mv /usr/share/qemu/firmware /usr/share/qemu/firmware.away",
            "FirmwareUnavailable",
            "ovmf",
            "mv /usr/share/qemu/firmware.away /usr/share/qemu/firmware",
        ),
    ];
    for (number, (break_it, reason, named, mend_it)) in lacks.into_iter().enumerate() {
        let name = format!("lack-{number}");
        host.run(break_it);
        host.create(&name, SPEC);
        host.await_text(&name, "Reason", reason, STEP);
        let message = host.text(&name, "Message");
        assert!(message.contains(named), "{message}");
        assert_eq!(host.text(&name, "Phase"), "Provisioning");
        assert_eq!(host.property(&name, "Permanent"), Some(Value::Bool(false)));
        host.run(mend_it);
        host.await_text(&name, "Reason", "AwaitingAddress", RECOVERY);
        host.delete(&name);
    }

    a_seed_applies_again_when_the_guest_is_made_anew(&host);
    an_image_by_url_gets_a_key_of_its_own(&host);
    an_unprivileged_user_may_look_and_not_touch(&host);
    no_address_is_awaited_and_said(&host);
    a_changed_digest_is_refused_and_the_base_stays(&host, &digest);
    a_stop_with_work_in_flight_is_clean(&host);
}

/// cloud-init begins anew when the instance-id is another: for a new guest, and not for
/// one that merely starts again.
fn a_seed_applies_again_when_the_guest_is_made_anew(host: &Host) {
    let declare = |user_data: Option<&str>| {
        let mut config = config(None);
        if let Some(user_data) = user_data {
            config["proxies"]["declared"] = json!({ "provider": "home", "image": "blank", "memoryMiB": 256, "userData": user_data });
        }
        host.configure(&config);
        assert!(host.reload().status.success());
    };
    let seed = format!("{POOL}/proxy-declared-seed.img");
    let instance = || {
        let meta = host.attempt(&format!("mcopy -n -i {seed} ::meta-data - | grep instance-id"));
        let meta = String::from_utf8_lossy(&meta.stdout).trim().trim_matches('"').to_owned();
        meta.rsplit('-').next().unwrap_or_default().to_owned()
    };
    let domain = || {
        let id = host.attempt("virsh -q domid proxy-declared").stdout;
        String::from_utf8_lossy(&id).trim().parse::<u32>().ok()
    };
    declare(Some("#cloud-config\n"));
    host.wait("the declared guest to run", STEP, || domain().is_some());
    assert_eq!(instance(), "1");
    let before = domain();
    host.run("virsh -q destroy proxy-declared");
    host.wait("it to start again", STEP, || domain().is_some() && domain() != before);
    assert_eq!(instance(), "1");
    declare(Some("#!/bin/sh\n"));
    host.wait("the guest that is made anew", STEP, || instance() == "2" && domain().is_some());
    declare(None);
    host.wait("the Proxy that is no longer declared to go", STEP, || {
        host.property("declared", "Phase").is_none()
    });
}

/// An image that no configuration knows: its key is made from its URL.
fn an_image_by_url_gets_a_key_of_its_own(host: &Host) {
    let url = url("blank.raw");
    host.create(
        "by-url",
        &format!("4 Provider s home Image s {url} ImageFormat s raw MemoryMiB t 256"),
    );
    host.await_text("by-url", "Reason", "AwaitingAddress", STEP);
    let key = host.run(&format!("printf %s {url} | sha256sum | cut -c1-16"));
    assert!(host.exists(&format!("{POOL}/base-home-{key}.raw.json")), "{key}");
    assert_eq!(host.text("by-url", "Image"), url);
    host.delete("by-url");
}

/// polkit decides, and without an agent to ask it says no.
fn an_unprivileged_user_may_look_and_not_touch(host: &Host) {
    let as_nobody = "setpriv --reuid=nobody --clear-groups busctl call org.proxyd1 /org/proxyd1 \
                     org.proxyd1.Manager";
    assert_eq!(host.run(&format!("{as_nobody} ListProxies")), "a(ssbsso) 0");
    let denied = host.attempt(&format!("{as_nobody} CreateProxy 'sa{{sv}}' theirs {SPEC}"));
    let words = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert!(words.contains("not authorized for org.proxyd1.manage-proxies"), "{words}");
    assert_eq!(host.run(&format!("{as_nobody} ListProxies")), "a(ssbsso) 0");
}

/// A guest that never gets an address stays Provisioning, and says what is awaited
/// and for how long.
fn no_address_is_awaited_and_said(host: &Host) {
    host.create("silent", SPEC);
    host.await_text("silent", "Reason", "AwaitingAddress", STEP);
    host.wait("the message to tell how long", Duration::from_secs(40), || {
        host.text("silent", "Message").contains("after 10s")
    });
    let message = host.text("silent", "Message");
    for part in ["the guest agent is not connected", "no DHCP lease for 52:54:00"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(host.text("silent", "Phase"), "Provisioning");
    // What it can't say by itself is seen from outside.
    let evidence: Value = serde_json::from_str(&host.proxyctl("evidence silent")).unwrap();
    assert_eq!(evidence["diagnosis"]["cause"], "NotBooted", "{evidence:#}");
    assert_eq!(evidence["step"], "AwaitingAddress");
    // A console may hold what is not for everybody.
    for verb in ["evidence", "console"] {
        let as_nobody = "setpriv --reuid=nobody --clear-groups proxyctl";
        let denied = host.attempt(&format!("{as_nobody} {verb} silent"));
        assert_eq!(denied.status.code(), Some(77), "{denied:?}");
        assert!(denied.stdout.is_empty(), "{denied:?}");
    }
    assert_eq!(host.property("silent", "Healthy"), Some(Value::Bool(false)));
}

fn a_changed_digest_is_refused_and_the_base_stays(host: &Host, digest: &str) {
    let state =
        format!("cd {POOL}; stat -c '%i %s %Y' base-home-blank.raw; sha256sum base-home-blank.raw");
    let before = host.run(&state);
    let wrong = "0".repeat(64);
    host.configure(&config(Some(&wrong)));
    assert!(host.reload().status.success());
    host.create("pinned", SPEC);
    host.await_text("pinned", "Phase", "Failed", STEP);
    assert_eq!(host.text("pinned", "Reason"), "DigestMismatch");
    assert_eq!(host.property("pinned", "Permanent"), Some(Value::Bool(true)));
    let message = host.text("pinned", "Message");
    for part in [digest, &wrong, "base-home-blank.raw"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(host.run(&state), before, "the base was touched");
    // The running guest on it is left alone, and told to be outdated.
    assert_eq!(host.property("silent", "ImageOutdated"), Some(Value::Bool(true)));
    assert_eq!(host.run("virsh domstate proxy-silent"), "running");

    // A configuration that is not acceptable is refused whole, and the old one stays.
    host.write("/etc/proxyd/config.json", br#"{"providers": {"home": {"pol": "default"}}}"#);
    let refused = String::from_utf8_lossy(&host.reload().stderr).into_owned();
    assert!(refused.contains("/providers/home/pol"), "{refused}");
    assert_eq!(
        host.attempt("proxyd --check-config /etc/proxyd/config.json").status.code(),
        Some(78)
    );

    // The digest restored, it goes on without being asked again; reloaded by way of
    // systemd this time, which waits until the daemon says that it is done.
    host.configure(&config(Some(digest)));
    host.run("systemctl reload proxyd");
    host.wait("the status line to count the Proxies", STEP, || {
        host.run("systemctl show -P StatusText proxyd") == "2 proxies, 0 healthy"
    });
    host.await_text("pinned", "Reason", "AwaitingAddress", STEP);
    host.delete("pinned");
    host.delete("silent");
}

/// SIGTERM in the middle of a download: a prompt, clean exit, no temporary file, and
/// the next start goes on.
fn a_stop_with_work_in_flight_is_clean(host: &Host) {
    // A server that sends a part and then keeps silent.
    host.run(
        "systemd-run --quiet --unit=lab-stall python3 -c '
import socket, time
s = socket.create_server((\"192.168.122.1\", 8081)); c = []
while True:
    k, _ = s.accept(); c.append(k); k.recv(4096)
    k.sendall(b\"HTTP/1.1 200 OK\\r\\nContent-Length: 1048576\\r\\n\\r\\n\" + bytes(65536))
'",
    );
    let url = "http://192.168.122.1:8081/slow.raw";
    host.create("slow", &format!("3 Provider s home Image s {url} ImageFormat s raw"));
    host.await_text("slow", "Reason", "FetchingImage", STEP);
    host.wait("the download to begin", STEP, || host.text("slow", "Message").contains("64"));
    host.run("timeout 20 systemctl stop proxyd");
    assert_eq!(host.run("systemctl show -P Result proxyd"), "success");
    let left = host.run(&format!("ls -A {POOL} | grep -E 'tmp|slow|staging' || true"));
    assert_eq!(left, "");
    host.run("systemctl start proxyd");
    host.await_text("slow", "Reason", "FetchingImage", STEP);
    host.delete("slow");
    host.run("systemctl stop lab-stall");
}
