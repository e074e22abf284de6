//! What the NixOS module makes of a machine, on a real host: unit with its drop-in, bus
//! and polkit files, configuration, pools and networks.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::host::{Host, text, url};

const BOOT: Duration = Duration::from_secs(900);
const STEP: Duration = Duration::from_secs(120);
const OVERRIDES: &str = "/etc/systemd/system/proxyd.service.d/overrides.conf";

#[test]
#[ignore = "needs the lab: make test"]
fn what_the_module_renders_does_the_main_job() {
    let host = Host::boot("nixos", &[]);
    is_like_nixos(&host);
    switch_to(&host, "lab.nix");
    host.run("systemctl start proxyd-catalog proxyd-libvirt proxyd");

    the_unit_is_sound(&host);
    pool_and_network_are_there(&host);
    the_group_is_let_in_and_nobody_else(&host);
    host.wait("Proxy web to be healthy", BOOT, || {
        host.property("web", "Healthy") == Some(Value::Bool(true))
    });
    assert_eq!(host.text("web", "Origin"), "config");
    let endpoint = host.text("web", "Endpoint");
    assert!(endpoint.starts_with("http://10.64.0."), "{endpoint}");
    let page = host.run(&format!("curl -sS -f -x {endpoint} {}", url("page.html")));
    assert!(page.contains("<html"), "{page}");
    let story = host.run("journalctl -x --no-pager -u proxyd PROXYD_PROXY=web");
    assert!(story.contains("The health URL answered through Proxy web."), "{story}");

    a_changed_configuration_is_reloaded(&host);
    making_them_ready_again_changes_nothing(&host);
    what_is_there_with_other_settings_stays_and_is_told(&host);
    a_bad_configuration_is_not_even_built();
}

/// NixOS' name for libvirt's group, and the polkit rule that goes with it there.
fn is_like_nixos(host: &Host) {
    host.write(
        "/etc/polkit-1/rules.d/10-libvirtd.rules",
        b"polkit.addRule(function(action, subject) {\n\
          if (action.id == 'org.libvirt.unix.manage' && subject.isInGroup('libvirtd'))\n\
            return polkit.Result.YES;\n\
          });\n",
    );
    host.run(
        "groupadd --system libvirtd; mkdir -p /etc/systemd/system/libvirtd.socket.d; \
         printf '[Socket]\\nSocketGroup=libvirtd\\n' \
             > /etc/systemd/system/libvirtd.socket.d/nixos.conf; \
         useradd alice; useradd bob; \
         systemctl daemon-reload; systemctl stop libvirtd; systemctl restart libvirtd.socket",
    );
}

/// What `nixos-rebuild switch` does, but for starting units.
fn switch_to(host: &Host, configuration: &str) {
    let rendered = render(&host.root(), configuration);
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    host.run("systemd-sysusers; usermod -a -G proxies alice; systemctl daemon-reload");
    host.run("busctl call org.freedesktop.DBus / org.freedesktop.DBus ReloadConfig");
}

fn render(root: &str, configuration: &str) -> std::process::Output {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("nix/tests");
    let mut command = Command::new(tests.join("run"));
    command.args(["render", root]).arg(tests.join(configuration));
    command.output().expect("the module's tests run")
}

fn the_unit_is_sound(host: &Host) {
    let said = host.attempt(
        "systemd-analyze verify --man=no proxyd.service proxyd-libvirt.service \
         proxyd-catalog.service 2>&1",
    );
    assert!(said.status.success(), "{}", text(&said));
    assert!(!text(&said).contains("proxyd"), "{}", text(&said));
    host.run("systemd-analyze security --no-pager --threshold=20 proxyd >/dev/null");
}

fn pool_and_network_are_there(host: &Host) {
    let pool = host.run("virsh pool-info vms");
    assert!(pool.contains("running") && pool.contains("Autostart:      yes"), "{pool}");
    let network = host.run("virsh net-info proxies");
    for part in ["Active:         yes", "Autostart:      yes", "virbr-proxies"] {
        assert!(network.contains(part), "{part} is not in\n{network}");
    }
}

fn the_group_is_let_in_and_nobody_else(host: &Host) {
    let create = |user: &str| {
        host.attempt(&format!(
            "runuser -u {user} -- proxyctl create of-{user} --image debian-13 --no-autostart"
        ))
    };
    assert!(create("alice").status.success());
    let refused = create("bob");
    assert!(!refused.status.success());
    host.run("runuser -u alice -- proxyctl delete of-alice");
    host.wait("Proxy of-alice to go", STEP, || host.property("of-alice", "Phase").is_none());
    assert!(host.property("of-bob", "Phase").is_none());
}

/// Of the unit nothing changes but what NixOS reloads it for; neither the daemon nor the
/// guest is started anew.
fn a_changed_configuration_is_reloaded(host: &Host) {
    let running = || {
        host.run(
            "systemctl show -P MainPID proxyd; cat /run/libvirt/qemu/proxy-web.pid; \
             virsh domuuid proxy-web",
        )
    };
    let (before, unit) = (running(), host.run(&format!("cat {OVERRIDES}")));
    switch_to(host, "lab-changed.nix");
    let changed = host.run(&format!("cat {OVERRIDES}"));
    let lines = unit.lines().zip(changed.lines()).filter(|(one, other)| one != other);
    let lines: Vec<_> = lines.map(|(_, line)| line).collect();
    assert_eq!(lines.len(), 1, "{unit}\n{changed}");
    assert!(lines[0].starts_with("X-Reload-Triggers="), "{}", lines[0]);

    host.run("systemctl reload proxyd");
    let images = host.proxyctl("image list");
    assert!(images.contains("own"), "{images}");
    assert_eq!(running(), before);
    assert_eq!(host.property("web", "Healthy"), Some(Value::Bool(true)));
}

fn making_them_ready_again_changes_nothing(host: &Host) {
    let state =
        || host.run("virsh pool-dumpxml --inactive vms; virsh net-dumpxml --inactive proxies");
    let before = state();
    host.run("systemctl restart proxyd-libvirt");
    assert_eq!(state(), before);
    host.run("virsh -q pool-destroy vms; virsh -q pool-autostart --disable vms");
    host.run("systemctl restart proxyd-libvirt");
    pool_and_network_are_there(host);
}

fn what_is_there_with_other_settings_stays_and_is_told(host: &Host) {
    host.run(
        "virsh -q pool-destroy vms; virsh -q pool-undefine vms; \
         mkdir -p /srv/theirs; virsh -q pool-define-as vms dir --target /srv/theirs",
    );
    assert!(!host.attempt("systemctl restart proxyd-libvirt").status.success());
    let said = host.run("journalctl -u proxyd-libvirt --no-pager -o cat");
    assert!(said.contains("the pool vms is there with another path"), "{said}");
    assert!(host.run("virsh pool-dumpxml vms").contains("/srv/theirs"));
    let network = host.run("virsh net-info proxies");
    assert!(network.contains("Active:         yes"), "{network}");
}

/// `settings` goes past the module's checks, and not past the build's.
fn a_bad_configuration_is_not_even_built() {
    let root = tempfile::tempdir().expect("a directory");
    let refused = render(&root.path().to_string_lossy(), "lab-refused.nix");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("/providers/home/maxConcurrent: 1000 is out of range"), "{said}");
    let left = std::fs::read_dir(root.path()).expect("the directory").count();
    assert_eq!(left, 0, "something was written");
}
