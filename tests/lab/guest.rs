//! Guests of every kind at once: installed from nothing, booted by BIOS, and kept from
//! telling their address in each of the ways that can be told apart.

use std::time::Duration;

use serde_json::{Value, json};

use crate::host::{Host, text, url};

const STEP: Duration = Duration::from_secs(120);
/// Six guests at once under software emulation.
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

/// Guests whose user-data or network-config keeps them from telling their address,
/// and the cause that evidence has to name.
const KEPT: [(&str, &str, &str, &str); 4] = [
    ("off", "bare", "#cloud-config\nvendor_data: {enabled: false}\n", "VendorDataOff"),
    (
        "broken",
        "bare",
        "#cloud-config\nbootcmd: [rm -f /etc/apt/sources.list.d/lab.list]\n",
        "ScriptFailed",
    ),
    (
        "masked",
        "ready",
        "#cloud-config\nbootcmd: [systemctl mask --now qemu-guest-agent]\n",
        "AgentNotStarted",
    ),
    ("mute", "bare", "#cloud-config\n{}\n", "NoLease"),
];
const NO_DHCP: &str = "version: 2\nethernets: {any: {match: {name: 'e*'}, dhcp4: false}}\n";

#[test]
#[ignore = "needs the lab: make test"]
fn what_a_guest_gets_makes_it_a_proxy_or_says_why_not() {
    let host = Host::up("guest", &config());
    golden_files_are_valid(&host);
    leave_nvram(&host, "plain");
    host.proxyctl("create bios --image ready-bios --memory 768 --allow 192.168.122.0/24");
    host.await_text("bios", "Reason", "AwaitingAddress", STEP);
    without_a_video_device_debian_13_hangs(&host);

    host.proxyctl("create plain --image bare --memory 768");
    for (name, image, user_data, _) in KEPT {
        host.write("/srv/user-data", user_data.as_bytes());
        host.write("/srv/network-config", NO_DHCP.as_bytes());
        let network = if name == "mute" { "--network-config /srv/network-config" } else { "" };
        host.proxyctl(&format!(
            "create {name} --image {image} --memory 768 --user-data /srv/user-data {network}"
        ));
    }

    is_healthy(&host, "bios", "agent");
    booted_by_bios(&host);
    serves_whom_it_shall(&host);
    // Without agent and squid in the image: both from the guests' own repository.
    is_healthy(&host, "plain", "agent");
    serves_its_own_network(&host);
    for (name, _, _, cause) in KEPT {
        is_told(&host, name, cause);
    }
    the_lease_is_believed(&host);
    for name in ["bios", "plain", "off", "broken", "masked", "mute"] {
        host.delete(name);
    }
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
    host.run(&format!(
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
         done"
    ));
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
    assert!(!host.exists("/var/lib/libvirt/qemu/nvram/proxy-bios_VARS.fd"));
    assert!(host.exists("/var/lib/libvirt/qemu/nvram/proxy-plain_VARS.fd"));
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
    let console = host.run("proxyctl console plain --bytes 1000000 | tr -d '\\0'");
    assert!(console.contains("proxyd: agent: installing qemu-guest-agent"), "{console}");
    assert!(console.contains("proxyd: squid: squid serves"), "{console}");
}

fn evidence(host: &Host, name: &str) -> Value {
    serde_json::from_str(&host.proxyctl(&format!("evidence {name}"))).expect("JSON")
}

fn is_told(host: &Host, name: &str, cause: &str) {
    host.wait(&format!("the evidence of Proxy {name} to say {cause}"), BOOT, || {
        evidence(host, name)["diagnosis"]["cause"] == cause
    });
    let evidence = evidence(host, name);
    assert_eq!(evidence["guest"]["domain"], "running", "{evidence:#}");
    assert!(!evidence["guest"]["console"]["tail"].as_str().unwrap_or_default().is_empty());
    if cause == "ScriptFailed" {
        let words = evidence["diagnosis"]["words"].as_str().unwrap_or_default();
        assert!(words.contains("qemu-guest-agent can't be installed after 5 attempts"), "{words}");
    }
}

/// Without the agent the DHCP server's word is taken, and said to be so.
fn the_lease_is_believed(host: &Host) {
    host.await_text("off", "AddressSource", "lease", BOOT);
    assert_eq!(host.text("off", "Phase"), "Ready");
    let address = host.text("off", "Address");
    assert_eq!(host.run(&format!("virsh -q net-dhcp-leases default | grep -c ' {address}/'")), "1");
    // The one without a lease says so where everybody looks first, and in the journal.
    assert!(host.text("mute", "Message").contains("DHCP server has given the guest no address"));
    let told = host.run("journalctl -u proxyd PROXYD_PROXY=mute -o cat --no-pager");
    assert!(told.contains("no address yet"), "{told}");
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
    assert_eq!(evidence(&host, "dies")["diagnosis"]["cause"], "Died");
    assert_eq!(evidence(&host, "dies")["guest"]["domainType"], "kvm");
    host.delete("dies");
    host.nothing_is_left();
}
