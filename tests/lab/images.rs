//! The image cache in a real pool of a real libvirt: what uses a base stays, whoever
//! it belongs to, and what nothing uses goes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::host::{Host, url};

const POOL: &str = "/var/lib/libvirt/images";
const BASE: &str = "/var/lib/libvirt/images/base-home-blank.raw";
const STEP: Duration = Duration::from_secs(90);
const SPEC: &str = "3 Provider s home Image s blank MemoryMiB t 256";
const MANAGER: &str = "busctl call org.proxyd1 /org/proxyd1 org.proxyd1.Manager";

fn config() -> Value {
    let packed = json!({
        "url": url("packed.raw.gz"), "sha256Url": url("SHA256SUMS"), "format": "raw"
    });
    json!({
        "images": { "blank": { "url": url("blank.raw"), "format": "raw" }, "packed": packed },
        "providers": {
            "home": { "virtType": "qemu" },
            "api": { "virtType": "qemu", "type": "kvm2" }
        },
        "health": { "url": url("generate_204") }
    })
}

#[test]
#[ignore = "needs the lab: make test"]
fn what_is_used_stays_and_what_is_not_goes() {
    let host = Host::up("images", &config());
    host.run("truncate -s 16M /srv/lab/blank.raw");
    the_lab_serves_its_directory_alone(&host);
    host.create("first", SPEC);
    host.await_text("first", "Reason", "AwaitingAddress", STEP);

    a_base_that_changed_starts_no_guest(&host);
    a_base_under_a_guest_stays(&host);
    a_stopped_domain_of_somebody_else_counts(&host);
    what_nothing_uses_is_listed_and_then_removed(&host);
    a_packed_image_is_unpacked_for_both_types(&host);
}

/// Guests can ask its server, and it runs as root.
fn the_lab_serves_its_directory_alone(host: &Host) {
    for (path, status) in
        [("%2fetc/shadow", "404"), ("..%2f..%2fetc/shadow", "404"), ("debian/Packages", "200")]
    {
        let format = "-s --path-as-is -o /dev/null -w '%{http_code}'";
        assert_eq!(host.run(&format!("curl {format} {}", url(path))), status, "{path}");
    }
}

/// What a call that has to fail says.
fn refused(host: &Host, call: &str) -> String {
    let output = host.attempt(call);
    assert!(!output.status.success(), "{call} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Before a guest starts, its base has to be the one that its overlay was made from.
fn a_base_that_changed_starts_no_guest(host: &Host) {
    let times = host.run(&format!("stat -c %y {BASE}"));
    host.run(&format!("touch -d 2020-01-01 {BASE}; virsh -q destroy proxy-first"));
    host.await_text("first", "Reason", "BaseChanged", STEP);
    assert_eq!(host.text("first", "Phase"), "Failed");
    let message = host.text("first", "Message");
    for part in ["base-home-blank.raw", "size, inode or time", "restore it"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(host.run("virsh domstate proxy-first"), "shut off");
    host.run(&format!("touch -d '{times}' {BASE}"));
    assert!(host.reload().status.success());
    host.await_text("first", "Reason", "AwaitingAddress", STEP);
    assert_eq!(host.run("virsh domstate proxy-first"), "running");
}

fn a_base_under_a_guest_stays(host: &Host) {
    let words = refused(host, &format!("{MANAGER} EvictImage ss home blank"));
    assert!(words.contains("proxy-first.qcow2") && words.contains("domain proxy-first"), "{words}");
    assert_eq!(host.run(&format!("{MANAGER} PruneImages b false")), "a(sts) 0");
    let unknown = refused(host, &format!("{MANAGER} EvictImage ss home gone"));
    assert!(unknown.contains("holds no image gone"), "{unknown}");
    let none = refused(host, &format!("{MANAGER} EvictImage ss api blank"));
    assert!(none.contains("holds no image blank of provider entry api"), "{none}");
    host.delete("first");
    assert!(host.exists(BASE));
}

fn domain(name: &str, disk: &str) -> String {
    format!(
        "<domain type='qemu'><name>{name}</name><memory>1024</memory><os><type>hvm</type></os>\
         <devices><disk type='{}' device='disk'><driver name='qemu' type='qcow2'/><source {disk}/>\
         <target dev='vda' bus='virtio'/></disk></devices></domain>",
        if disk.starts_with("file") { "file" } else { "volume" }
    )
}

/// Nothing in the pool tells of these: an overlay elsewhere, and a disk that is named
/// by pool and volume.
fn a_stopped_domain_of_somebody_else_counts(host: &Host) {
    host.run(&format!(
        "mkdir -p /srv/theirs; qemu-img create -q -f qcow2 -F raw -b {BASE} /srv/theirs/o.qcow2"
    ));
    let disks = ["file='/srv/theirs/o.qcow2'", "pool='default' volume='base-home-blank.raw'"];
    for disk in disks {
        host.write("/srv/theirs/domain.xml", domain("theirs", disk).as_bytes());
        host.run("virsh -q define /srv/theirs/domain.xml");
        assert_eq!(host.run("virsh domstate theirs"), "shut off");
        let words = refused(host, &format!("{MANAGER} EvictImage ss home blank"));
        assert!(words.contains("used by domain theirs"), "{words}");
        assert_eq!(host.run(&format!("{MANAGER} PruneImages b false")), "a(sts) 0");
        host.run("virsh -q undefine theirs");
    }
    assert!(host.exists(BASE));
}

fn what_nothing_uses_is_listed_and_then_removed(host: &Host) {
    // An overlay that no domain names any more, outside of the pool, is nobody's.
    let expected = format!("\"{BASE}\" 16777216 \"nothing uses it\"");
    let nobody = format!("setpriv --reuid=nobody --clear-groups {MANAGER}");
    let dry = host.run(&format!("{nobody} PruneImages b true"));
    assert!(dry.contains(&expected), "{dry}");
    for call in ["PruneImages b false", "EvictImage ss home blank"] {
        let denied = refused(host, &format!("{nobody} {call}"));
        assert!(denied.contains("not authorized for org.proxyd1.manage-images"), "{denied}");
    }
    assert!(host.exists(BASE));
    assert_eq!(host.run(&format!("{MANAGER} PruneImages b false")), dry);
    let left = host.run(&format!("ls {POOL} | grep -v lost+found"));
    assert_eq!(left, "base-home-blank.raw.lock");
    assert_eq!(host.run(&format!("{MANAGER} PruneImages b true")), "a(sts) 0");
    let told = host.run("journalctl -u proxyd -o cat --no-pager PROXYD_PROVIDER=home");
    assert!(told.contains("was removed, 16777216 bytes: nothing uses it"), "{told}");
    // It comes again when it is needed, and goes by name.
    host.create("second", SPEC);
    host.await_text("second", "Reason", "AwaitingAddress", STEP);
    host.delete("second");
    assert_eq!(host.run(&format!("{MANAGER} EvictImage ss home blank")), "");
    assert!(!host.exists(BASE) && !host.exists(&format!("{BASE}.json")));
}

/// The list has the digest of the packed file, and the marker that of both.
fn a_packed_image_is_unpacked_for_both_types(host: &Host) {
    host.run(
        "cd /srv/lab; head -c 2M /dev/urandom > packed.raw; truncate -s 16M packed.raw; \
         gzip -kf packed.raw; sha256sum packed.raw.gz > SHA256SUMS",
    );
    let wanted = host.run("sha256sum < /srv/lab/packed.raw.gz | cut -d' ' -f1");
    for entry in ["home", "api"] {
        host.create(entry, &format!("3 Provider s {entry} Image s packed MemoryMiB t 256"));
        host.await_text(entry, "Reason", "AwaitingAddress", STEP);
        assert_eq!(host.text(entry, "ImageDigest"), wanted);
        let base = format!("{POOL}/base-{entry}-packed.raw");
        host.run(&format!("cmp {base} /srv/lab/packed.raw"));
        host.delete(entry);
        a_base_is_hashed_when_asked(host, entry, &base, &wanted);
    }
}

/// By a job, whatever the type of the entry; damage is found and told.
fn a_base_is_hashed_when_asked(host: &Host, entry: &str, base: &str, digest: &str) {
    let shown = || -> Value {
        serde_json::from_str(&host.proxyctl(&format!("--json image show {entry} packed"))).unwrap()
    };
    host.wait("the image to be ready", STEP, || shown()["state"] == "ready");
    assert_eq!((&shown()["digest"], &shown()["path"]), (&json!(digest), &json!(base)));
    assert_eq!(shown()["size"], 16 << 20);
    let verified = host.proxyctl(&format!("image verify {entry} packed"));
    assert!(verified.contains("the base is whole") && verified.contains(digest), "{verified}");
    host.run(&format!("printf x | dd of={base} bs=1 seek=9 conv=notrunc status=none"));
    let refused = refused(host, &format!("proxyctl image verify {entry} packed"));
    assert!(refused.contains("is damaged: it has the sha256"), "{refused}");
    host.wait("the damage to be shown", STEP, || shown()["state"] == "conflict");
    host.proxyctl(&format!("image evict {entry} packed"));
    assert!(!host.exists(base) && !host.exists(&format!("{base}.json")));
}
