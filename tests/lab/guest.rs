//! Guests of every kind at once: installed from nothing, booted by BIOS, and kept from
//! telling their address in each of the ways that can be told apart.

use std::time::Duration;

use serde_json::{Value, json};

use crate::host::{Host, text, url};

const STEP: Duration = Duration::from_secs(120);
/// Two guests at once under software emulation.
const BOOT: Duration = Duration::from_secs(1500);
const GRUB: &str = "Booting `Debian GNU/Linux";
const KERNEL: &str = "Linux version";
const LOGS: &str = "/var/log/libvirt/qemu";

fn config() -> Value {
    let image = |name: &str, firmware: &str| json!({ "url": url(name), "firmware": firmware });
    json!({
        "images": {
            "bare": image("bare.qcow2", "uefi"),
            "ready": image("ready.qcow2", "uefi"),
            "ready-bios": image("ready.qcow2", "bios")
        },
        "providers": { "home": {} },
        "health": { "url": url("generate_204"), "interval": "5s" }
    })
}

/// A guest that is kept from telling its address, the cause that evidence has to name,
/// and what else has to hold.
struct Kept {
    name: &'static str,
    image: &'static str,
    user_data: &'static str,
    network_config: Option<&'static str>,
    cause: &'static str,
    check: fn(&Host, &str),
}

const KEPT: [Kept; 4] = [
    Kept {
        name: "off",
        image: "bare",
        user_data: "#cloud-config\nvendor_data: {enabled: false}\n",
        network_config: None,
        cause: "VendorDataOff",
        check: the_lease_is_believed,
    },
    Kept {
        name: "masked",
        image: "ready",
        user_data: "#cloud-config\nbootcmd: [systemctl mask --now qemu-guest-agent]\n",
        network_config: None,
        cause: "AgentNotStarted",
        check: |_, _| {},
    },
    Kept {
        name: "broken",
        image: "bare",
        user_data: "#cloud-config\nbootcmd: [rm -f /etc/apt/sources.list.d/lab.list]\n",
        network_config: None,
        cause: "ScriptFailed",
        check: the_script_is_quoted,
    },
    Kept {
        name: "mute",
        image: "bare",
        user_data: "#cloud-config\n{}\n",
        network_config: Some("version: 2\nethernets: {any: {match: {name: 'e*'}, dhcp4: false}}\n"),
        cause: "NoLease",
        check: it_says_so_where_everybody_looks,
    },
];

impl Kept {
    fn create(&self, host: &Host) {
        host.write("/srv/user-data", self.user_data.as_bytes());
        let mut network = "";
        if let Some(config) = self.network_config {
            host.write("/srv/network-config", config.as_bytes());
            network = "--network-config /srv/network-config";
        }
        let Self { name, image, .. } = self;
        host.proxyctl(&format!(
            "create {name} --image {image} --memory 768 --user-data /srv/user-data {network}"
        ));
    }

    fn is_told(&self, host: &Host) {
        let Self { name, cause, .. } = self;
        host.wait(&format!("the evidence of Proxy {name} to say {cause}"), BOOT, || {
            evidence(host, name)["diagnosis"]["cause"] == *cause
        });
        let evidence = evidence(host, name);
        assert_eq!(evidence["guest"]["domain"], "running", "{evidence:#}");
        assert!(!evidence["guest"]["console"]["tail"].as_str().unwrap_or_default().is_empty());
    }
}

#[test]
#[ignore = "needs the lab: make test"]
fn what_a_guest_gets_makes_it_a_proxy_or_says_why_not() {
    let host = Host::up("guest", &config());
    golden_files_are_valid(&host);
    leave_nvram(&host, "plain");
    let theirs = host.run(NVRAM_OF_ANOTHER);
    host.proxyctl("create bios --image ready-bios --memory 768 --allow 192.168.122.0/24");
    host.await_text("bios", "Reason", "AwaitingAddress", STEP);
    without_a_video_device_debian_13_hangs(&host);

    host.proxyctl("create plain --image bare --memory 768");
    a_disk_smaller_than_its_image_is_refused(&host);
    is_healthy(&host, "bios", "agent");
    booted_by_bios(&host);
    serves_whom_it_shall(&host);
    host.delete("bios");
    // Without agent and squid in the image: both from the guests' own repository.
    is_healthy(&host, "plain", "agent");
    serves_its_own_network(&host);
    host.delete("plain");

    // Two at a time: more would starve each other into their own timeouts.
    for pair in KEPT.chunks(2) {
        pair.iter().for_each(|kept| kept.create(&host));
        pair.iter().for_each(|kept| kept.is_told(&host));
        pair.iter().for_each(|kept| (kept.check)(&host, kept.name));
        pair.iter().for_each(|kept| host.delete(kept.name));
    }
    // What another domain of the name had left is not ours to touch.
    assert_eq!(host.run(NVRAM_OF_ANOTHER), theirs);
    host.run("rm /var/lib/libvirt/qemu/nvram/proxy-plain_VARS.fd");
    host.nothing_is_left();
}

fn golden_files_are_valid(host: &Host) {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/domain");
    for entry in std::fs::read_dir(golden).expect("golden files").flatten() {
        host.write("/srv/golden.xml", &std::fs::read(entry.path()).expect("a golden file"));
        let valid = host.attempt("virt-xml-validate /srv/golden.xml domain");
        let said = String::from_utf8_lossy(&valid.stderr).into_owned();
        assert!(valid.status.success(), "{:?}: {said}", entry.path());
    }
}

/// What is told of the NVRAM that another domain left.
const NVRAM_OF_ANOTHER: &str = "cd /var/lib/libvirt/qemu/nvram; sha256sum proxy-plain_VARS.fd; \
                                stat -c '%i %Y %U' proxy-plain_VARS.fd";

/// What a domain of the name once left: firmware that took it over would not start.
fn leave_nvram(host: &Host, name: &str) {
    host.run(&format!(
        "cd /var/lib/libvirt/qemu/nvram; head -c 540672 /dev/urandom > proxy-{name}_VARS.fd; \
         chown libvirt-qemu: proxy-{name}_VARS.fd"
    ));
}

/// The domain of Proxy bios twice, without its seed: as it is, and without the video
/// device. The first is booted anew once the other hangs, so that the other had as much
/// time as was needed.
fn without_a_video_device_debian_13_hangs(host: &Host) {
    host.run(
        "cd /srv; virsh dumpxml --inactive proxy-bios > bios.xml
         base=$(qemu-img info -U --output=json /var/lib/libvirt/images/proxy-bios.qcow2 |
             python3 -c 'import json, sys; print(json.load(sys.stdin)[\"full-backing-filename\"])')
         for name in control hang; do
             qemu-img create -q -f qcow2 -F qcow2 -b $base /var/lib/libvirt/images/$name.qcow2
             python3 - $name <<'E'
import re, sys
name, xml = sys.argv[1], open('bios.xml').read()
xml = re.sub('<uuid>.*</uuid>|<mac .*/>', '', xml).replace('proxy-bios', name)
xml = re.sub('<disk (?:(?!</disk>).)*-seed.img(?:(?!</disk>).)*</disk>', '', xml, flags=re.S)
if name == 'hang':
    xml = re.sub('<video>.*</video>', \"<video><model type='none'/></video>\", xml, flags=re.S)
open(name + '.xml', 'w').write(xml)
E
             virsh -q create $name.xml
         done",
    );
    let says = |name: &str, words: &str| {
        host.attempt(&format!("grep -aqF '{words}' {LOGS}/{name}.console.log")).status.success()
    };
    host.wait("GRUB to hang", STEP, || says("hang", GRUB));
    host.run(&format!("truncate -s 0 {LOGS}/control.console.log; virsh -q reset control"));
    host.wait("the kernel under the same GRUB", STEP, || says("control", KERNEL));
    assert!(!says("hang", KERNEL), "it boots without a video device as well");
    host.run(&format!(
        "for name in control hang; do virsh -q destroy $name; \
         rm /var/lib/libvirt/images/$name.qcow2 {LOGS}/$name.console.log; done; \
         virsh -q pool-refresh default"
    ));
}

fn a_disk_smaller_than_its_image_is_refused(host: &Host) {
    host.proxyctl("create small --image ready --disk 1");
    host.await_text("small", "Phase", "Failed", BOOT);
    let message = host.text("small", "Message");
    for part in ["DiskGiB 1", "base-home-ready.qcow2", "2684354560 bytes"] {
        assert!(message.contains(part), "{message}");
    }
    host.delete("small");
}

fn is_healthy(host: &Host, name: &str, source: &str) {
    host.wait(&format!("Proxy {name} to be healthy"), BOOT, || {
        host.property(name, "Healthy") == Some(Value::Bool(true))
    });
    assert_eq!(host.text(name, "Phase"), "Ready");
    assert_eq!(host.text(name, "AddressSource"), source);
}

fn booted_by_bios(host: &Host) {
    let xml = host.run("virsh dumpxml proxy-bios");
    assert!(!xml.contains("firmware='efi'") && xml.contains("type='vga'"), "{xml}");
    let console = host.run("proxyctl console bios --bytes 1000000 | tr -d '\\0'");
    assert!(console.contains(GRUB) && console.contains(KERNEL), "{console}");
    let nvram = |name: &str| {
        host.run(&format!("ls /var/lib/libvirt/qemu/nvram | grep '^proxy-{name}[-_]' || true"))
    };
    assert_eq!(nvram("bios"), "");
    // Its own, and what another domain of the name had left.
    let own = format!("proxy-plain-{}_VARS.fd", host.text("plain", "Domain"));
    assert_eq!(nvram("plain"), format!("{own}\nproxy-plain_VARS.fd"));
    let seed = host.run("stat -c %a /var/lib/libvirt/images/proxy-bios-seed.img");
    assert_eq!(seed, "600", "user-data may be read by others");
}

/// The status that a request through a Proxy gives.
fn status(host: &Host, name: &str, request: &str) -> String {
    let endpoint = host.text(name, "Endpoint");
    let format = "%{http_code} %{http_connect}";
    let curl = format!("curl -s -o /dev/null --max-time 20 -w '{format}' -x {endpoint} {request}");
    text(&host.attempt(&curl))
}

fn serves_whom_it_shall(host: &Host) {
    assert_eq!(status(host, "bios", &url("page.html")), "200 000");
    // CONNECT goes to 443 alone, and nothing to the guest itself.
    assert_eq!(status(host, "bios", &format!("-p {}", url("page.html"))), "000 403");
    for own in ["127.0.0.1", "169.254.169.254", "0.0.0.0"] {
        assert_eq!(status(host, "bios", &format!("http://{own}/")), "403 000", "{own}");
    }
    // A client that is not listed is refused.
    host.run("ip address add 10.99.0.1/32 dev virbr0");
    let foreign = format!("--interface 10.99.0.1 {}", url("page.html"));
    assert_eq!(status(host, "bios", &foreign), "403 000");
}

/// Nobody was listed: the networks of the guest's own interface, and no other.
fn serves_its_own_network(host: &Host) {
    assert_eq!(status(host, "plain", &url("page.html")), "200 000");
    let foreign = format!("--interface 10.99.0.1 {}", url("page.html"));
    assert_eq!(status(host, "plain", &foreign), "403 000");
    let console = || host.run("proxyctl console plain --bytes 1000000 | tr -d '\\0'");
    assert!(console().contains("proxyd: agent: installing qemu-guest-agent"));
    // squid serves as soon as it is installed, with our configuration.
    host.wait("the preset's script to end", BOOT, || {
        console().contains("proxyd: squid: squid serves")
    });
}

fn evidence(host: &Host, name: &str) -> Value {
    serde_json::from_str(&host.proxyctl(&format!("evidence {name}"))).expect("JSON")
}

fn the_script_is_quoted(host: &Host, name: &str) {
    let evidence = evidence(host, name);
    let words = evidence["diagnosis"]["words"].as_str().unwrap_or_default();
    assert!(words.contains("qemu-guest-agent can't be installed after 5 attempts"), "{words}");
}

/// Without the agent the DHCP server's word is taken, and said to be so.
fn the_lease_is_believed(host: &Host, name: &str) {
    host.await_text(name, "AddressSource", "lease", BOOT);
    assert_eq!(host.text(name, "Phase"), "Ready");
    let address = host.text(name, "Address");
    assert_eq!(host.run(&format!("virsh -q net-dhcp-leases default | grep -c ' {address}/'")), "1");
}

fn it_says_so_where_everybody_looks(host: &Host, name: &str) {
    host.wait("the message to say so", STEP, || {
        host.text(name, "Message").contains("DHCP server has given the guest no address")
    });
    let told = host.run(&format!("journalctl -u proxyd PROXYD_PROXY={name} -o cat --no-pager"));
    assert!(told.contains("held up: the network's DHCP server"), "{told}");
}

/// Where /dev/kvm is there and runs no guest, the guest's end is told in QEMU's words.
#[test]
#[ignore = "needs the lab: make test"]
fn a_host_whose_kvm_is_broken_is_told_so() {
    let usable = crate::host::lab(&["kvm"]).status.success();
    if usable || !std::path::Path::new("/dev/kvm").exists() {
        eprintln!("KVM is not broken here: nothing to tell");
        return;
    }
    let host = Host::up_with("kvm", &config(), &[("PROXYD_LAB_KVM", "yes")]);
    host.proxyctl("create dies --image ready --memory 512");
    host.await_text("dies", "Reason", "DomainFailed", STEP);
    let message = host.text("dies", "Message");
    for part in ["QEMU says: ", "set virtType to \"qemu\""] {
        assert!(message.contains(part), "{message}");
    }
    let evidence = evidence(&host, "dies");
    // KVM may end QEMU, or have it keep a guest that can't go on.
    let cause = evidence["diagnosis"]["cause"].as_str().unwrap_or_default();
    assert!(["Died", "Paused"].contains(&cause), "{evidence:#}");
    assert_eq!(evidence["guest"]["domainType"], "kvm");
    host.delete("dies");
    host.nothing_is_left();
}
